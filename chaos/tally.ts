import { CHECKS, judge } from './checks/judge.ts'
import { keptOf } from './checks/kept.ts'
import { growthOf } from './checks/memory.ts'
import { overtaken } from './checks/order.ts'
import type { Finding, Run } from './checks/run.ts'
import { percentile, type SignalTimes, signalTimes } from './checks/signal.ts'
import type { Episode } from './episode.ts'
import { clientOf } from './history.ts'
import { checkLeases } from './linear/leases.ts'
import type { Report, Times } from './report.ts'
import { violationOf } from './violation.ts'

/** The report has the details of this many violations of each check. */
const MAX_VIOLATIONS = 5
const LINEARIZABLE = 'linearizability'

/** Judges episodes, and adds them up to a report. */
export class Tally {
  readonly #report: Report
  readonly #signals: SignalTimes = { running: [], stalled: [] }

  constructor(scenario: string, seed: string, versions: Record<string, string>) {
    this.#report = {
      scenario,
      seed,
      seconds: 0,
      episodes: 0,
      versions,
      claims: 0,
      grants: 0,
      grantsByKind: {},
      grantsByLanguage: {},
      refused: 0,
      lost: 0,
      rateSteps: { allowed: 0, all: 0 },
      checks: Object.fromEntries([...CHECKS.map(({ name }) => name), LINEARIZABLE].map((name) => [name, 0])),
      excused: {},
      overlaps: 0,
      excusedOverlaps: 0,
      fallingTokens: 0,
      resurrected: 0,
      writes: 0,
      refusedWrites: 0,
      lostUpdates: [],
      unchecked: { writes: 0, lost: 0, lostAfterCheck: 0 },
      signals: { running: { count: 0 }, stalled: { count: 0 } },
      kept: { leases: 0, claims: 0 },
      orderedPairs: 0,
      queues: 0,
      linear: { operations: 0, windows: 0, undecided: [] },
      memoryGrowthBytes: 0,
      faults: 0,
      faultsByKind: {},
      skippedFaults: {},
      errors: {},
      unexpectedErrors: [],
      problems: [],
      load: {},
      violations: [],
      excusedViolations: [],
    }
  }

  /** Returns what the checks have found in the episode. */
  add(episode: Episode): Finding[] {
    const run = runOf(episode)
    this.#addWork(episode)
    this.#addFaults(episode)
    this.#addMeasures(run)
    const findings = [...judge(run), ...this.#linear(episode, run)]
    const report = this.#report
    for (const finding of findings) {
      const [counts, shown] = finding.isExcused
        ? [report.excused, report.excusedViolations]
        : [report.checks, report.violations]
      count(counts, finding.check, 1)
      if ((counts[finding.check] ?? 0) <= MAX_VIOLATIONS) shown.push(violationOf(episode, finding))
    }
    const { overlaps, excused, falling } = episode.verdict
    report.overlaps += overlaps.length
    report.excusedOverlaps += excused.length
    report.fallingTokens += falling.length
    report.resurrected += episode.resurrected.length
    return findings
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

  #addWork(episode: Episode): void {
    const report = this.#report
    report.seconds += episode.seconds
    report.episodes += 1
    report.versions['server'] = episode.serverVersion
    report.claims += episode.claims
    report.grants += episode.leases.length
    report.refused += episode.refused
    report.lost += episode.leases.filter(({ end }) => end === 'lost').length
    for (const { id, kind = 'lock' } of episode.leases) {
      const { language = 'node' } = episode.setting.clients[clientOf(id)]?.settings ?? {}
      count(report.grantsByLanguage, language, 1)
      count(report.grantsByKind, kind, 1)
    }
    for (const { rates } of episode.histories) {
      report.rateSteps.all += rates.length
      report.rateSteps.allowed += rates.filter(({ allowed }) => allowed === true).length
    }
    for (const { name, isChecked, writes, refused, lostUpdates, lostAfterCheck } of episode.records) {
      if (isChecked) {
        report.writes += writes
        report.refusedWrites += refused
        report.lostUpdates.push(...lostUpdates.map((text) => `"${name}": ${text}`))
      } else {
        report.unchecked.writes += writes
        report.unchecked.lost += lostUpdates.length
        report.unchecked.lostAfterCheck += lostAfterCheck
      }
    }
    if (episode.queue.length > 0) report.queues += 1
  }

  #addFaults(episode: Episode): void {
    const report = this.#report
    report.faults += episode.done.length
    for (const { fault } of episode.done) count(report.faultsByKind, fault.kind, 1)
    for (const [kind, times] of Object.entries(episode.skipped)) count(report.skippedFaults, kind, times)
    for (const [code, times] of Object.entries(episode.errors)) count(report.errors, code, times)
    for (const text of episode.unexpected) {
      if (!report.unexpectedErrors.includes(text)) report.unexpectedErrors.push(text)
    }
    report.problems.push(...episode.problems.map((problem) => `episode ${episode.seed}: ${problem}`))
  }

  #addMeasures(run: Run): void {
    const report = this.#report
    const { running, stalled } = signalTimes(run)
    this.#signals.running.push(...running)
    this.#signals.stalled.push(...stalled)
    report.signals = { running: timesOf(this.#signals.running), stalled: timesOf(this.#signals.stalled) }
    const { leases, claims } = keptOf(run)
    report.kept.leases += leases
    report.kept.claims += claims
    report.orderedPairs += overtaken(run).pairs
    for (const history of run.histories) {
      report.memoryGrowthBytes = Math.max(report.memoryGrowthBytes, growthOf(history)?.bytes ?? 0)
    }
  }

  #linear({ leases, seed }: Episode, { losses }: Run): Finding[] {
    const { operations, windows, violations, undecided } = checkLeases(leases, losses)
    const { linear } = this.#report
    linear.operations += operations
    linear.windows += windows
    linear.undecided.push(...undecided.map((text) => `episode ${seed}: ${text}`))
    return violations.map((text) => ({ check: LINEARIZABLE, text }))
  }
}

function runOf({ histories, done, losses, spared, stalls, records, queue, left, setting }: Episode): Run {
  const settings = setting.clients.map((client) => client.settings)
  const longest = (seconds: readonly number[]): number => Math.max(0, ...seconds) * 1_000
  return {
    histories,
    faults: done,
    losses,
    spared,
    stalls,
    records,
    queue,
    left,
    hasQueue: settings.every(({ driver }) => driver !== 'redlock' && driver !== 'advisory'),
    callTimeoutMs: longest(settings.map(({ callTimeoutSeconds }) => callTimeoutSeconds)),
    waiterTtlMs: Math.min(...settings.map(({ waiterTtlSeconds }) => waiterTtlSeconds * 1_000)),
    longestTtlMs: setting.longestTtlMs,
  }
}

function timesOf(values: readonly number[]): Times {
  const [p50, p99, worst] = [percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)]
  if (p50 === undefined || p99 === undefined || worst === undefined) return { count: 0 }
  return { count: values.length, p50, p99, worst }
}

function count(counts: Record<string, number>, key: string, times: number): void {
  counts[key] = (counts[key] ?? 0) + times
}
