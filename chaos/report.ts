import type { Violation } from './violation.ts'

export { Tally } from './tally.ts'
export type { Violation } from './violation.ts'

export interface Report {
  scenario: string
  seed: string
  /** Time under faults, over all episodes. */
  seconds: number
  episodes: number
  versions: Record<string, string>
  claims: number
  grants: number
  /** Grants by what they were for: locks, reads, writes, permits, terms. */
  grantsByKind: Record<string, number>
  /** Grants to clients of each language. */
  grantsByLanguage: Record<string, number>
  refused: number
  /** Leases that ended before their holder released them, including those that were left to expire. */
  lost: number
  /** Steps of the rate limiter that were allowed, and all of them. */
  rateSteps: { allowed: number; all: number }
  /** The number of violations that each check has found. */
  checks: Record<string, number>
  /** What a loss of the store explains, by check. */
  excused: Record<string, number>
  /** Two holders, excused or not, tokens that fall, and leases that were held again after their loss. */
  overlaps: number
  excusedOverlaps: number
  fallingTokens: number
  resurrected: number
  /** The records that check the token before the read: writes, and those that they refused. */
  writes: number
  refusedWrites: number
  lostUpdates: string[]
  /** The records beside them that check nothing. */
  unchecked: { writes: number; lost: number; lostAfterCheck: number }
  /** When losses were signalled, after the deadline of the lease. */
  signals: { running: Times; stalled: Times }
  /** Leases and claims that were judged under a fault alone that the store promises to bear. */
  kept: { leases: number; claims: number }
  /** Pairs of waiters whose order was known, and queues of all clients after the faults. */
  orderedPairs: number
  queues: number
  /** What the check of linearizability has judged. */
  linear: { operations: number; windows: number; undecided: string[] }
  /** The largest growth of a client's memory in one episode. */
  memoryGrowthBytes: number
  faults: number
  faultsByKind: Record<string, number>
  /** Faults that were drawn, but skipped because of another fault. */
  skippedFaults: Record<string, number>
  errors: Record<string, number>
  unexpectedErrors: string[]
  problems: string[]
  /** The average share of one core. */
  load: Record<string, string>
  violations: Violation[]
  excusedViolations: Violation[]
}

/** Milliseconds. A negative time is before the deadline. */
export interface Times {
  count: number
  p50?: number
  p99?: number
  worst?: number
}

/** 0: nothing broke. 1: an invariant broke. 2: the run proves nothing. */
export function exitCodeOf(report: Report): 0 | 1 | 2 {
  if (Object.values(report.checks).some((count) => count > 0)) return 1
  return report.problems.length > 0 || report.grants === 0 || report.faults === 0 ? 2 : 0
}

export function tableOf(report: Report): string {
  const { scenario, seed, seconds, episodes, unchecked, rateSteps, signals, linear } = report
  const lines: (readonly [string, string])[] = [
    ['run', `${scenario}, seed ${seed}, ${Math.round(seconds)} s under faults in ${episodes} episodes`],
    ['versions', listed(report.versions)],
    ['claims', `${report.claims}, of which ${report.refused} were refused`],
    ['grants', `${report.grants}, of which ${report.lost} were lost or left to expire`],
    ['', listed({ ...report.grantsByKind, ...report.grantsByLanguage })],
    ['rate limiter', `${rateSteps.allowed} of ${rateSteps.all} steps were allowed`],
    ['faults', `${report.faults}: ${listed(report.faultsByKind)}`],
    ['skipped', listed(report.skippedFaults)],
    ['errors', listed(report.errors)],
    ['load', `${listed(report.load)} of one core`],
    ['with tokens', `${lostUpdates(report.writes, report.lostUpdates.length)}, ${report.refusedWrites} refused`],
    [
      'without tokens',
      `${lostUpdates(unchecked.writes, unchecked.lost)}, ${unchecked.lostAfterCheck} of them right after a check`,
    ],
    ['loss to signal', `${timesText(signals.running)}, from the deadline of the lease`],
    ['', `${timesText(signals.stalled)}, in processes that were stalled at the deadline`],
    ['kept', `${report.kept.leases} leases and ${report.kept.claims} claims were judged under one fault alone`],
    ['order', `${report.orderedPairs} pairs of waiters, ${report.queues} queues of all clients`],
    [
      'linearizable',
      `${linear.operations} operations in ${linear.windows} windows, ${linear.undecided.length} undecided`,
    ],
    ['memory', `grew by at most ${(report.memoryGrowthBytes / 2 ** 20).toFixed(1)} MiB in one process`],
    ['excused', listed(report.excused)],
    ['violations', listed(report.checks)],
    ['problems', String(report.problems.length)],
  ]
  const table = lines.map(([name, text]) => `${name.padEnd(16)}${text}`)
  const more = [
    ...report.unexpectedErrors.map((text) => `unexpected error: ${text}`),
    ...report.problems.map((text) => `problem: ${text}`),
    ...[...report.violations, ...report.excusedViolations].map(
      ({ what, episode, text }) => `${what} in episode ${episode}: ${text}`,
    ),
  ]
  return [...table, ...more, ''].join('\n')
}

function lostUpdates(writes: number, lost: number): string {
  const rate = writes === 0 ? '' : ` (${((100 * lost) / writes).toFixed(2)} %)`
  return `${lost} of ${writes} updates were lost${rate}`
}

function timesText({ count, p50, p99, worst }: Times): string {
  const shown = (ms = 0): string => `${ms > 0 ? '+' : ''}${ms.toFixed(1)} ms`
  return count === 0 ? 'no loss' : `${count}: p50 ${shown(p50)}, p99 ${shown(p99)}, worst ${shown(worst)}`
}

function listed(entries: Readonly<Record<string, string | number>>): string {
  const all = Object.entries(entries).map(([name, value]) => `${name} ${value}`)
  return all.length === 0 ? 'none' : all.join(', ')
}
