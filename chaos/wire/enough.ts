import type { Row } from './explore.ts'

/** The share of cases whose message did not come. With more, the healthy runs say little about their messages. */
const MOST_MISSED = 0.1

/** Reasons why an exploration without violations proves nothing: it did too little. */
export function tooLittle(rows: readonly Row[]): string[] {
  const idle = rows.filter(({ healthyGrants, leastGrants }) => healthyGrants < leastGrants)
  const sum = (of: (row: Row) => number): number => rows.reduce((all, row) => all + of(row), 0)
  const cases = sum(({ faults, majorities, pairs }) => faults + majorities + pairs)
  const missed = sum((row) => row.missed)
  return [
    ...idle.map(
      ({ store, scene, healthyGrants, leastGrants }) =>
        `${store}/${scene} has ${healthyGrants} grants without a fault, but at least ${leastGrants} are needed`,
    ),
    ...(missed > cases * MOST_MISSED ? [`too many cases were missed: ${missed} of ${cases}`] : []),
  ]
}
