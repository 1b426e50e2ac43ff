import type { Explored, Row } from './explore.ts'

/** The figures of a run, for people and programs. */
export interface Figures {
  readonly seed: string
  /** A scene on a store counts once. */
  readonly scenes: number
  readonly messages: number
  readonly cases: number
  readonly pairs: number
  readonly missed: number
  readonly grants: number
  readonly unrepeated: number
  readonly seconds: number
  readonly cpuSeconds: number
  readonly violations: Explored['violations']
  readonly rows: readonly Row[]
}

export function figuresOf(explored: Explored, seed: string): Figures {
  const rows = [...explored.rows].sort((x, y) => (rowName(x) < rowName(y) ? -1 : 1))
  const sum = (of: (row: Row) => number): number => rows.reduce((all, row) => all + of(row), 0)
  return {
    seed,
    scenes: rows.length,
    messages: sum(({ messages }) => messages),
    cases: sum(({ cases }) => cases),
    pairs: sum(({ pairs }) => pairs),
    missed: sum(({ missed }) => missed),
    grants: sum(({ grants }) => grants),
    unrepeated: explored.unrepeated,
    seconds: Math.round(explored.seconds),
    cpuSeconds: Math.round(explored.cpuSeconds),
    violations: explored.violations,
    rows,
  }
}

export function tableOf(figures: Figures): string {
  const { scenes, messages, cases, pairs, missed, grants, unrepeated, seconds, cpuSeconds, violations } = figures
  const lines = figures.rows.map((row) => {
    const cells = [row.messages, row.cases, row.pairs, row.missed, row.grants].map((count) => `${count}`.padStart(9))
    return `${rowName(row).padEnd(28)}${cells.join('')}`
  })
  const head = ['messages', 'faults', 'pairs', 'missed', 'grants'].map((each) => each.padStart(9)).join('')
  return [
    '',
    `${'scene'.padEnd(28)}${head}`,
    ...lines,
    `${scenes} scenes, ${messages} messages, ${cases} messages × faults, ${pairs} pairs, ${missed} missed, ` +
      `${grants} grants, ${seconds} s (${cpuSeconds} s of CPU): ${violations.length} violations` +
      (unrepeated > 0 ? `; ${unrepeated} cases were slow once, and not again` : ''),
  ].join('\n')
}

const rowName = ({ store, scene }: Row): string => `${store}/${scene}`
