import type { RenewAnswer } from '../driver.ts'
import { StoreError } from '../errors.ts'
import { type Few, listOf, withOne, withoutOne } from '../few.ts'
import { MAX_RENEWAL_PAUSE_MS, MAX_RENEWALS_PER_TURN } from '../limits.ts'
import { dueAtMs, type Instant } from '../time/clock.ts'
import type { SchedulerEntry, Task } from '../time/scheduler.ts'
import { LeaseDeadline } from './deadline.ts'
import { type DueHeartbeat, HeartbeatQueue } from './heartbeat-queue.ts'
import {
  DRIVER_FAILED,
  type Heartbeat,
  type HeartbeatParts,
  loseIfDue,
  NOT_IN_STORE,
  NOT_RENEWED,
  type Renewable,
  type Renewer,
  type RenewerOptions,
  type RenewerStart,
  type RenewMode,
  TIMER_GRAIN_MS,
} from './renewer.ts'
import { type RenewalResult, type RenewalSender, SentRenewal } from './sent-renewal.ts'

/** The heartbeat on the event loop of the instance. */
export function createHeartbeat(parts: HeartbeatParts): LocalHeartbeat {
  const own = { ...parts, queue: new HeartbeatQueue(parts.clock) }
  return {
    createRenewer: (lease, start, options) => new LocalRenewer(own, lease, start, options),
    close: async () => {},
  }
}

export interface LocalHeartbeat extends Heartbeat {
  createRenewer(lease: Renewable, start: RenewerStart, options: RenewerOptions): LocalRenewer
}

interface RenewerParts extends HeartbeatParts {
  readonly queue: HeartbeatQueue
}

export class LocalRenewer implements Renewer, Task, DueHeartbeat, RenewalSender, RenewalResult {
  readonly keepsAlive = false
  readonly loss = NOT_RENEWED
  schedulerEntry: SchedulerEntry | undefined
  readonly #parts: RenewerParts
  readonly #lease: Renewable
  readonly #leaseDeadline: LeaseDeadline<SentRenewal>
  #hasHeartbeat: boolean
  /** When the heartbeat stops renewing (`maxHoldSeconds`), on the monotonic clock. */
  readonly #stopsAtMs: number
  /** The TTLs of the extensions in flight. A heartbeat that is sent at the same time must not shorten them. */
  #extensionsMs: number[] | undefined
  /** Extensions that set an end, until they are answered. */
  #sets: Few<Promise<boolean>>
  #renewAtMs = Number.POSITIVE_INFINITY
  /** When the one renewal to the full TTL is due, while the lease needs it. */
  #fullTtlAtMs = Number.POSITIVE_INFINITY
  /** A heartbeat is in the queue, and still wanted. */
  #isQueued = false
  /** The confirmation in flight, and the one that follows it. */
  #confirming: Promise<boolean | undefined> | undefined
  #confirmingNext: Promise<boolean | undefined> | undefined

  constructor(parts: RenewerParts, lease: Renewable, start: RenewerStart, options: RenewerOptions) {
    const { sent, answered, grantedMs } = start
    this.#parts = parts
    this.#lease = lease
    this.#leaseDeadline = new LeaseDeadline(start)
    this.#hasHeartbeat = options.heartbeat
    this.#stopsAtMs = sent.monotonicMs + options.maxHoldMs
    // A grant that arrived late, or that is shorter than the claim's TTL, is renewed once to the full TTL, even without
    // a heartbeat. That happens early enough that the renewal can fail twice.
    const fullTtlAtMs = this.deadline.monotonicMs - (Math.min(grantedMs, lease.ttlMs) * 2) / 3
    if (grantedMs < lease.ttlMs || fullTtlAtMs < answered.monotonicMs) this.#fullTtlAtMs = fullTtlAtMs
    this.#renewAtMs = this.#nextRenewal(answered)
    this.#schedule(answered)
  }

  get deadline(): Instant {
    return this.#leaseDeadline.deadline
  }

  get endsAtMs(): number {
    return this.#leaseDeadline.endsAtMs
  }

  get unansweredMs(): number {
    return this.#leaseDeadline.unansweredMs
  }

  due(now: Instant): void {
    const { scheduler, isPaused } = this.#parts
    if (loseIfDue(this.#lease, this, now)) return
    if (isPaused?.()) {
      scheduler.set(this, Math.min(dueAtMs(this.deadline, now), now.monotonicMs + PAUSED_MS))
      return
    }
    if (now.monotonicMs >= this.#stopsAtMs) this.#renewAtMs = Number.POSITIVE_INFINITY
    if (now.monotonicMs >= this.#renewAtMs) this.#queueHeartbeat(now)
    // Undefined if the lease expired meanwhile: a stall can come between any two statements.
    if (this.schedulerEntry !== undefined) this.#schedule(now)
  }

  sendHeartbeat(now: Instant): void {
    // The lease may have ended, or was extended, while the heartbeat was in the queue. It would undo the extension.
    if (!this.#isQueued) return
    this.#isQueued = false
    this.#send(this.#longest(this.#lease.ttlMs, now), HEARTBEAT, this, now)
  }

  async renew(ttlMs: number, mode: RenewMode): Promise<boolean> {
    this.#extensionsMs ??= []
    const extensionsMs = this.#extensionsMs
    extensionsMs.push(ttlMs)
    const work = mode === 'set' ? this.#set(ttlMs) : this.#lengthen(ttlMs)
    if (mode === 'set') this.#sets = withOne(this.#sets, work)
    try {
      return await work
    } finally {
      this.#sets = withoutOne(this.#sets, work)
      extensionsMs.splice(extensionsMs.indexOf(ttlMs), 1)
    }
  }

  async #set(ttlMs: number): Promise<boolean> {
    // A renewal of the heartbeat in flight could arrive after this one and undo what the caller asked for.
    await this.#lengtheningSettled()
    return this.#renewOnce(ttlMs, false)
  }

  async #lengthen(ttlMs: number): Promise<boolean> {
    // An extension that arrived after this one could set an end before it.
    while (this.#sets !== undefined) await Promise.allSettled(listOf(this.#sets))
    await this.#lengtheningSettled()
    const now = this.#parts.clock.now()
    const isLongEnough = dueAtMs(this.deadline, now) - now.monotonicMs >= ttlMs
    // Without a heartbeat, the last answer may be older than a forced release may go unnoticed.
    if (isLongEnough && this.#hasHeartbeat && now.monotonicMs < this.#stopsAtMs) return this.#lease.held
    return this.#renewOnce(this.#longest(ttlMs, now), true)
  }

  startHeartbeat(): void {
    if (this.#hasHeartbeat) return
    this.#hasHeartbeat = true
    const now = this.#parts.clock.now()
    this.#renewAtMs = this.#nextRenewal(now)
    this.#schedule(now)
  }

  stopHeartbeat(): void {
    if (!this.#hasHeartbeat) return
    this.#hasHeartbeat = false
    this.#isQueued = false
    const now = this.#parts.clock.now()
    this.#renewAtMs = this.#nextRenewal(now)
    this.#schedule(now)
  }

  /** Renewals that were sent and not answered. Undefined if there are none. */
  get inFlight(): Promise<unknown> | undefined {
    const { inFlight } = this.#leaseDeadline
    return inFlight && Promise.all(inFlight.map(({ settled }) => settled))
  }

  /** See `LeaseDeadline.inherit`. */
  inherit(unansweredMs: number): void {
    this.#leaseDeadline.inherit(unansweredMs)
  }

  /**
   * Confirms by a renewal. With a heartbeat it is an early heartbeat, otherwise it leaves the lease's end as it is. One
   * runs at a time, however many callers and messages ask for it. One that was sent before a call proves nothing to
   * that caller, so another one follows.
   */
  confirm(leastMs = 0): Promise<boolean | undefined> {
    if (this.#confirming === undefined) {
      this.#confirming = this.#confirm(leastMs).finally(() => {
        this.#confirming = undefined
      })
      return this.#confirming
    }
    this.#confirmingNext ??= this.#confirming
      .catch(() => undefined)
      .then(() => {
        this.#confirmingNext = undefined
        return this.confirm(leastMs)
      })
    return this.#confirmingNext
  }

  #confirm(leastMs: number): Promise<boolean | undefined> {
    const now = this.#parts.clock.now()
    const isHeartbeat = this.#hasHeartbeat && now.monotonicMs < this.#stopsAtMs
    const ttlMs = this.#longest(isHeartbeat ? this.#lease.ttlMs : leastMs, now)
    if (!this.#lease.held || ttlMs <= 0) return Promise.resolve(undefined)
    return new Promise((resolve, reject) => {
      const failed = (error: unknown): void => {
        this.failed(error)
        reject(error)
      }
      // Not whether the lease is held: it may have been handed over since the request.
      const done = (_isHeld: boolean, answer?: RenewAnswer): void => resolve(answer && answer !== 'lost')
      this.#send(ttlMs, { lengthens: true, confirms: true }, { done, failed }, now)
    })
  }

  end(): Promise<unknown> | undefined {
    this.#isQueued = false
    this.#parts.scheduler.clear(this)
    return this.inFlight
  }

  answered(renewal: SentRenewal, answer: RenewAnswer, now: Instant): boolean {
    const lease = this.#lease
    // The deadline is checked again: the answer may say "renewed" about a lease whose loss was already reported.
    if (!lease.held) return false
    if (answer === 'lost') {
      lease.lose(NOT_IN_STORE)
      return false
    }
    this.#leaseDeadline.confirmed(renewal)
    // A shorter renewal does not replace the one to the full TTL that a lease may need, unless it sets the end.
    if (renewal.ttlMs >= lease.ttlMs || !renewal.lengthens) this.#fullTtlAtMs = Number.POSITIVE_INFINITY
    if (this.#hasHeartbeat || !renewal.confirms) {
      this.#isQueued = false
      this.#renewAtMs = this.#nextRenewal(now)
    }
    this.#schedule(now)
    const { sent } = renewal
    this.#parts.events.heard('renewed')?.({ ...lease.eventBase, tookMs: now.monotonicMs - sent.monotonicMs })
    return true
  }

  unanswered(renewal: SentRenewal): void {
    this.#leaseDeadline.unanswered(renewal)
  }

  /** The result of a heartbeat. Whether the lease is held is already known. */
  done(): void {}

  failed(error: unknown): void {
    const lease = this.#lease
    // No event follows the loss of a lease.
    if (!lease.held) return
    // One failed renewal is not a loss: with a `StoreError` the result is unknown, and the next try may succeed. Any
    // other error would only happen again.
    if (!(error instanceof StoreError)) lease.lose({ ...DRIVER_FAILED, cause: error })
    else this.#parts.events.heard('renewalFailed')?.({ ...lease.eventBase, error })
  }

  /** Resolves when the renewals that are in flight now, and that an extension must not overtake, have settled. */
  #lengtheningSettled(): Promise<unknown> | undefined {
    const lengthening = this.#leaseDeadline.inFlight?.filter(({ lengthens }) => lengthens) ?? []
    return lengthening.length === 0 ? undefined : Promise.all(lengthening.map(({ settled }) => settled))
  }

  #queueHeartbeat(now: Instant): void {
    // The next try does not wait for the answer to this one: a renewal that hangs must not use up the lease.
    const jitter = 1 - this.#parts.random.fraction() * JITTER
    this.#renewAtMs = now.monotonicMs + Math.min(this.#lease.ttlMs / RETRIES_PER_TTL, MAX_RENEWAL_PAUSE_MS) * jitter
    if (this.#isQueued) return
    this.#isQueued = true
    this.#parts.queue.add(this, dueAtMs(this.deadline, now) - now.monotonicMs)
  }

  #renewOnce(ttlMs: number, lengthens: boolean): Promise<boolean> {
    return new Promise((done, failed) => {
      this.#send(ttlMs, { lengthens, confirms: false }, { done, failed }, this.#parts.clock.now())
    })
  }

  /**
   * A renewal that shortens no extension covers what is left of the lease, and the longest extension in flight. Later
   * extensions wait for it.
   */
  #longest(ttlMs: number, { monotonicMs }: Instant): number {
    const longestMs = Math.max(ttlMs, Math.ceil(this.endsAtMs - monotonicMs))
    return this.#extensionsMs?.reduce((longer, each) => Math.max(longer, each), longestMs) ?? longestMs
  }

  #send(
    ttlMs: number,
    { lengthens, confirms }: { readonly lengthens: boolean; readonly confirms: boolean },
    result: RenewalResult,
    now: Instant,
  ): void {
    const lease = this.#lease
    // A stalled process must not renew its way past a loss that it has not noticed.
    if (!lease.held) {
      result.done(false)
      return
    }
    const { deadline } = this
    const renewal = new SentRenewal(this, result, { sent: now, ttlMs, lengthens, confirms })
    this.#leaseDeadline.sending(renewal)
    if (this.deadline !== deadline) {
      // A renewal that shortens the lease may never be answered. So the next renewal moves to before the new deadline.
      this.#renewAtMs = Math.min(this.#renewAtMs, this.#nextRenewal(now))
      this.#schedule(now)
    }
    const { lockName, claimId, fencingToken } = lease.ref
    this.#parts.store.renewals.add({ lockName, claimId, fencingToken, ttlMs }, renewal)
  }

  /**
   * The next renewal is due when two thirds of the TTL are left, rounded down to the scheduler's grid. If less than the
   * TTL is left anyway, it is due after a third of what is left: a renewal that proved less than its TTL must not be
   * followed by the next one at once. It is due after 5 s at the latest: it is how a holder learns of a forced release.
   */
  #nextRenewal(now: Instant): number {
    if (!this.#hasHeartbeat) return this.#fullTtlAtMs
    const { random, scheduler } = this.#parts
    const { ttlMs } = this.#lease
    const endMs = dueAtMs(this.deadline, now)
    const remainingMs = Math.max(1, Math.min(ttlMs, endMs - now.monotonicMs))
    const jitter = random.fraction() * JITTER
    const soonMs = now.monotonicMs + MAX_RENEWAL_PAUSE_MS * (1 - jitter)
    const dueMs = Math.min(soonMs, endMs - remainingMs * (2 / 3 + jitter))
    // So many leases that those of one step would take more than two turns have smaller steps: they are spread.
    const points = Math.max(GRID_POINTS, (1.5 * scheduler.size) / MAX_RENEWALS_PER_TURN)
    // Steps are powers of two, so that leases with slightly different remaining times share a grid.
    const stepMs = 2 ** Math.floor(Math.log2(Math.min(remainingMs, 3 * MAX_RENEWAL_PAUSE_MS) / points))
    return Math.min(this.#fullTtlAtMs, scheduler.round(dueMs, stepMs))
  }

  #schedule(now: Instant): void {
    const { scheduler, onDeadline } = this.#parts
    onDeadline?.(this.#lease, this.deadline)
    scheduler.set(this, Math.min(dueAtMs(this.deadline, now) - TIMER_GRAIN_MS, this.#renewAtMs))
  }
}

const HEARTBEAT = { lengthens: true, confirms: false }

/** Grid points per TTL, at least. Leases with the same TTL are renewed at the same few moments, in one batch each. */
const GRID_POINTS = 12
/** A renewal without an answer is repeated after a ninth of the TTL or sooner: six tries or more before it ends. */
const RETRIES_PER_TTL = 9
const JITTER = 0.05
/** How soon a paused renewer checks again whether it may renew. */
const PAUSED_MS = 100
