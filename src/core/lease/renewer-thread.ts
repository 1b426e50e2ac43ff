import assert from 'node:assert/strict'
import { Worker } from 'node:worker_threads'
import { StoreError, UnsupportedError } from '../errors.ts'
import { backoffMs } from '../time/backoff.ts'
import { dueAtMs, earlier, type Instant, type Timer } from '../time/clock.ts'
import { queueMicrotask } from '../time/native-time.ts'
import type { SchedulerEntry, Task } from '../time/scheduler.ts'
import { grantFrom, trustedUntil } from './deadline.ts'
import {
  createHeartbeat,
  type Extent,
  type Heartbeat,
  type HeartbeatParts,
  loseIfDue,
  type Renewable,
  type Renewer,
  type RenewerOptions,
  type RenewerStart,
} from './renewer.ts'
import type { FromWorker, RenewAnswer, ToWorker, WorkerStart } from './renewer-messages.ts'
import { deadlineIn, type Slot, SlotBook } from './shared-deadlines.ts'

export interface ThreadOptions {
  readonly callTimeoutMs: number
  /** How long the main thread may be stalled before the worker stops renewing for it. */
  readonly stalledAfterMs: number
}

/**
 * The heartbeat in a worker thread with a driver of its own, so that a blocked event loop does not lose its leases.
 *
 * The worker renews and writes each deadline into shared memory, where the main thread reads it without running the event loop. The
 * main thread writes there that it lives; when it has not for `stalledAfterMs`, the worker lets the leases run out, so that
 * a thread that hangs for ever does not hold its locks for ever. If the worker dies, its leases are renewed here, and so is
 * each lease whose deadline it has not moved in time: its own connection may hang, or it may not have started yet.
 *
 * @throws `UnsupportedError` in a bundle. The worker would have to import the driver from there, and with it the whole
 * application, which would then run a second time.
 */
export function threadHeartbeat(options: ThreadOptions): (parts: HeartbeatParts) => Heartbeat {
  // In a bundle, this is the bundle's own address, or nothing at all.
  if (!/\/renewer-thread\.[jt]s$/.test(import.meta.url ?? '')) throw new UnsupportedError(BUNDLED)
  return (parts) => new ThreadHeartbeat(parts, options)
}

const BUNDLED =
  'heartbeatThread does not work in a bundle, because the thread is started from a file of the package: ' +
  'let the bundler leave holdfast out (external), or leave heartbeatThread out'

class ThreadHeartbeat implements Heartbeat {
  readonly #parts: HeartbeatParts
  readonly local: Heartbeat
  readonly #stalledAfterMs: number
  readonly #life = new BigInt64Array(new SharedArrayBuffer(8))
  readonly #slots = new SlotBook()
  readonly #renewers = new Map<string, ThreadRenewer>()
  /** Leases that have ended here, until the worker has heard of it: before that it may still write into their slots. */
  readonly #ending = new Map<string, { readonly slot: Slot; ended(): void }>()
  readonly #calls = new Map<number, { readonly id: string; answer(answer: RenewAnswer): void }>()
  readonly #start: WorkerStart
  /** Started with the first lease: a claim that is refused needs no thread. */
  #worker: Worker | undefined
  #lifeTimer: Timer | undefined
  #lastCall = 0
  #failures = 0
  /** After a worker has died, leases are kept here until then. */
  #retryAtMs = Number.NEGATIVE_INFINITY
  #closed = false

  constructor(parts: HeartbeatParts, { callTimeoutMs, stalledAfterMs }: ThreadOptions) {
    const { reopen } = parts.store.driver
    assert(reopen !== undefined)
    this.#parts = parts
    this.local = createHeartbeat(parts)
    this.#stalledAfterMs = stalledAfterMs
    this.#start = { reopen, callTimeoutMs, stalledAfterMs, life: this.#life }
  }

  keep(lease: Renewable, start: RenewerStart, options: RenewerOptions): Renewer {
    const { sent, grantedMs, answered } = start
    const isRested = answered.monotonicMs >= this.#retryAtMs
    const deadline = trustedUntil(sent, grantedMs)
    // Also where the grant came so late that the worker could not renew in time.
    const isForWorker =
      !this.#closed && isRested && options.heartbeat && this.#looksAtMs(deadline, lease.ttlMs) !== undefined
    if (!isForWorker || !this.#hasWorker()) return this.local.keep(lease, start, options)
    const id = lease.ref.claimId
    const slot = this.#slots.take(deadline)
    const { unansweredMs } = start
    const stopsAtMs = sent.monotonicMs + options.maxHoldMs
    const renewer = new ThreadRenewer(this, lease, slot, { ...options, stopsAtMs, unansweredMs })
    this.#renewers.set(id, renewer)
    this.schedule(renewer, deadline, lease.ttlMs)
    this.#showLife()
    const { maxHoldMs } = options
    this.#post({ type: 'keep', slot, ref: lease.ref, ttlMs: lease.ttlMs, start, maxHoldMs })
    return renewer
  }

  /** Looks again when the worker should have moved the deadline long ago. False: that moment has come. */
  schedule(renewer: ThreadRenewer, deadline: Instant, ttlMs: number): boolean {
    const lookAtMs = this.#looksAtMs(deadline, ttlMs)
    if (lookAtMs === undefined) return false
    this.#parts.scheduler.set(renewer, lookAtMs)
    return true
  }

  /** `ttlMs`: for how long the lease can be relied on at most. Undefined if the moment has come. */
  #looksAtMs(deadline: Instant, ttlMs: number): number | undefined {
    const now = this.now()
    const lookAtMs = dueAtMs(deadline, now) - ttlMs * UNMOVED_PART
    if (lookAtMs <= now.monotonicMs) return undefined
    return lookAtMs
  }

  /** The worker forgets the lease. Resolves when it has no renewal of it under way any more. */
  forget({ ref: { claimId } }: Renewable, slot: Slot): Promise<void> {
    if (!this.#renewers.delete(claimId)) return Promise.resolve()
    if (this.#renewers.size === 0) this.#lifeTimer?.cancel()
    if (this.#worker === undefined) {
      this.#slots.giveBack(slot)
      return Promise.resolve()
    }
    this.#post({ type: 'end', id: claimId })
    // Whoever waits for an extension need not wait for a worker that may hang.
    for (const { id, answer } of [...this.#calls.values()]) if (id === claimId) answer({ renewed: false })
    return new Promise((ended) => {
      this.#ending.set(claimId, { slot, ended })
      this.#keepAlive()
    })
  }

  now(): Instant {
    return this.#parts.clock.now()
  }

  clear(renewer: ThreadRenewer): void {
    this.#parts.scheduler.clear(renewer)
  }

  /** All renewals of a kept lease are the worker's, so that it knows of every one that may still be under way. */
  renew(id: string, ttlMs: number, how: Extent): Promise<boolean> {
    if (this.#worker === undefined) return Promise.reject(new StoreError("the heartbeat's thread has ended"))
    return new Promise((resolve, reject) => {
      this.#lastCall += 1
      const call = this.#lastCall
      const answer = ({ renewed, error }: RenewAnswer): void => {
        this.#calls.delete(call)
        this.#keepAlive()
        if (error === undefined) resolve(renewed)
        else reject(new StoreError(error))
      }
      this.#calls.set(call, { id, answer })
      this.#post({ type: 'renew', id, call, ttlMs, how })
      this.#keepAlive()
    })
  }

  check(id: string): void {
    if (this.#renewers.has(id)) this.#post({ type: 'check', id })
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#lifeTimer?.cancel()
    this.#answerAll(new Error('the instance was closed'))
    const worker = this.#worker
    this.#worker = undefined
    // Whoever waits for this waits for the thread's end: the process must not end before it.
    worker?.ref()
    await worker?.terminate()
  }

  #post(message: ToWorker): void {
    this.#worker?.postMessage(message)
  }

  /** Starts it if there is none. False where that is not possible, for lack of rights or of memory: the caller's lease must not suffer from it. */
  #hasWorker(): boolean {
    try {
      this.#worker ??= this.#startWorker()
      return true
    } catch (error) {
      // A listener may do anything, and the lease that needed the thread is not ready yet.
      queueMicrotask(() => this.#parts.events.emit('heartbeatFailed', () => ({ error })))
      this.#rest()
      return false
    }
  }

  /** The thread by itself does not keep the process alive; somebody who waits for its answer does. */
  #keepAlive(): void {
    if (this.#calls.size > 0 || this.#ending.size > 0) this.#worker?.ref()
    else this.#worker?.unref()
  }

  #startWorker(): Worker {
    const file = new URL('./renewer-worker.js', import.meta.url)
    const worker = new Worker(file, { workerData: this.#start, name: 'holdfast-heartbeat' })
    worker.on('message', (message: FromWorker) => this.#hear(message))
    worker.on('error', (error) => this.#takeOver(worker, error))
    worker.on('exit', (code) => this.#takeOver(worker, new Error(`the heartbeat's thread ended with code ${code}`)))
    // After the listeners, because the first of them keeps the process alive again.
    worker.unref()
    return worker
  }

  #hear(message: FromWorker): void {
    if (message.type === 'renewed') {
      this.#calls.get(message.call)?.answer(message)
      return
    }
    if (message.type === 'ended') {
      const ending = this.#ending.get(message.id)
      this.#ending.delete(message.id)
      if (ending !== undefined) this.#slots.giveBack(ending.slot)
      ending?.ended()
      this.#keepAlive()
      return
    }
    const lease = this.#renewers.get(message.id)?.lease
    if (lease === undefined) return
    if (message.type === 'lost') {
      lease.lose(message.reason)
      return
    }
    // Its loss is the last that is told of it.
    if (!lease.held) return
    if (message.type === 'kept') {
      this.#failures = 0
      this.#parts.events.emit('renewed', () => lease.eventBase)
    } else {
      this.#parts.events.emit('renewalFailed', () => ({ ...lease.eventBase, error: new StoreError(message.error) }))
    }
  }

  /** Nobody waits for ever for a thread that is gone. */
  #answerAll(cause: Error): void {
    for (const { answer } of [...this.#calls.values()]) answer({ renewed: false, error: cause.message })
    for (const { slot, ended } of this.#ending.values()) {
      this.#slots.giveBack(slot)
      ended()
    }
    this.#ending.clear()
  }

  #showLife(): void {
    Atomics.store(this.#life, 0, BigInt(Math.floor(this.#parts.clock.now().monotonicMs)))
    this.#lifeTimer?.cancel()
    this.#lifeTimer = this.#parts.clock.setTimer(() => this.#showLife(), Math.min(1_000, this.#stalledAfterMs / 4))
  }

  /** A worker has died: its leases are kept here, and the next lease after a pause starts another one. */
  #takeOver(worker: Worker, cause: Error): void {
    if (this.#worker !== worker) return
    this.#worker = undefined
    const now = this.#rest()
    this.#lifeTimer?.cancel()
    this.#parts.events.emit('heartbeatFailed', () => ({ error: cause }))
    this.#answerAll(cause)
    const renewers = [...this.#renewers.values()]
    this.#renewers.clear()
    for (const renewer of renewers) this.#slots.giveBack(renewer.continueWith(this.local, now))
  }

  /** No other worker is started for a while. */
  #rest(): Instant {
    const now = this.now()
    this.#failures += 1
    this.#retryAtMs = now.monotonicMs + backoffMs(RESTART, this.#failures, this.#parts.random)
    return now
  }
}

class ThreadRenewer implements Renewer, Task {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly lease: Renewable
  readonly #heartbeat: ThreadHeartbeat
  readonly #slot: Slot
  readonly #options: ThreadRenewerOptions
  /** What it was when the lease ended: the slot is another's after that. */
  #lastDeadline: Instant | undefined
  /** The same for what was sent: extensions under way are answered then, without the store. */
  #lastUnansweredMs: number | undefined
  #local: Renewer | undefined
  /** The worker has been told to forget the lease; resolves when it has. */
  #forgotten: Promise<void> | undefined
  /** What was asked for without an answer, by the caller through the worker or before that: it may still arrive. */
  readonly #asked = new Set<{ readonly ttlMs: number }>()

  constructor(heartbeat: ThreadHeartbeat, lease: Renewable, slot: Slot, options: ThreadRenewerOptions) {
    this.#heartbeat = heartbeat
    this.lease = lease
    this.#slot = slot
    this.#options = options
    if (options.unansweredMs !== undefined) this.#asked.add({ ttlMs: options.unansweredMs })
  }

  get deadline(): Instant {
    return this.#local?.deadline ?? this.#lastDeadline ?? deadlineIn(this.#slot)
  }

  get endsAtMs(): number {
    return this.#local?.endsAtMs ?? grantFrom(this.deadline, this.lease.ttlMs).endsAtMs
  }

  /** The worker does not tell which of its renewals were answered: any of them may still arrive. */
  get unansweredMs(): number {
    return this.#local?.unansweredMs ?? this.#lastUnansweredMs ?? Math.min(this.lease.ttlMs, this.#shortestAskedMs)
  }

  get #shortestAskedMs(): number {
    return Math.min(...[...this.#asked].map((asked) => asked.ttlMs))
  }

  /** Renews here from now on if the worker has not renewed in time. */
  due(): void {
    if (this.#local !== undefined || loseIfDue(this.lease, this.deadline, this.#heartbeat.now())) return
    if (this.#schedule()) return
    this.continueWith(this.#heartbeat.local, this.#heartbeat.now())
    this.#forgotten = this.#heartbeat.forget(this.lease, this.#slot)
  }

  /** The worker may send what it was asked for at any moment, and with that the deadline comes nearer. */
  #schedule(): boolean {
    const askedMs = this.#shortestAskedMs
    if (askedMs >= this.lease.ttlMs) return this.#heartbeat.schedule(this, this.deadline, this.lease.ttlMs)
    const deadline = earlier(this.deadline, trustedUntil(this.#heartbeat.now(), askedMs))
    return this.#heartbeat.schedule(this, deadline, askedMs)
  }

  async renew(ttlMs: number, how: Extent): Promise<boolean> {
    const renewed = this.#local === undefined ? await this.#renewInWorker(ttlMs, how) : undefined
    return renewed ?? this.#local?.renew(ttlMs, how) ?? false
  }

  /** Undefined: the lease was taken from the worker meanwhile, whose answer says nothing about the lease then. */
  async #renewInWorker(ttlMs: number, how: Extent): Promise<boolean | undefined> {
    const asked = { ttlMs }
    this.#asked.add(asked)
    this.#schedule()
    try {
      const renewed = await this.#heartbeat.renew(this.lease.ref.claimId, ttlMs, how)
      // Not after a failure: what was never answered may still arrive, whoever renews the lease by then.
      this.#asked.delete(asked)
      if (this.#local !== undefined) return undefined
      // The deadline may have come nearer.
      if (this.lease.held) this.due()
      return renewed
    } catch (error) {
      if (this.#local !== undefined) return undefined
      throw error
    }
  }

  /** The worker never does anything else. */
  repeat(): void {}

  check(): void {
    if (this.#local !== undefined) this.#local.check()
    else this.#heartbeat.check(this.lease.ref.claimId)
  }

  async end(): Promise<void> {
    this.#lastDeadline = this.deadline
    this.#lastUnansweredMs = this.unansweredMs
    this.#heartbeat.clear(this)
    this.#forgotten ??= this.#heartbeat.forget(this.lease, this.#slot)
    await Promise.all([this.#local?.end(), this.#forgotten])
  }

  /** Renews from here on, as if the lease had been granted just when its present deadline began to count. Returns its slot. */
  continueWith(local: Heartbeat, now: Instant): Slot {
    const { ttlMs } = this.lease
    const { sent } = grantFrom(this.deadline, ttlMs)
    this.#heartbeat.clear(this)
    const maxHoldMs = this.#options.stopsAtMs - sent.monotonicMs
    // What the worker has sent, a renewal or an extension by the caller, may still arrive.
    const start = { sent, answered: now, grantedMs: ttlMs, unansweredMs: this.unansweredMs }
    this.#local = local.keep(this.lease, start, { ...this.#options, maxHoldMs })
    return this.#slot
  }
}

interface ThreadRenewerOptions extends RenewerOptions {
  readonly stopsAtMs: number
  /** What was sent before the lease was the worker's, and never answered. */
  readonly unansweredMs: number | undefined
}

/** The worker begins to renew when two thirds of a lease are left, and has tried four times when this part of it is left. */
const UNMOVED_PART = 1 / 3
const RESTART = { firstMs: 2_000, maxMs: 60_000 }
