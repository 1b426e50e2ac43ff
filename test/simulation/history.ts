import type { Lease } from '../../src/core/lease/lease.ts'
import type { Instant } from '../../src/core/time/clock.ts'
import type { VirtualClock, VirtualTime } from '../../src/testing/virtual-clock.ts'
import { type Job, type Plan, usualMs } from './plan.ts'

/** One process of a history, as the rules see it. */
export interface SimulatedProcess {
  readonly name: string
  /** Whether acquiring a lock that the process holds extends its lease (`reacquire: 'extend'`). */
  readonly reacquires: boolean
  readonly clock: VirtualClock
  /** Jobs whose call for a lock has not been answered. With `reacquires`, one of them may be joining a lease. */
  readonly asking: Set<Job>
}

/** One claim of a job, from its first request on. */
export interface ClaimRecord {
  readonly claimId: string
  readonly lockName: string
  readonly job: Job
  readonly process: SimulatedProcess
  /** Requests that have neither been answered nor timed out, by when they were sent. */
  readonly asking: Instant[]
  firstAsk: Instant
  lastAsk: Instant
  lastAnsweredAsk: Instant | undefined
  asks: number
  /** When the store last gave it a lease or a place in the queue. */
  keptMs: number
  /** How many requests had been sent when the last release was sent. */
  releasedAfterAsks: number
  endedByStore: boolean
  /** How many releases were sent, and whether one was answered. */
  releases: number
  releaseAnswered: boolean
  /**
   * The store answered the first release, before the lease's own end, that the lease had ended. That is a loss, and
   * must be reported. `perhaps`: it answered so later, or to a later release, or to a renewal that may be a release
   * (`minHoldSeconds`).
   */
  releaseRefused: 'no' | 'perhaps' | 'yes'
  /** When a release was last sent, or done by the store. */
  releasedMs: number
  /** When the store last gave it a lease or a place in the queue that its process learned of after it was over. */
  keptForNobodyMs: number | undefined
  /** It was refused or given up, or its lease has ended. */
  over: 'refused' | 'given up' | 'released' | 'lost' | undefined
  overSinceMs: number
  lease: LeaseTrack | undefined
}

/** One lease as its holder sees it, and as it should be by the rules. */
export interface LeaseTrack {
  /** One of its uses. */
  lease: Lease
  /**
   * All of its uses, with their signals. With `reacquire: 'extend'` one claim has several. The signals are kept,
   * because reading one again would abort it.
   */
  readonly uses: Map<Lease, AbortSignal>
  /** The signal of the use that was released last. If there is no other use, its release is that of the lease. */
  lastReleased: AbortSignal | undefined
  readonly claim: ClaimRecord
  /** The grant and the renewals that the store may have done last. A later answered one replaces the earlier ones. */
  confirmed: Confirmed[]
  /** The shortest TTL that was ever asked for: a request without an answer may still take effect. */
  shortestMs: number
  /** The request that took effect was not sent before this. */
  readonly earliestSent: Instant
  /** … and not after this. */
  readonly latestSent: Instant
  readonly beganMs: number
  /** The store said that it has ended. */
  refuted: boolean
  /** How often the job itself has asked for a new end. */
  extensions: number
  readonly renewalsMs: number[]
}

export interface Confirmed {
  readonly sent: Instant
  /** As `sent`, if that is only known to lie between two requests. */
  readonly earliest: Instant
  readonly ttlMs: number
  readonly answeredMs: number
}

export interface Counts {
  events: number
  calls: number
  grants: number
  handedOver: number
  losses: number
  givenUp: number
  lateAnswers: number
  refusedWrites: number
  jobs: number
  hammered: number
}

/** What happened in one run, and every rule that it broke. */
export class History {
  readonly plan: Plan
  readonly time: VirtualTime
  readonly violations: string[] = []
  readonly trace: string[] = []
  readonly claims = new Map<string, ClaimRecord>()
  readonly claimsByJob = new Map<Job, ClaimRecord>()
  /** Leases that their holders have not ended, by lock name. */
  readonly held = new Map<string, Set<LeaseTrack>>()
  /** When the jobs that still wait began to wait, by lock name. */
  readonly waiting = new Map<string, Map<Job, number>>()
  readonly counts: Counts = {
    events: 0,
    calls: 0,
    grants: 0,
    handedOver: 0,
    losses: 0,
    givenUp: 0,
    lateAnswers: 0,
    refusedWrites: 0,
    jobs: 0,
    hammered: 0,
  }
  readonly #tracing: boolean
  readonly #grants = new Map<string, { readonly claimId: string; readonly turn: number }>()

  constructor(plan: Plan, time: VirtualTime, tracing: boolean) {
    this.plan = plan
    this.time = time
    this.#tracing = tracing
  }

  /** Formatted only if the log is kept. */
  note(what: () => string): void {
    if (this.#tracing) this.trace.push(`${this.time.nowMs.toFixed(2).padStart(9)}  ${what()}`)
  }

  violate(rule: string, detail: string): void {
    const text = `at ${this.time.nowMs.toFixed(2)} ms: ${rule}: ${detail}`
    if (this.violations.length < 20) this.violations.push(text)
    this.note(() => `VIOLATION ${text}`)
  }

  /** The store has granted a lease to a claim. */
  granted(claim: { readonly lockName: string; readonly claimId: string }, fencingToken: number): void {
    this.counts.grants += 1
    this.#grants.set(`${claim.lockName} ${fencingToken}`, { claimId: claim.claimId, turn: this.counts.grants })
  }

  claimOf(lease: Lease): ClaimRecord | undefined {
    const grant = this.#grants.get(`${lease.lockName} ${lease.fencingToken}`)
    return grant && this.claims.get(grant.claimId)
  }

  /** The number of this grant in the order of all grants. */
  turnOf(lease: Lease): number {
    return this.#grants.get(`${lease.lockName} ${lease.fencingToken}`)?.turn ?? 0
  }

  heldOn(lockName: string): Set<LeaseTrack> {
    const held = this.held.get(lockName) ?? new Set()
    this.held.set(lockName, held)
    return held
  }

  waitingFor(lockName: string): Map<Job, number> {
    const waiting = this.waiting.get(lockName) ?? new Map<Job, number>()
    this.waiting.set(lockName, waiting)
    return waiting
  }

  /** From this moment on nothing fails any more, and nothing that failed is still in flight. */
  get quietFromMs(): number {
    return this.plan.kind === 'calm' ? 0 : this.plan.faultsEndMs + this.plan.faults.lateMs[1]
  }

  /** How long a lock may stay free while a claim waits for it and nothing fails. */
  get longestIdleMs(): number {
    const { kind, mode } = this.plan
    const woken = mode === 'queue' || mode === 'hands over'
    return kind === 'calm' && woken ? this.#wayMs : this.longestUnheardMs
  }

  /** The same without wake-ups: polling is slow, a call may hang, and a waiter in front may be dead. */
  get longestUnheardMs(): number {
    const { callTimeoutMs, waiterTtlMs } = this.plan
    return this.#wayMs + SLOWEST_POLL_MS + 2 * callTimeoutMs + waiterTtlMs
  }

  get #wayMs(): number {
    return 6 * usualMs(this.plan) + 20
  }
}

/** The largest backoff of waiters. */
const SLOWEST_POLL_MS = 1_000

export const describe = (claim: ClaimRecord): string =>
  `${claim.process.name}'s ${claim.claimId} on "${claim.lockName}"`
