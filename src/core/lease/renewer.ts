import type { LeaseRef } from '../driver.ts'
import { StoreError } from '../errors.ts'
import type { Emitter } from '../events.ts'
import type { StoreClient } from '../store/store-client.ts'
import { type Clock, dueAtMs, type Instant } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler, SchedulerEntry, Task } from '../time/scheduler.ts'
import { type DeadlineStart, LeaseDeadline } from './deadline.ts'

/** Keeps the leases of one instance alive. */
export interface Heartbeat {
  keep(lease: Renewable, start: RenewerStart, options: RenewerOptions): Renewer
  close(): Promise<void>
}

export interface RenewerOptions {
  readonly heartbeat: boolean
  /** It renews no more after this. Infinite without `maxHoldSeconds`. */
  readonly maxHoldMs: number
}

/** What is known of a lease when it begins, and when that was known. */
export interface RenewerStart extends DeadlineStart {
  readonly answered: Instant
}

/** A lease, as its renewer sees it. */
export interface Renewable {
  readonly ttlMs: number
  readonly ref: LeaseRef & { readonly fencingToken: number }
  readonly held: boolean
  readonly eventBase: { lockName: string; holderId: string; claimId: string; fencingToken: number }
  lose(reason: string, cause?: unknown): void
}

/** The heartbeat's side of one lease: until when it can be relied on, and what moves that moment. */
export interface Renewer {
  readonly deadline: Instant
  /** When the store's own lease ends at the earliest, on the monotonic clock. */
  readonly endsAtMs: number
  /** The shortest of what was sent and never answered, as far as that is known: it may still arrive. */
  readonly unansweredMs: number
  /** False: lost. Throws `StoreError` when it is not known. */
  renew(ttlMs: number, how: Extent): Promise<boolean>
  /** Goes on renewing from now on. */
  repeat(): void
  /** Asks the store whether it still has the lease, after a message that it has not. */
  check(): void
  /** Renews no more. Resolves when no renewal of its own is under way; undefined if none is. */
  end(): Promise<unknown> | undefined
}

/** `at least`: never to end sooner than it would anyway, or than others are extending it to at the same time. */
export type Extent = 'exactly' | 'at least'

export interface HeartbeatParts {
  readonly clock: Clock
  readonly random: Random
  readonly store: StoreClient
  readonly scheduler: Scheduler
  readonly events: Emitter
  /** Called whenever a lease's deadline may have moved. A worker thread publishes it. */
  readonly onMoved?: (lease: Renewable, deadline: Instant) => void
  /** While it returns true, nothing is renewed. A worker thread asks whether the main thread still runs. */
  readonly isPaused?: () => boolean
}

/** The heartbeat on the instance's own event loop. */
export const createHeartbeat = (parts: HeartbeatParts): Heartbeat => ({
  keep: (lease, start, options) => new LocalRenewer(parts, lease, start, options),
  close: async () => {},
})

class LocalRenewer implements Renewer, Task {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly #parts: HeartbeatParts
  readonly #lease: Renewable
  readonly #leaseDeadline: LeaseDeadline
  #repeats: boolean
  /** The heartbeat renews no more after this moment (`maxHoldSeconds`). */
  readonly #stopsAtMs: number
  /** Renewals that an extension waits for. Made with the first of them: most leases end before one is due. */
  #beats: Set<Promise<boolean>> | undefined
  /** What callers are extending to just now: a heartbeat meanwhile must not shorten it. */
  #asked: number[] | undefined
  #renewAtMs = Number.POSITIVE_INFINITY
  #checking: 'once' | 'again' | undefined

  constructor(parts: HeartbeatParts, lease: Renewable, start: RenewerStart, options: RenewerOptions) {
    const { sent, answered, grantedMs } = start
    this.#parts = parts
    this.#lease = lease
    this.#leaseDeadline = new LeaseDeadline(start)
    this.#repeats = options.heartbeat
    this.#stopsAtMs = sent.monotonicMs + options.maxHoldMs
    this.#renewAtMs = this.#nextRenewal(answered)
    // A grant that was handed over late, or for a short time first, is made whole once, soon enough that it can fail twice.
    const madeWholeMs = this.deadline.monotonicMs - (Math.min(grantedMs, lease.ttlMs) * 2) / 3
    if (grantedMs < lease.ttlMs || madeWholeMs < answered.monotonicMs) {
      this.#renewAtMs = Math.min(this.#renewAtMs, madeWholeMs)
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

  due(): void {
    const { clock, scheduler, isPaused } = this.#parts
    const now = clock.now()
    if (loseIfDue(this.#lease, this.deadline, now)) return
    if (isPaused?.()) {
      scheduler.set(this, Math.min(dueAtMs(this.deadline, now), now.monotonicMs + PAUSED_MS))
      return
    }
    if (now.monotonicMs >= this.#stopsAtMs) this.#renewAtMs = Number.POSITIVE_INFINITY
    if (now.monotonicMs >= this.#renewAtMs) this.#beat(now.monotonicMs)
    this.#schedule(now)
  }

  async renew(ttlMs: number, how: Extent): Promise<boolean> {
    this.#asked ??= []
    const asked = this.#asked
    asked.push(ttlMs)
    try {
      // The heartbeat's own renewal, if it is still under way, could arrive after this one and undo what the caller asked for.
      await this.#quiet()
      if (how === 'exactly') return await this.#renewOnce(ttlMs)
      const now = this.#parts.clock.now()
      if (dueAtMs(this.deadline, now) - now.monotonicMs >= ttlMs) return this.#lease.held
      return await this.#beatOnce(ttlMs)
    } finally {
      asked.splice(asked.indexOf(ttlMs), 1)
    }
  }

  repeat(): void {
    if (this.#repeats) return
    this.#repeats = true
    const now = this.#parts.clock.now()
    this.#renewAtMs = this.#nextRenewal(now)
    this.#schedule(now)
  }

  /**
   * By a renewal: an early one of the heartbeat's, or else one that leaves the lease's end where it is. One at a time,
   * however many messages come: what was asked before a message says nothing about it.
   */
  check(): void {
    if (this.#checking !== undefined) {
      this.#checking = 'again'
      return
    }
    const nowMs = this.#parts.clock.now().monotonicMs
    const beats = this.#repeats && nowMs < this.#stopsAtMs
    const ttlMs = beats ? this.#lease.ttlMs : this.endsAtMs - nowMs
    if (!this.#lease.held || ttlMs <= 0) return
    this.#checking = 'once'
    const renewAtMs = this.#renewAtMs
    void this.#renewInBackground(ttlMs).then(() => {
      if (!beats) this.#renewAtMs = renewAtMs
      const again = this.#checking === 'again'
      this.#checking = undefined
      if (again) this.check()
    })
  }

  end(): Promise<unknown> | undefined {
    this.#parts.scheduler.clear(this)
    return this.#quiet()
  }

  /** Resolves when no renewal of the heartbeat's own is under way. */
  #quiet(): Promise<unknown> | undefined {
    return this.#beats === undefined || this.#beats.size === 0 ? undefined : Promise.allSettled(this.#beats)
  }

  async #renewOnce(ttlMs: number): Promise<boolean> {
    const { clock, store, events } = this.#parts
    const lease = this.#lease
    // A stalled process must not renew its way past a loss that it has not noticed: asked before sending …
    if (!lease.held) return false
    const now = clock.now()
    const endMs = this.deadline.monotonicMs
    const renewal = this.#leaseDeadline.sending(now, ttlMs)
    // An extension to less than was left may never be answered: the next renewal comes before that, and not when it was due.
    if (this.deadline.monotonicMs < endMs) this.#renewAtMs = Math.min(this.#renewAtMs, this.#nextRenewal(now))
    this.#schedule(now)
    const answer = await store.renew({ ...lease.ref, ttlMs }).catch((error: unknown) => {
      this.#leaseDeadline.unanswered(renewal)
      throw error
    })
    // … and after the answer came, which may say "renewed" of a lease whose end was already announced.
    if (!lease.held) return false
    if (answer === 'lost') {
      lease.lose(NOT_IN_STORE)
      return false
    }
    this.#leaseDeadline.confirmed(renewal)
    const confirmed = clock.now()
    this.#renewAtMs = this.#nextRenewal(confirmed)
    this.#schedule(confirmed)
    events.emit('renewed', () => lease.eventBase)
    return true
  }

  #beat(nowMs: number): void {
    const { ttlMs } = this.#lease
    // The next try does not wait for this one's answer: a renewal that hangs must not use up the lease.
    this.#renewAtMs = nowMs + (ttlMs / RETRY_PARTS) * (1 - this.#parts.random.fraction() * JITTER)
    void this.#renewInBackground(ttlMs)
  }

  /** A renewal that shortens nothing: extensions that are under way have their say in it, and later ones wait for it. */
  #beatOnce(ttlMs: number): Promise<boolean> {
    this.#beats ??= new Set()
    const beats = this.#beats
    const renewal = this.#renewOnce(Math.max(ttlMs, ...(this.#asked ?? []))).finally(() => beats.delete(renewal))
    beats.add(renewal)
    return renewal
  }

  /** Never rejects. */
  async #renewInBackground(ttlMs: number): Promise<void> {
    const lease = this.#lease
    try {
      await this.#beatOnce(ttlMs)
    } catch (error) {
      // Its loss is the last that is told of it.
      if (!lease.held) return
      // One failed renewal is no loss. Anything but "not known" would fail in the same way the next time.
      if (!(error instanceof StoreError)) lease.lose('it could not be renewed', error)
      else this.#parts.events.emit('renewalFailed', () => ({ ...lease.eventBase, error }))
    }
  }

  /**
   * Due when two thirds of the time to live are left, on the agenda's grid; and where less than that can be relied on anyway, after a third
   * of it: a renewal that brings less than was hoped for must not be followed by the next one at once.
   */
  #nextRenewal(now: Instant): number {
    if (!this.#repeats) return Number.POSITIVE_INFINITY
    const { random, scheduler } = this.#parts
    const { ttlMs } = this.#lease
    const endMs = dueAtMs(this.deadline, now)
    const aimMs = Math.max(1, Math.min(ttlMs, endMs - now.monotonicMs))
    const dueMs = endMs - aimMs * (2 / 3 + random.fraction() * JITTER)
    // Powers of two, so that leases whose times differ a little share a grid.
    return scheduler.round(dueMs, 2 ** Math.floor(Math.log2(aimMs / GRID)))
  }

  #schedule(now: Instant): void {
    const { scheduler, onMoved } = this.#parts
    onMoved?.(this.#lease, this.deadline)
    scheduler.set(this, Math.min(dueAtMs(this.deadline, now) - TIMER_GRAIN_MS, this.#renewAtMs))
  }
}

/** True if the lease has ended, or ends before a timer could fire: the loss must not be reported late. */
export function loseIfDue(lease: Renewable, deadline: Instant, now: Instant): boolean {
  if (!lease.held) return true
  if (dueAtMs(deadline, now) - now.monotonicMs > TIMER_GRAIN_MS) return false
  lease.lose(NOT_RENEWED)
  return true
}

/** Why a lease is lost when its deadline passes. */
export const NOT_RENEWED = 'it was not renewed before its time was up'

/** Why a lease is lost when the store, asked about it, does not know it. */
export const NOT_IN_STORE = 'the store no longer has it'

/** How late a timer can be, even on an idle machine. Timers fire this much early, so that a loss is not reported late. */
const TIMER_GRAIN_MS = 2

/** How many grid points a time to live has: leases of one length are renewed at the same few moments, in one list each. */
const GRID = 12
/** A renewal without an answer is followed by the next after a ninth of the time to live: six tries before the end. */
const RETRY_PARTS = 9
const JITTER = 0.05
/** How soon a paused renewer looks again. */
const PAUSED_MS = 100
