import assert from 'node:assert/strict'
import { Worker } from 'node:worker_threads'
import { dueAtMs, type Instant, later, type Timer } from './clock.ts'
import type { LeaseRef, Reopen } from './driver.ts'
import { StoreError } from './errors.ts'
import {
  createHeartbeat,
  type Heartbeat,
  type HeartbeatParts,
  type Keeping,
  type KeepingStart,
  type Kept,
  TIMER_GRAIN_MS,
} from './heartbeat.ts'
import type { LeaseOptions } from './lease.ts'
import { deadlineIn, type Slot, SlotBook } from './shared-deadlines.ts'
import { marginMs } from './trust.ts'

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
 * a thread that hangs for ever does not hold its locks for ever. If the worker dies, its leases are renewed here.
 */
export const createThreadHeartbeat = (parts: HeartbeatParts, options: ThreadOptions): Heartbeat =>
  new ThreadHeartbeat(parts, options)

class ThreadHeartbeat implements Heartbeat {
  readonly #parts: HeartbeatParts
  readonly #local: Heartbeat
  readonly #stalledAfterMs: number
  readonly #life = new BigInt64Array(new SharedArrayBuffer(8))
  readonly #slots = new SlotBook()
  readonly #keepings = new Map<string, ThreadKeeping>()
  /** Leases that have ended here, until the worker has heard of it: before that it may still write into their slots. */
  readonly #ending = new Map<string, { readonly slot: Slot; ended(): void }>()
  readonly #calls = new Map<number, (answer: RenewedMessage) => void>()
  readonly #start: WorkerStart
  /** Started with the first lease: a claim that is refused needs no thread. */
  #worker: Worker | undefined
  #lifeTimer: Timer | undefined
  #lastCall = 0
  #dead = false

  constructor(parts: HeartbeatParts, { callTimeoutMs, stalledAfterMs }: ThreadOptions) {
    const { reopen } = parts.link.driver
    assert(reopen !== undefined)
    this.#parts = parts
    this.#local = createHeartbeat(parts)
    this.#stalledAfterMs = stalledAfterMs
    this.#start = { reopen, callTimeoutMs, stalledAfterMs, life: this.#life }
  }

  keep(lease: Kept, start: KeepingStart, options: LeaseOptions): Keeping {
    if (this.#dead || !options.heartbeat) return this.#local.keep(lease, start, options)
    const { sent, grantedMs } = start
    const id = lease.ref.claimId
    const slot = this.#slots.take(later(sent, grantedMs - marginMs(grantedMs)))
    const keeping = new ThreadKeeping(this, lease, slot, {
      ...options,
      stopsAtMs: sent.monotonicMs + options.maxHoldMs,
    })
    this.#keepings.set(id, keeping)
    this.#showLife()
    const { maxHoldMs } = options
    this.#post({ type: 'keep', slot, ref: lease.ref, ttlMs: lease.ttlMs, start, maxHoldMs })
    this.schedule(lease, keeping)
    return keeping
  }

  schedule(lease: Kept, keeping: Keeping): void {
    const { agenda, clock } = this.#parts
    agenda.set(lease, dueAtMs(keeping.deadline, clock.now()) - TIMER_GRAIN_MS)
  }

  end(lease: Kept, slot: Slot): Promise<void> {
    const id = lease.ref.claimId
    this.#parts.agenda.clear(lease)
    if (!this.#keepings.delete(id) || this.#dead) return Promise.resolve()
    if (this.#keepings.size === 0) this.#lifeTimer?.cancel()
    this.#post({ type: 'end', id })
    return new Promise((ended) => {
      this.#ending.set(id, { slot, ended })
      this.#keepAlive()
    })
  }

  /** All renewals of a kept lease are the worker's, so that it knows of every one that may still be under way. */
  renew(id: string, ttlMs: number): Promise<boolean> {
    return new Promise((resolve, reject) => {
      this.#lastCall += 1
      const call = this.#lastCall
      this.#calls.set(call, ({ renewed, error }) => {
        this.#calls.delete(call)
        this.#keepAlive()
        if (error === undefined) resolve(renewed)
        else reject(new StoreError(error))
      })
      this.#post({ type: 'renew', id, call, ttlMs })
      this.#keepAlive()
    })
  }

  async close(): Promise<void> {
    this.#dead = true
    this.#lifeTimer?.cancel()
    this.#answerAll(new Error('the instance was closed'))
    await this.#worker?.terminate()
  }

  #post(message: ToWorker): void {
    this.#worker ??= this.#startWorker()
    this.#worker.postMessage(message)
  }

  /** The thread by itself does not keep the process alive; somebody who waits for its answer does. */
  #keepAlive(): void {
    if (this.#calls.size > 0 || this.#ending.size > 0) this.#worker?.ref()
    else this.#worker?.unref()
  }

  #startWorker(): Worker {
    const file = new URL('./heartbeat-worker.js', import.meta.url)
    const worker = new Worker(file, { workerData: this.#start, name: 'holdfast-heartbeat' })
    worker.on('message', (message: FromWorker) => this.#hear(message))
    worker.on('error', (error) => this.#takeOver(error))
    worker.on('exit', (code) => this.#takeOver(new Error(`the heartbeat's thread ended with code ${code}`)))
    // After the listeners, because the first of them keeps the process alive again.
    worker.unref()
    return worker
  }

  #hear(message: FromWorker): void {
    if (message.type === 'renewed') {
      this.#calls.get(message.call)?.(message)
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
    const lease = this.#keepings.get(message.id)?.lease
    if (message.type === 'lost') lease?.lose(message.reason)
    else if (lease !== undefined) {
      this.#parts.events.emit('renewalFailed', () => ({ ...lease.eventBase, error: new StoreError(message.error) }))
    }
  }

  /** Nobody waits for ever for a thread that is gone. */
  #answerAll(cause: Error): void {
    for (const answer of [...this.#calls.values()])
      answer({ type: 'renewed', call: 0, renewed: false, error: cause.message })
    for (const { ended } of this.#ending.values()) ended()
    this.#ending.clear()
  }

  #showLife(): void {
    Atomics.store(this.#life, 0, BigInt(Math.floor(this.#parts.clock.now().monotonicMs)))
    this.#lifeTimer?.cancel()
    this.#lifeTimer = this.#parts.clock.setTimer(() => this.#showLife(), Math.min(1_000, this.#stalledAfterMs / 4))
  }

  #takeOver(cause: Error): void {
    if (this.#dead) return
    this.#dead = true
    this.#lifeTimer?.cancel()
    this.#parts.events.emit('heartbeatFailed', () => ({ error: cause }))
    this.#answerAll(cause)
    const now = this.#parts.clock.now()
    for (const keeping of this.#keepings.values()) keeping.continueWith(this.#local, now)
  }
}

class ThreadKeeping implements Keeping {
  readonly lease: Kept
  readonly #heartbeat: ThreadHeartbeat
  readonly #slot: Slot
  readonly #options: LeaseOptions & { readonly stopsAtMs: number }
  /** What it was when the lease ended: the slot is another's after that. */
  #lastDeadline: Instant | undefined
  #local: Keeping | undefined

  constructor(
    heartbeat: ThreadHeartbeat,
    lease: Kept,
    slot: Slot,
    options: LeaseOptions & { readonly stopsAtMs: number },
  ) {
    this.#heartbeat = heartbeat
    this.lease = lease
    this.#slot = slot
    this.#options = options
  }

  get deadline(): Instant {
    return this.#local?.deadline ?? this.#lastDeadline ?? deadlineIn(this.#slot)
  }

  get endsAtMs(): number {
    return this.#local?.endsAtMs ?? this.deadline.monotonicMs + marginMs(this.lease.ttlMs)
  }

  /** The worker renews; here it is only looked up when the lease ends as things stand. */
  due(): void {
    if (this.#local === undefined) this.#heartbeat.schedule(this.lease, this)
    else this.#local.due()
  }

  async renew(ttlMs: number): Promise<boolean> {
    if (this.#local !== undefined) return this.#local.renew(ttlMs)
    const renewed = await this.#heartbeat.renew(this.lease.ref.claimId, ttlMs)
    // The deadline may have come nearer.
    if (this.lease.held) this.#heartbeat.schedule(this.lease, this)
    return renewed
  }

  /** The worker never does anything else. */
  repeat(): void {}

  async end(): Promise<void> {
    this.#lastDeadline = this.deadline
    await Promise.all([this.#local?.end(), this.#heartbeat.end(this.lease, this.#slot)])
  }

  continueWith(local: Heartbeat, now: Instant): void {
    const { ttlMs } = this.lease
    // As if it had been granted just when its present deadline began to count.
    const sent = later(this.deadline, marginMs(ttlMs) - ttlMs)
    const maxHoldMs = this.#options.stopsAtMs - sent.monotonicMs
    this.#local = local.keep(
      this.lease,
      { sent, answered: now, grantedMs: ttlMs, unansweredMs: ttlMs },
      { ...this.#options, maxHoldMs },
    )
  }
}

export interface WorkerStart {
  readonly reopen: Reopen
  readonly callTimeoutMs: number
  readonly stalledAfterMs: number
  /** The main thread's last sign of life, in whole milliseconds of the monotonic clock, which all threads share. */
  readonly life: BigInt64Array
}

/** A lease is called by its claim's id. */
export type ToWorker =
  | {
      readonly type: 'keep'
      readonly slot: Slot
      readonly ref: LeaseRef & { readonly fencingToken: number }
      readonly ttlMs: number
      readonly start: KeepingStart
      readonly maxHoldMs: number
    }
  | { readonly type: 'renew'; readonly id: string; readonly call: number; readonly ttlMs: number }
  | { readonly type: 'end'; readonly id: string }

export type FromWorker =
  | RenewedMessage
  | { readonly type: 'ended'; readonly id: string }
  | { readonly type: 'lost'; readonly id: string; readonly reason: string }
  | { readonly type: 'failed'; readonly id: string; readonly error: string }

interface RenewedMessage {
  readonly type: 'renewed'
  readonly call: number
  readonly renewed: boolean
  readonly error?: string
}
