import { dueAtMs, earlier, type Instant } from '../time/clock.ts'
import type { SchedulerEntry, Task } from '../time/scheduler.ts'
import { grantFrom, trustedUntil } from './deadline.ts'
import {
  type Heartbeat,
  type HeartbeatParts,
  loseIfDue,
  type Renewable,
  type Renewer,
  type RenewerOptions,
  type RenewMode,
} from './renewer.ts'
import { readDeadline, type Slot } from './shared-deadlines.ts'

/** The worker thread, as the renewer of one lease uses it. */
export interface RenewerThread {
  /** The heartbeat on the main thread, for leases that are taken back from the worker. */
  readonly local: Heartbeat
  /**
   * Lets the worker renew. It sends all renewals of its leases, so that it knows of each one that may still be in
   * flight.
   *
   * @throws `StoreError` if the result is unknown
   */
  renew(id: string, ttlMs: number, mode: RenewMode): Promise<boolean>
  check(id: string): void
  /** The worker forgets the lease. Resolves when the worker has no renewal of the lease in flight. */
  forget(lease: Renewable, slot: Slot): Promise<void>
}

interface ThreadRenewerOptions extends RenewerOptions {
  readonly slot: Slot
  readonly takeOverAtMs: number
  /** When the heartbeat stops renewing, on the monotonic clock. */
  readonly stopsAtMs: number
  /** The TTL of a request that was sent before the worker had the lease, and that was never answered. */
  readonly unansweredMs: number | undefined
}

/** The renewer of a lease that the worker thread renews, until the main thread takes the lease back. */
export class ThreadRenewer implements Renewer, Task {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly lease: Renewable
  readonly #thread: RenewerThread
  readonly #parts: HeartbeatParts
  readonly #options: ThreadRenewerOptions
  /** The deadline when the lease ended. After that the slot belongs to another lease. */
  #lastDeadline: Instant | undefined
  /** `unansweredMs` when the lease ended. Extensions in flight are then answered without the store. */
  #lastUnansweredMs: number | undefined
  #local: Renewer | undefined
  /** Resolves when the worker, which was asked to forget the lease, has done so. */
  #forgotten: Promise<void> | undefined
  /**
   * Requests that were not answered: extensions through the worker, and what was sent before the worker had the lease.
   * Each of them may still arrive.
   */
  readonly #unanswered = new Set<{ readonly ttlMs: number }>()

  constructor(thread: RenewerThread, parts: HeartbeatParts, lease: Renewable, options: ThreadRenewerOptions) {
    this.#thread = thread
    this.#parts = parts
    this.lease = lease
    this.#options = options
    if (options.unansweredMs !== undefined) this.#unanswered.add({ ttlMs: options.unansweredMs })
    parts.scheduler.set(this, options.takeOverAtMs)
  }

  get deadline(): Instant {
    return this.#local?.deadline ?? this.#lastDeadline ?? readDeadline(this.#options.slot)
  }

  get endsAtMs(): number {
    return this.#local?.endsAtMs ?? grantFrom(this.deadline, this.lease.ttlMs).endsAtMs
  }

  /** The worker does not report which of its renewals were answered: any of them may still arrive. */
  get unansweredMs(): number {
    return this.#local?.unansweredMs ?? this.#lastUnansweredMs ?? Math.min(this.lease.ttlMs, this.#shortestUnansweredMs)
  }

  get #shortestUnansweredMs(): number {
    return Math.min(...[...this.#unanswered].map(({ ttlMs }) => ttlMs))
  }

  /** Takes the lease back if the worker has not renewed it in time. */
  due(now: Instant): void {
    if (this.#local !== undefined || loseIfDue(this.lease, this.deadline, now)) return
    if (this.#schedule()) return
    this.renewLocally(this.#parts.clock.now())
    this.#forgotten = this.#thread.forget(this.lease, this.#options.slot)
  }

  /** Returns false if it is time to take the lease back. */
  #schedule(): boolean {
    const { clock, scheduler } = this.#parts
    const now = clock.now()
    const shortestMs = this.#shortestUnansweredMs
    // The worker may send an extension that it was asked for at any moment, and that may shorten the lease.
    const atMs =
      shortestMs < this.lease.ttlMs
        ? takeOverAtMs(earlier(this.deadline, trustedUntil(now, shortestMs)), shortestMs, now)
        : takeOverAtMs(this.deadline, this.lease.ttlMs, now)
    if (atMs === undefined) return false
    scheduler.set(this, atMs)
    return true
  }

  async renew(ttlMs: number, mode: RenewMode): Promise<boolean> {
    const renewed = this.#local === undefined ? await this.#renewInWorker(ttlMs, mode) : undefined
    return renewed ?? this.#local?.renew(ttlMs, mode) ?? false
  }

  /**
   * Returns undefined if the main thread has taken the lease back meanwhile. The answer of the worker then says nothing
   * about the lease.
   */
  async #renewInWorker(ttlMs: number, mode: RenewMode): Promise<boolean | undefined> {
    const request = { ttlMs }
    this.#unanswered.add(request)
    this.#schedule()
    try {
      const renewed = await this.#thread.renew(this.lease.ref.claimId, ttlMs, mode)
      // Not after a failure: a request that was never answered may still arrive, also after the lease was taken back.
      this.#unanswered.delete(request)
      if (this.#local !== undefined) return undefined
      // The extension may have shortened the lease.
      if (this.lease.held) this.due(this.#parts.clock.now())
      return renewed
    } catch (error) {
      if (this.#local !== undefined) return undefined
      throw error
    }
  }

  /** Does nothing: the worker only has leases with a heartbeat. */
  startHeartbeat(): void {}

  check(): void {
    if (this.#local !== undefined) this.#local.check()
    else this.#thread.check(this.lease.ref.claimId)
  }

  async end(): Promise<void> {
    this.#lastDeadline = this.deadline
    this.#lastUnansweredMs = this.unansweredMs
    this.#parts.scheduler.clear(this)
    this.#forgotten ??= this.#thread.forget(this.lease, this.#options.slot)
    await Promise.all([this.#local?.end(), this.#forgotten])
  }

  /**
   * Renews on the main thread from now on. The local renewer starts with a grant of the full TTL that has the present
   * deadline.
   *
   * @returns the slot, which the lease no longer uses
   */
  renewLocally(now: Instant): Slot {
    const { ttlMs } = this.lease
    const { sent } = grantFrom(this.deadline, ttlMs)
    this.#parts.scheduler.clear(this)
    const maxHoldMs = this.#options.stopsAtMs - sent.monotonicMs
    // What the worker has sent, a heartbeat or an extension, may still arrive.
    const start = { sent, answered: now, grantedMs: ttlMs, unansweredMs: this.unansweredMs }
    this.#local = this.#thread.local.createRenewer(this.lease, start, { ...this.#options, maxHoldMs })
    return this.#options.slot
  }
}

/**
 * When the main thread takes a lease back because the worker has not moved its deadline, on the monotonic clock.
 * Undefined if that moment has passed.
 *
 * @param ttlMs the longest time for which the lease can be relied on
 */
export function takeOverAtMs(deadline: Instant, ttlMs: number, now: Instant): number | undefined {
  const atMs = dueAtMs(deadline, now) - ttlMs * TAKE_OVER_FRACTION
  return atMs > now.monotonicMs ? atMs : undefined
}

/**
 * The worker starts to renew when two thirds of a lease are left. When this fraction is left, it has tried four times.
 */
const TAKE_OVER_FRACTION = 1 / 3
