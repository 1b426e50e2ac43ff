import type { FallingToken, Overlap } from './check.ts'
import type { DoneFault, Episode } from './episode.ts'
import type { LeaseHistory } from './history.ts'

export interface Report {
  scenario: string
  seed: string
  /** Time under faults, over all episodes. */
  seconds: number
  episodes: number
  versions: Record<string, string>
  claims: number
  grants: number
  refused: number
  /** Leases that ended before their holder released them, including those that were left to expire. */
  lost: number
  overlaps: number
  excusedOverlaps: number
  fallingTokens: number
  /** Leases that were held again after their loss had been signalled. */
  resurrected: number
  /** Grants to clients of each language. */
  grantsByLanguage: Record<string, number>
  /** Writes to the records, and those that the records refused by their token. */
  writes: number
  refusedWrites: number
  lostUpdates: string[]
  /** Queues of clients after the faults that were served in another order than that of their arrival. */
  queues: number
  wrongQueues: string[]
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
}

/** A violation, and what happened around it. */
export interface Violation {
  what: 'overlap' | 'excused overlap' | 'falling token'
  /** The `--seed` and `--episode` that run it again. */
  episode: string
  lockName: string
  text: string
  /** Seconds since the start of the episode. */
  leases: Record<string, string | number>[]
  faults: Record<string, unknown>[]
}

/** The report has the details of this many violations. */
const MAX_VIOLATIONS = 20
/** The time around a violation that the report shows. */
const BEFORE_MS = 12_000
const AFTER_MS = 3_000

export class Tally {
  readonly #report: Report

  constructor(scenario: string, seed: string, versions: Record<string, string>) {
    this.#report = {
      scenario,
      seed,
      seconds: 0,
      episodes: 0,
      versions,
      claims: 0,
      grants: 0,
      refused: 0,
      lost: 0,
      overlaps: 0,
      excusedOverlaps: 0,
      fallingTokens: 0,
      resurrected: 0,
      grantsByLanguage: {},
      writes: 0,
      refusedWrites: 0,
      lostUpdates: [],
      queues: 0,
      wrongQueues: [],
      faults: 0,
      faultsByKind: {},
      skippedFaults: {},
      errors: {},
      unexpectedErrors: [],
      problems: [],
      load: {},
      violations: [],
    }
  }

  add(episode: Episode): void {
    const report = this.#report
    const { overlaps, excused, falling } = episode.verdict
    report.seconds += episode.seconds
    report.episodes += 1
    report.versions['server'] = episode.serverVersion
    report.claims += episode.claims
    report.grants += episode.leases.length
    report.refused += episode.refused
    report.lost += episode.leases.filter(({ end }) => end === 'lost').length
    report.overlaps += overlaps.length
    report.excusedOverlaps += excused.length
    report.fallingTokens += falling.length
    report.resurrected += episode.resurrected.length
    for (const { id } of episode.leases) {
      const { language = 'node' } = episode.setting.clients[Number.parseInt(id, 10)]?.settings ?? {}
      count(report.grantsByLanguage, language, 1)
    }
    for (const record of episode.records.filter(({ isChecked }) => isChecked)) {
      report.writes += record.writes
      report.refusedWrites += record.refused
      report.lostUpdates.push(...record.lostUpdates.map((text) => `"${record.name}": ${text}`))
      if (record.value !== record.writes) {
        report.lostUpdates.push(`"${record.name}": ${record.writes} writes, but its value is ${record.value}`)
      }
    }
    if (episode.queue.length > 0) report.queues += 1
    const isWrong = episode.queue.some(({ token }, at) => at > 0 && token <= (episode.queue[at - 1]?.token ?? 0))
    if (isWrong) report.wrongQueues.push(`episode ${episode.seed}: ${JSON.stringify(episode.queue)}`)
    report.faults += episode.done.length
    for (const { fault } of episode.done) count(report.faultsByKind, fault.kind, 1)
    for (const [kind, times] of Object.entries(episode.skipped)) count(report.skippedFaults, kind, times)
    for (const [code, times] of Object.entries(episode.errors)) count(report.errors, code, times)
    for (const text of episode.unexpected) {
      if (!report.unexpectedErrors.includes(text)) report.unexpectedErrors.push(text)
    }
    report.problems.push(...episode.problems.map((problem) => `episode ${episode.seed}: ${problem}`))
    for (const violation of violationsOf(episode)) {
      if (report.violations.length < MAX_VIOLATIONS) report.violations.push(violation)
    }
  }

  /** Records an episode that the harness itself could not finish. */
  failed(seed: string, error: unknown): void {
    this.#report.problems.push(`episode ${seed} failed: ${error instanceof Error ? error.stack : error}`)
  }

  /** `cpuSeconds` is the processor time of each group of processes in `tookSeconds`. */
  finish(cpuSeconds: Readonly<Record<string, number>>, tookSeconds: number): Report {
    for (const [group, seconds] of Object.entries(cpuSeconds)) {
      this.#report.load[group] = `${((100 * seconds) / tookSeconds).toFixed(1)} %`
    }
    return this.#report
  }

  /** The results so far. */
  get report(): Readonly<Report> {
    return this.#report
  }
}

/** 0: nothing broke. 1: an invariant broke. 2: the run proves nothing. */
export function exitCodeOf(report: Report): 0 | 1 | 2 {
  const { overlaps, fallingTokens, resurrected, lostUpdates, wrongQueues } = report
  if (overlaps + fallingTokens + resurrected + lostUpdates.length + wrongQueues.length > 0) return 1
  return report.problems.length > 0 || report.grants === 0 || report.faults === 0 ? 2 : 0
}

export function tableOf(report: Report): string {
  const { scenario, seed, seconds, episodes } = report
  const lines: (readonly [string, string])[] = [
    ['run', `${scenario}, seed ${seed}, ${Math.round(seconds)} s under faults in ${episodes} episodes`],
    ['versions', listed(report.versions)],
    ['claims', `${report.claims}, of which ${report.refused} were refused`],
    ['grants', `${report.grants}, of which ${report.lost} were lost or left to expire`],
    ['faults', `${report.faults}: ${listed(report.faultsByKind)}`],
    ['skipped', listed(report.skippedFaults)],
    ['errors', listed(report.errors)],
    ['load', `${listed(report.load)} of one core`],
    ['overlaps', `${report.overlaps}${report.excusedOverlaps > 0 ? `, and ${report.excusedOverlaps} excused` : ''}`],
    ['falling tokens', String(report.fallingTokens)],
    ['resurrected', String(report.resurrected)],
    ...(report.writes > 0
      ? ([
          ['languages', listed(report.grantsByLanguage)],
          ['record', `${report.writes} writes, ${report.refusedWrites} refused, ${report.lostUpdates.length} lost`],
          ['queues', `${report.queues}, of which ${report.wrongQueues.length} were served in another order`],
        ] as const)
      : []),
    ['problems', String(report.problems.length)],
  ]
  const table = lines.map(([name, text]) => `${name.padEnd(16)}${text}`)
  const more = [
    ...report.unexpectedErrors.map((text) => `unexpected error: ${text}`),
    ...report.problems.map((text) => `problem: ${text}`),
    ...report.lostUpdates.map((text) => `lost update: ${text}`),
    ...report.wrongQueues.map((text) => `wrong order: ${text}`),
    ...report.violations.map(({ what, episode, text }) => `${what} in episode ${episode}: ${text}`),
  ]
  return [...table, ...more, ''].join('\n')
}

function violationsOf(episode: Episode): Violation[] {
  const { overlaps, excused, falling } = episode.verdict
  const overlap = (what: Violation['what'], { first, second, forMs }: Overlap): Violation => ({
    ...around(episode, first, second),
    what,
    text: `${first.id} and ${second.id} both held "${first.name}" for ${forMs.toFixed(1)} ms`,
  })
  const fall = ({ before, after }: FallingToken): Violation => ({
    ...around(episode, before, after),
    what: 'falling token',
    text: `${after.id} got the token ${after.token} for "${after.name}" after ${before.id} had got ${before.token}`,
  })
  return [
    ...overlaps.map((each) => overlap('overlap', each)),
    ...falling.map(fall),
    ...excused.map((each) => overlap('excused overlap', each)),
  ]
}

function around(episode: Episode, a: LeaseHistory, b: LeaseHistory): Omit<Violation, 'what' | 'text'> {
  const startMs = Math.min(...episode.done.map(({ fromMs }) => fromMs), ...episode.leases.map(({ askedAt }) => askedAt))
  const seconds = (ms: number): number => Math.round(ms - startMs) / 1_000
  const fromMs = Math.max(a.knownAt, b.knownAt) - BEFORE_MS
  const toMs = Math.max(a.heldUntil ?? a.knownAt, b.heldUntil ?? b.knownAt) + AFTER_MS
  const isNear = ({ name, knownAt, heldUntil = knownAt }: LeaseHistory): boolean =>
    name === a.name && heldUntil >= fromMs && knownAt <= toMs
  return {
    episode: episode.seed,
    lockName: a.name,
    leases: episode.leases
      .filter(isNear)
      .sort((one, other) => one.knownAt - other.knownAt)
      .map((lease) => ({
        id: lease.id,
        is: lease === a ? 'first' : lease === b ? 'second' : '',
        token: lease.token,
        ttlSeconds: Math.round(lease.ttlMs) / 1_000,
        asked: seconds(lease.askedAt),
        known: seconds(lease.knownAt),
        heldUntil: lease.heldUntil === undefined ? 'never' : seconds(lease.heldUntil),
        end: lease.end,
      })),
    faults: episode.done
      .filter((done) => done.toMs >= fromMs && done.fromMs <= toMs)
      .map((done) => shown(done, seconds)),
  }
}

function shown({ fault, fromMs, toMs }: DoneFault, seconds: (ms: number) => number): Record<string, unknown> {
  const { atMs: _, ...rest } = fault
  return { from: seconds(fromMs), to: seconds(toMs), ...rest }
}

function count(counts: Record<string, number>, key: string, times: number): void {
  counts[key] = (counts[key] ?? 0) + times
}

function listed(entries: Readonly<Record<string, string | number>>): string {
  const all = Object.entries(entries).map(([name, value]) => `${name} ${value}`)
  return all.length === 0 ? 'none' : all.join(', ')
}
