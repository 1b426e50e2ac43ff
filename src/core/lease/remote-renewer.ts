import { StoreError } from '../errors.ts'
import { settlesWithin, withTimeout } from '../time/abort.ts'
import { dueAtMs, earlier, type Instant } from '../time/clock.ts'
import type { SchedulerEntry, Task } from '../time/scheduler.ts'
import { grantFrom, trustedUntil } from './deadline.ts'
import type { LocalHeartbeat, LocalRenewer } from './local-renewer.ts'
import {
  type HeartbeatParts,
  LEFT_AT,
  type Loss,
  loseIfDue,
  MAX_ANSWER_MS,
  type Renewable,
  type Renewer,
  type RenewerOptions,
  type RenewerStart,
  type RenewMode,
} from './renewer.ts'
import { lossOf, readDeadline, type Slot } from './shared-deadlines.ts'

/** The worker thread, as the renewer of one lease uses it. */
export interface HeartbeatThread {
  /** The heartbeat on the main thread, for leases that the worker does not have. */
  readonly local: LocalHeartbeat
  /** Lets the worker renew the lease. Undefined if it cannot. */
  start(renewer: RemoteRenewer, start: RenewerStart, maxHoldMs: number): Slot | undefined
  /**
   * Lets the worker renew. It sends all renewals of its leases, so that it knows of each one that may still be in
   * flight.
   *
   * @throws `StoreError` if the result is unknown
   */
  renew(id: string, ttlMs: number, mode: RenewMode | 'confirm'): Promise<boolean>
  /**
   * The worker forgets the lease. Resolves when the worker has no renewal of the lease in flight, with the shortest TTL
   * that was sent and never answered, or undefined if that is not known. It may hang.
   */
  forget(lease: Renewable, slot: Slot): Promise<number | undefined>
}

/**
 * The renewer of a lease with a heartbeat thread. The worker has the lease while it has a heartbeat; otherwise, and if
 * the worker does not move the deadline in time, a renewer on the main thread has it.
 */
export class RemoteRenewer implements Renewer, Task {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly lease: Renewable
  readonly #thread: HeartbeatThread
  readonly #parts: HeartbeatParts
  /** When the heartbeat stops renewing, on the monotonic clock. */
  readonly #stopsAtMs: number
  #hasHeartbeat: boolean
  /** The worker is to have the lease as soon as it can. */
  #isToMove = false
  /** One of these two has the lease: the worker, which publishes the deadline in the slot, or the main thread. */
  #slot: Slot | undefined
  #local: LocalRenewer | undefined
  /** What the slot said when the lease ended. After that the slot belongs to another lease. */
  #last: { readonly deadline: Instant; readonly unansweredMs: number } | undefined
  /** Calls of the local renewer that have not ended: they may still send something. */
  #localCalls = 0
  /** Resolves when the worker, which was asked to forget the lease, has done so. */
  #forgotten: Promise<unknown> | undefined
  /**
   * Requests that were not answered: extensions through the worker, and what was sent before the worker had the lease.
   * Each of them may still arrive.
   */
  readonly #unanswered = new Set<{ readonly ttlMs: number }>()

  constructor(
    thread: HeartbeatThread,
    parts: HeartbeatParts,
    lease: Renewable,
    start: RenewerStart,
    options: RenewerOptions,
  ) {
    this.#thread = thread
    this.#parts = parts
    this.lease = lease
    this.#stopsAtMs = start.sent.monotonicMs + options.maxHoldMs
    this.#hasHeartbeat = options.heartbeat
    if (!options.heartbeat || !this.#giveToWorker(start)) {
      this.#local = thread.local.createRenewer(lease, start, options)
    }
  }

  get deadline(): Instant {
    return this.#local?.deadline ?? this.#last?.deadline ?? readDeadline(this.#slot as Slot)
  }

  get loss(): Loss {
    return lossOf(this.deadline)
  }

  get endsAtMs(): number {
    return this.#local?.endsAtMs ?? grantFrom(this.deadline, this.lease.ttlMs).endsAtMs
  }

  /** The worker does not report which of its renewals were answered: any of them may still arrive. */
  get unansweredMs(): number {
    return (
      this.#local?.unansweredMs ?? this.#last?.unansweredMs ?? Math.min(this.lease.ttlMs, this.#shortestUnansweredMs)
    )
  }

  get #shortestUnansweredMs(): number {
    let shortestMs = Number.POSITIVE_INFINITY
    for (const { ttlMs } of this.#unanswered) shortestMs = Math.min(shortestMs, ttlMs)
    return shortestMs
  }

  /** False if it is too late for the worker to renew in time, or it cannot renew. */
  #giveToWorker(start: RenewerStart): boolean {
    const { sent, grantedMs, unansweredMs } = start
    const now = this.#parts.clock.now()
    const atMs = takeOverAtMs(trustedUntil(sent, grantedMs), this.lease.ttlMs, now)
    if (atMs === undefined || now.monotonicMs >= this.#stopsAtMs) return false
    this.#slot = this.#thread.start(this, start, this.#stopsAtMs - sent.monotonicMs)
    if (this.#slot === undefined) return false
    this.#unanswered.clear()
    if (unansweredMs !== undefined) this.#unanswered.add({ ttlMs: unansweredMs })
    this.#parts.scheduler.set(this, Math.min(atMs, this.#stopsAtMs))
    return true
  }

  /** Takes the lease back if the worker has not renewed it in time, or does not renew it any more. */
  due(now: Instant): void {
    if (this.#local !== undefined || loseIfDue(this.lease, this, now)) return
    if (!this.#schedule()) this.#takeBack(this.#parts.clock.now())
  }

  #takeBack(now: Instant): void {
    this.#forget(this.renewLocally(now))
  }

  #forget(slot: Slot | undefined): void {
    if (slot === undefined) return
    const forgotten = this.#thread.forget(this.lease, slot).then((unansweredMs) => {
      if (this.#forgotten === forgotten) this.#forgotten = undefined
      if (unansweredMs !== undefined) this.#local?.inherit(unansweredMs)
    })
    this.#forgotten = forgotten
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
    if (atMs === undefined || now.monotonicMs >= this.#stopsAtMs) return false
    scheduler.set(this, Math.min(atMs, this.#stopsAtMs))
    return true
  }

  async renew(ttlMs: number, mode: RenewMode): Promise<boolean> {
    // Until the worker has said what it sent, an extension proves no more than the TTL.
    if (this.#forgotten !== undefined) await settlesWithin(this.#parts.clock, MAX_ANSWER_MS, this.#forgotten)
    const renewed = this.#local === undefined ? await this.#renewInWorker(ttlMs, mode) : undefined
    return renewed ?? (await this.#locally((local) => local.renew(ttlMs, mode))) ?? false
  }

  /**
   * Returns undefined if the main thread has taken the lease back meanwhile. The answer of the worker then says nothing
   * about the lease.
   */
  async #renewInWorker(ttlMs: number, mode: RenewMode | 'confirm'): Promise<boolean | undefined> {
    const request = { ttlMs }
    this.#unanswered.add(request)
    this.#schedule()
    try {
      const { clock, store } = this.#parts
      // The thread may hang, and a lease with a long TTL is taken back late.
      const late = (): StoreError => new StoreError('the heartbeat thread did not answer in time')
      const asked = this.#thread.renew(this.lease.ref.claimId, ttlMs, mode)
      const renewed = await withTimeout(clock, store.callTimeoutMs + MAX_ANSWER_MS, asked, late)
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

  startHeartbeat(): void {
    this.#hasHeartbeat = true
    this.#local?.startHeartbeat()
    this.#moveToWorker()
  }

  stopHeartbeat(): void {
    this.#hasHeartbeat = false
    if (this.#local === undefined) this.#takeBack(this.#parts.clock.now())
    this.#local?.stopHeartbeat()
  }

  /**
   * The main thread has renewed the lease so far. The worker must know of all that is in flight, or waits to be sent.
   * So it begins when there is nothing.
   */
  #moveToWorker(): void {
    const local = this.#local
    this.#isToMove = local !== undefined && this.#hasHeartbeat && this.lease.held
    // The last call that ends moves the lease.
    if (local === undefined || !this.#isToMove || this.#localCalls > 0) return
    const busy = this.#forgotten ?? local.inFlight
    if (busy !== undefined) {
      void busy.then(() => this.#moveToWorker())
      return
    }
    this.#isToMove = false
    const { deadline, unansweredMs } = local
    const { ttlMs } = this.lease
    const { sent } = grantFrom(deadline, ttlMs)
    const start = { sent, answered: this.#parts.clock.now(), grantedMs: ttlMs, unansweredMs }
    if (!this.#giveToWorker(start)) return
    this.#local = undefined
    void local.end()
  }

  async #locally<Result>(call: (local: LocalRenewer) => Promise<Result>): Promise<Result | undefined> {
    if (this.#local === undefined) return undefined
    this.#localCalls += 1
    try {
      return await call(this.#local)
    } finally {
      this.#localCalls -= 1
      if (this.#isToMove) this.#moveToWorker()
    }
  }

  async confirm(): Promise<boolean | undefined> {
    if (this.#local !== undefined) return this.#locally((local) => local.confirm())
    const confirmed = await this.#renewInWorker(this.lease.ttlMs, 'confirm')
    if (confirmed === undefined) return this.#locally((local) => local.confirm())
    // The worker answers what is in flight at the end of the lease without the store.
    return confirmed || this.#last === undefined ? confirmed : undefined
  }

  async end(): Promise<void> {
    this.#last = { deadline: this.deadline, unansweredMs: this.unansweredMs }
    this.#parts.scheduler.clear(this)
    if (this.#local === undefined) this.#forget(this.#slot)
    await Promise.all([this.#local?.end(), this.#forgotten])
  }

  /**
   * Renews on the main thread from now on. The local renewer starts with a grant of the full TTL that has the present
   * deadline.
   *
   * @returns the slot, which the lease no longer uses
   */
  renewLocally(now: Instant): Slot | undefined {
    const { ttlMs } = this.lease
    const { sent } = grantFrom(this.deadline, ttlMs)
    this.#parts.scheduler.clear(this)
    const options = { heartbeat: this.#hasHeartbeat, maxHoldMs: this.#stopsAtMs - sent.monotonicMs }
    // What the worker has sent, a heartbeat or an extension, may still arrive.
    const start = { sent, answered: now, grantedMs: ttlMs, unansweredMs: this.unansweredMs }
    const slot = this.#slot
    this.#slot = undefined
    this.#local = this.#thread.local.createRenewer(this.lease, start, options)
    return slot
  }
}

/**
 * When the main thread takes a lease back because the worker has not moved its deadline, on the monotonic clock.
 * Undefined if that moment has passed.
 *
 * @param ttlMs the longest time for which the lease can be relied on
 */
function takeOverAtMs(deadline: Instant, ttlMs: number, now: Instant): number | undefined {
  const atMs = dueAtMs(deadline, now) - ttlMs * LEFT_AT.takeOver
  return atMs > now.monotonicMs ? atMs : undefined
}
