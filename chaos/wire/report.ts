import { tooLittle } from './enough.ts'
import type { Explored, Row } from './explore.ts'

/** The figures of a run, for people and programs. */
export interface Figures {
  readonly seed: string
  /** A scene on a store counts once. */
  readonly scenes: number
  readonly messages: number
  /** Messages × faults. */
  readonly faults: number
  readonly majorities: number
  readonly pairs: number
  readonly missed: number
  readonly grants: number
  readonly unrepeated: number
  readonly seconds: number
  readonly cpuSeconds: number
  readonly violations: Explored['violations']
  /** Why the run proves nothing. */
  readonly problems: readonly string[]
  readonly rows: readonly Row[]
}

export function figuresOf(explored: Explored, seed: string): Figures {
  const rows = [...explored.rows].sort((x, y) => (rowName(x) < rowName(y) ? -1 : 1))
  const sum = (of: (row: Row) => number): number => rows.reduce((all, row) => all + of(row), 0)
  return {
    seed,
    scenes: rows.length,
    messages: sum(({ messages }) => messages),
    faults: sum(({ faults }) => faults),
    majorities: sum(({ majorities }) => majorities),
    pairs: sum(({ pairs }) => pairs),
    missed: sum(({ missed }) => missed),
    grants: sum(({ grants }) => grants),
    unrepeated: explored.unrepeated,
    seconds: Math.round(explored.seconds),
    cpuSeconds: Math.round(explored.cpuSeconds),
    violations: explored.violations,
    problems: tooLittle(rows),
    rows,
  }
}

export function tableOf(figures: Figures): string {
  const { scenes, messages, faults, majorities, pairs, missed, grants, seconds, cpuSeconds } = figures
  const { violations, unrepeated } = figures
  const lines = figures.rows.map((row) => {
    const cells = COLUMNS.map((column) => `${row[column]}`.padStart(12))
    return `${rowName(row).padEnd(28)}${cells.join('')}`
  })
  const head = COLUMNS.map((column) => column.padStart(12)).join('')
  return [
    '',
    `${'scene'.padEnd(28)}${head}`,
    ...lines,
    `${scenes} scenes, ${messages} messages, ${faults} messages × faults, ${majorities} on two nodes, ` +
      `${pairs} pairs, ${missed} missed, ` +
      `${grants} grants, ${seconds} s (${cpuSeconds} s of CPU): ${violations.length} violations` +
      (unrepeated > 0 ? `; ${unrepeated} cases were slow once, and not again` : ''),
    ...figures.problems.map((text) => `problem: ${text}`),
  ].join('\n')
}

const COLUMNS = ['messages', 'faults', 'majorities', 'pairs', 'missed', 'grants'] as const

const rowName = ({ store, scene }: Row): string => `${store}/${scene}`
