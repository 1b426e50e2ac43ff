import type { RenewAnswer } from '../driver.ts'
import { StoreError } from '../errors.ts'
import { MAX_RENEWALS_PER_TURN } from '../limits.ts'
import { dueAtMs, type Instant } from '../time/clock.ts'
import type { SchedulerEntry, Task } from '../time/scheduler.ts'
import { LeaseDeadline } from './deadline.ts'
import { type DueHeartbeat, HeartbeatQueue } from './heartbeat-queue.ts'
import {
  type Heartbeat,
  type HeartbeatParts,
  loseIfDue,
  NOT_IN_STORE,
  type Renewable,
  type Renewer,
  type RenewerOptions,
  type RenewerStart,
  type RenewMode,
  TIMER_GRAIN_MS,
} from './renewer.ts'
import { type RenewalResult, type RenewalSender, SentRenewal } from './sent-renewal.ts'

/** The heartbeat on the event loop of the instance. */
export function createHeartbeat(parts: HeartbeatParts): Heartbeat {
  const own = { ...parts, queue: new HeartbeatQueue(parts.clock) }
  return {
    createRenewer: (lease, start, options) => new LocalRenewer(own, lease, start, options),
    close: async () => {},
  }
}

interface RenewerParts extends HeartbeatParts {
  readonly queue: HeartbeatQueue
}

class LocalRenewer implements Renewer, Task, DueHeartbeat, RenewalSender, RenewalResult {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly #parts: RenewerParts
  readonly #lease: Renewable
  readonly #leaseDeadline: LeaseDeadline<SentRenewal>
  #hasHeartbeat: boolean
  /** When the heartbeat stops renewing (`maxHoldSeconds`), on the monotonic clock. */
  readonly #stopsAtMs = Number.POSITIVE_INFINITY
  /** The TTLs of the extensions in flight. A heartbeat that is sent at the same time must not shorten them. */
  #extensionsMs: number[] | undefined
  #renewAtMs = Number.POSITIVE_INFINITY
  /** A heartbeat is in the queue, and still wanted. */
  #isQueued = false
  #checking: 'once' | 'again' | undefined

  constructor(parts: RenewerParts, lease: Renewable, start: RenewerStart, options: RenewerOptions) {
    const { sent, answered, grantedMs } = start
    this.#parts = parts
    this.#lease = lease
    this.#leaseDeadline = new LeaseDeadline(start)
    this.#hasHeartbeat = options.heartbeat
    this.#stopsAtMs = sent.monotonicMs + options.maxHoldMs
    this.#renewAtMs = this.#nextRenewal(answered)
    // A grant that arrived late, or that is shorter than the claim's TTL, is renewed once to the full TTL, even without
    // a heartbeat. That happens early enough that the renewal can fail twice.
    const fullTtlAtMs = this.deadline.monotonicMs - (Math.min(grantedMs, lease.ttlMs) * 2) / 3
    if (grantedMs < lease.ttlMs || fullTtlAtMs < answered.monotonicMs) {
      this.#renewAtMs = Math.min(this.#renewAtMs, fullTtlAtMs)
    }
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
    if (loseIfDue(this.#lease, this.deadline, now)) return
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
    this.#send(this.#longest(this.#lease.ttlMs), true, this, now)
  }

  async renew(ttlMs: number, mode: RenewMode): Promise<boolean> {
    this.#extensionsMs ??= []
    const extensionsMs = this.#extensionsMs
    extensionsMs.push(ttlMs)
    try {
      // A renewal of the heartbeat in flight could arrive after this one and undo what the caller asked for.
      await this.#lengtheningSettled()
      if (mode === 'set') return await this.#renewOnce(ttlMs, false)
      const now = this.#parts.clock.now()
      if (dueAtMs(this.deadline, now) - now.monotonicMs >= ttlMs) return this.#lease.held
      return await this.#renewOnce(this.#longest(ttlMs), true)
    } finally {
      extensionsMs.splice(extensionsMs.indexOf(ttlMs), 1)
    }
  }

  startHeartbeat(): void {
    if (this.#hasHeartbeat) return
    this.#hasHeartbeat = true
    const now = this.#parts.clock.now()
    this.#renewAtMs = this.#nextRenewal(now)
    this.#schedule(now)
  }

  /**
   * Checks by a renewal: with a heartbeat it is an early heartbeat, otherwise it leaves the end of the lease unchanged.
   * One check runs at a time, however many messages arrive. A check that was sent before a message says nothing about
   * that message, so another check follows.
   */
  check(): void {
    if (this.#checking !== undefined) {
      this.#checking = 'again'
      return
    }
    const nowMs = this.#parts.clock.now().monotonicMs
    const isHeartbeat = this.#hasHeartbeat && nowMs < this.#stopsAtMs
    const ttlMs = isHeartbeat ? this.#lease.ttlMs : this.endsAtMs - nowMs
    if (!this.#lease.held || ttlMs <= 0) return
    this.#checking = 'once'
    const renewAtMs = this.#renewAtMs
    const checked = (): void => {
      if (!isHeartbeat) this.#renewAtMs = renewAtMs
      const again = this.#checking === 'again'
      this.#checking = undefined
      if (again) this.check()
    }
    const failed = (error: unknown): void => {
      this.failed(error)
      checked()
    }
    this.#send(this.#longest(ttlMs), true, { renewed: checked, failed }, this.#parts.clock.now())
  }

  end(): Promise<unknown> | undefined {
    this.#isQueued = false
    this.#parts.scheduler.clear(this)
    return this.#lengtheningSettled()
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
    this.#isQueued = false
    this.#renewAtMs = this.#nextRenewal(now)
    this.#schedule(now)
    const { sent } = renewal
    this.#parts.events.emit('renewed', () => ({ ...lease.eventBase, tookMs: now.monotonicMs - sent.monotonicMs }))
    return true
  }

  unanswered(renewal: SentRenewal): void {
    this.#leaseDeadline.unanswered(renewal)
  }

  /** The result of a heartbeat. Whether the lease is held is already known. */
  renewed(): void {}

  failed(error: unknown): void {
    const lease = this.#lease
    // No event follows the loss of a lease.
    if (!lease.held) return
    // One failed renewal is not a loss: with a `StoreError` the result is unknown, and the next try may succeed. Any
    // other error would only happen again.
    if (!(error instanceof StoreError)) lease.lose('the driver failed to renew it', error)
    else this.#parts.events.emit('renewalFailed', () => ({ ...lease.eventBase, error }))
  }

  /** Resolves when the renewals that are in flight now, and that an extension must not overtake, have settled. */
  #lengtheningSettled(): Promise<unknown> | undefined {
    const lengthening = this.#leaseDeadline.inFlight?.filter(({ lengthens }) => lengthens) ?? []
    return lengthening.length === 0 ? undefined : Promise.all(lengthening.map(({ settled }) => settled))
  }

  #queueHeartbeat(now: Instant): void {
    // The next try does not wait for the answer to this one: a renewal that hangs must not use up the lease.
    const jitter = 1 - this.#parts.random.fraction() * JITTER
    this.#renewAtMs = now.monotonicMs + (this.#lease.ttlMs / RETRIES_PER_TTL) * jitter
    if (this.#isQueued) return
    this.#isQueued = true
    this.#parts.queue.add(this, dueAtMs(this.deadline, now) - now.monotonicMs)
  }

  #renewOnce(ttlMs: number, lengthens: boolean): Promise<boolean> {
    return new Promise((renewed, failed) => {
      this.#send(ttlMs, lengthens, { renewed, failed }, this.#parts.clock.now())
    })
  }

  /** A renewal that shortens no extension covers the longest one in flight. Later extensions wait for it. */
  #longest(ttlMs: number): number {
    return this.#extensionsMs === undefined ? ttlMs : Math.max(ttlMs, ...this.#extensionsMs)
  }

  #send(ttlMs: number, lengthens: boolean, result: RenewalResult, now: Instant): void {
    const lease = this.#lease
    // A stalled process must not renew its way past a loss that it has not noticed.
    if (!lease.held) {
      result.renewed(false)
      return
    }
    const { deadline } = this
    const renewal = new SentRenewal(this, result, { sent: now, ttlMs, lengthens })
    this.#leaseDeadline.sending(renewal)
    if (this.deadline !== deadline) {
      // A renewal that shortens the lease may never be answered. So the next renewal moves to before the new deadline.
      this.#renewAtMs = Math.min(this.#renewAtMs, this.#nextRenewal(now))
      this.#schedule(now)
    }
    const { lockName, claimId, fencingToken } = lease.ref
    this.#parts.store.sendRenewal({ lockName, claimId, fencingToken, ttlMs }, renewal)
  }

  /**
   * The next renewal is due when two thirds of the TTL are left, rounded down to the scheduler's grid. If less than the
   * TTL is left anyway, it is due after a third of what is left: a renewal that proved less than its TTL must not be
   * followed by the next one at once.
   */
  #nextRenewal(now: Instant): number {
    if (!this.#hasHeartbeat) return Number.POSITIVE_INFINITY
    const { random, scheduler } = this.#parts
    const { ttlMs } = this.#lease
    const endMs = dueAtMs(this.deadline, now)
    const remainingMs = Math.max(1, Math.min(ttlMs, endMs - now.monotonicMs))
    const dueMs = endMs - remainingMs * (2 / 3 + random.fraction() * JITTER)
    // So many leases that those of one step would take more than two turns have smaller steps: they are spread.
    const points = Math.max(GRID_POINTS, (1.5 * scheduler.size) / MAX_RENEWALS_PER_TURN)
    // Steps are powers of two, so that leases with slightly different remaining times share a grid.
    return scheduler.round(dueMs, 2 ** Math.floor(Math.log2(remainingMs / points)))
  }

  #schedule(now: Instant): void {
    const { scheduler, onDeadline } = this.#parts
    onDeadline?.(this.#lease, this.deadline)
    scheduler.set(this, Math.min(dueAtMs(this.deadline, now) - TIMER_GRAIN_MS, this.#renewAtMs))
  }
}

/** Grid points per TTL. Leases with the same TTL are renewed at the same few moments, in one batch each. */
const GRID_POINTS = 12
/** A renewal without an answer is repeated after a ninth of the TTL: six tries before the lease ends. */
const RETRIES_PER_TTL = 9
const JITTER = 0.05
/** How soon a paused renewer checks again whether it may renew. */
const PAUSED_MS = 100
