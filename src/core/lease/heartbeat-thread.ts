import type { Worker } from 'node:worker_threads'
import { StoreError, UnsupportedError } from '../errors.ts'
import { MAX_ENDING_LEASES } from '../limits.ts'
import { settlesWithin } from '../time/abort.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Instant, Timer } from '../time/clock.ts'
import { queueMicrotask } from '../time/native-time.ts'
import { trustedUntil } from './deadline.ts'
import { createHeartbeat, type LocalHeartbeat } from './local-renewer.ts'
import { type HeartbeatThread, RemoteRenewer } from './remote-renewer.ts'
import type {
  Heartbeat,
  HeartbeatParts,
  Renewable,
  Renewer,
  RenewerOptions,
  RenewerStart,
  RenewMode,
} from './renewer.ts'
import { type Slot, SlotPool } from './shared-deadlines.ts'
import type { FromWorker, RenewAnswer, ToWorker, WorkerStart } from './thread-messages.ts'

export interface ThreadOptions {
  readonly callTimeoutMs: number
  /** How long the main thread may be stalled before the worker stops renewing for it. */
  readonly stalledAfterMs: number
}

/**
 * A heartbeat in a worker thread with its own driver, so that a blocked event loop does not lose its leases.
 *
 * - The worker renews, and writes each deadline into shared memory. The main thread reads it there without running its
 *   event loop.
 * - The main thread writes into shared memory when it last ran. If that is `stalledAfterMs` ago, the worker stops
 *   renewing and the leases expire: a main thread that hangs forever must not hold its locks forever.
 * - If the worker dies, the main thread renews its leases. It also takes back each lease whose deadline the worker has
 *   not moved in time: the connection of the worker may hang, or the worker may not have started yet.
 *
 * @throws `UnsupportedError` in a bundle: the worker would have to import the driver from the bundle, which would run
 * the whole application a second time
 */
export function threadHeartbeat(options: ThreadOptions): (parts: HeartbeatParts) => Heartbeat {
  if (!isFileOfThePackage()) throw new UnsupportedError(BUNDLED)
  return (parts) => new ThreadHeartbeat(parts, options)
}

/**
 * In a bundle, the URL is that of the bundle, or undefined. webpack and Turbopack write the path that the file had on
 * the machine that built the bundle.
 */
function isFileOfThePackage(): boolean {
  const url = import.meta.url ?? ''
  const { existsSync } = process.getBuiltinModule('node:fs')
  return /^file:.*\/heartbeat-thread\.[jt]s$/.test(url) && existsSync(new URL(url))
}

const BUNDLED =
  'heartbeatThread does not work in a bundle, because the thread is started from a file of the package. ' +
  'Configure the bundler to treat holdfast as external, or remove heartbeatThread'

class ThreadHeartbeat implements Heartbeat, HeartbeatThread {
  readonly local: LocalHeartbeat
  readonly #parts: HeartbeatParts
  readonly #stalledAfterMs: number
  readonly #lastAlive = new BigInt64Array(new SharedArrayBuffer(8))
  readonly #slots = new SlotPool()
  readonly #renewers = new Map<string, RemoteRenewer>()
  /**
   * Leases that have ended here, until the worker confirms it. Before that the worker may still write into their slots.
   */
  readonly #ending = new Map<string, { readonly slot: Slot; ended(unansweredMs: number | undefined): void }>()
  readonly #calls = new Map<number, { readonly id: string; answer(answer: RenewAnswer): void }>()
  readonly #start: WorkerStart
  /** Started with the first lease: a claim that is refused needs no thread. */
  #worker: Worker | undefined
  /** Resolves when the worker has opened its driver, or has ended. */
  #opened: Promise<void> = Promise.resolve()
  #confirmOpened = (): void => {}
  #aliveTimer: Timer | undefined
  #lastCall = 0
  #failures = 0
  /** After a worker has died, new leases are renewed locally until this moment. */
  #restartAtMs = Number.NEGATIVE_INFINITY
  #closed = false

  constructor(parts: HeartbeatParts, { callTimeoutMs, stalledAfterMs }: ThreadOptions) {
    const reopen = parts.store.driver.extensions?.reopen
    if (reopen === undefined) throw new Error('the holder accepts a thread only with a driver that has `reopen`')
    this.#parts = parts
    this.local = createHeartbeat(parts)
    this.#stalledAfterMs = stalledAfterMs
    this.#start = { reopen, callTimeoutMs, stalledAfterMs, lastAlive: this.#lastAlive }
  }

  createRenewer(lease: Renewable, start: RenewerStart, options: RenewerOptions): Renewer {
    return new RemoteRenewer(this, this.#parts, lease, start, options)
  }

  start(renewer: RemoteRenewer, start: RenewerStart, maxHoldMs: number): Slot | undefined {
    const { ref, ttlMs } = renewer.lease
    const mayUseWorker = !this.#closed && start.answered.monotonicMs >= this.#restartAtMs
    // A thread that hangs confirms nothing.
    if (!mayUseWorker || this.#ending.size >= MAX_ENDING_LEASES) return undefined
    // The worker may not have forgotten an earlier lease of this claim, which was handed over and came back.
    if (this.#ending.has(ref.claimId) || !this.#hasWorker()) return undefined
    const slot = this.#slots.allocate(trustedUntil(start.sent, start.grantedMs))
    this.#renewers.set(ref.claimId, renewer)
    this.#reportAlive()
    this.#post({ type: 'start', slot, ref, ttlMs, start, maxHoldMs })
    return slot
  }

  forget({ ref: { claimId } }: Renewable, slot: Slot): Promise<number | undefined> {
    if (!this.#renewers.delete(claimId)) return Promise.resolve(undefined)
    if (this.#renewers.size === 0) this.#aliveTimer?.cancel()
    if (this.#worker === undefined) {
      this.#slots.free(slot)
      return Promise.resolve(undefined)
    }
    this.#post({ type: 'end', id: claimId })
    // A caller that waits for an extension must not wait for a worker that may hang.
    for (const { id, answer } of [...this.#calls.values()]) if (id === claimId) answer({ renewed: false })
    return new Promise((ended) => {
      this.#ending.set(claimId, { slot, ended })
    })
  }

  renew(id: string, ttlMs: number, mode: RenewMode | 'confirm'): Promise<boolean> {
    if (this.#worker === undefined) return Promise.reject(new StoreError('the heartbeat thread has ended'))
    return new Promise((resolve, reject) => {
      this.#lastCall += 1
      const call = this.#lastCall
      const answer = ({ renewed, error }: RenewAnswer): void => {
        this.#calls.delete(call)
        if (error === undefined) resolve(renewed)
        else reject(new StoreError(error))
      }
      this.#calls.set(call, { id, answer })
      this.#post({ type: 'renew', id, call, ttlMs, mode })
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#aliveTimer?.cancel()
    this.#settleAll(new Error('the instance was closed'))
    const worker = this.#worker
    this.#worker = undefined
    if (worker === undefined) return
    // The caller awaits the end of the thread: the process must stay alive until then.
    worker.ref()
    // A thread that is ended while it reads files leaves them open in the process.
    await settlesWithin(this.#parts.clock, MAX_OPENING_MS, this.#opened)
    await worker.terminate()
  }

  #post(message: ToWorker): void {
    this.#worker?.postMessage(message)
  }

  /**
   * Starts the worker if there is none. Returns false if that fails, for example for lack of permission or memory. The
   * lease of the caller must not suffer from it.
   */
  #hasWorker(): boolean {
    try {
      this.#worker ??= this.#startWorker()
      return true
    } catch (error) {
      // Deferred: a listener may do anything, and the lease that needed the thread is not ready yet.
      queueMicrotask(() => this.#parts.events.heard('heartbeatFailed')?.({ error }))
      this.#postponeRestart()
      return false
    }
  }

  #startWorker(): Worker {
    // Not `new URL('./…', import.meta.url)`: bundlers would add the file to each bundle of the package.
    const file = new URL(import.meta.url.replace(/\.[jt]s$/, '-entry.js'))
    // Imported when it is needed: it would be a tenth of the time that an import of the package takes.
    const { Worker } = process.getBuiltinModule('node:worker_threads')
    const worker = new Worker(file, { workerData: this.#start, name: 'holdfast-heartbeat' })
    this.#opened = new Promise((resolve) => {
      this.#confirmOpened = resolve
      worker.once('exit', () => resolve())
    })
    worker.on('message', (message: FromWorker) => this.#receive(message))
    worker.on('error', (error) => this.#takeOver(worker, error))
    worker.on('exit', (code) => this.#takeOver(worker, new Error(`the heartbeat thread ended with code ${code}`)))
    // A thread that hangs must not keep the process alive. A caller that waits for it has a timer that does. After the
    // listeners: adding the first one makes the worker keep the process alive again.
    worker.unref()
    return worker
  }

  #receive(message: FromWorker): void {
    if (message.type === 'opened') {
      this.#confirmOpened()
      return
    }
    if (message.type === 'renew answer') {
      this.#calls.get(message.call)?.answer(message)
      return
    }
    if (message.type === 'ended') {
      const ending = this.#ending.get(message.id)
      this.#ending.delete(message.id)
      if (ending !== undefined) this.#slots.free(ending.slot)
      ending?.ended(message.unansweredMs)
      return
    }
    const lease = this.#renewers.get(message.id)?.lease
    if (lease === undefined) return
    if (message.type === 'lost') {
      lease.lose(message.loss)
      return
    }
    // No event follows the loss of a lease.
    if (!lease.held) return
    if (message.type === 'renewed') {
      this.#failures = 0
      const { tookMs } = message
      this.#parts.events.heard('renewed')?.({ ...lease.eventBase, tookMs })
    } else {
      this.#parts.events.heard('renewalFailed')?.({ ...lease.eventBase, error: new StoreError(message.error) })
    }
  }

  /** Callers must not wait forever for a thread that no longer exists. */
  #settleAll(cause: Error): void {
    for (const { answer } of [...this.#calls.values()]) answer({ renewed: false, error: cause.message })
    for (const { slot, ended } of this.#ending.values()) {
      this.#slots.free(slot)
      ended(undefined)
    }
    this.#ending.clear()
  }

  #reportAlive(): void {
    const { clock } = this.#parts
    Atomics.store(this.#lastAlive, 0, BigInt(Math.floor(clock.now().monotonicMs)))
    this.#aliveTimer?.cancel()
    this.#aliveTimer = clock.setTimer(() => this.#reportAlive(), Math.min(1_000, this.#stalledAfterMs / 4))
  }

  /** The worker has died: its leases are renewed locally. The first lease after a pause starts another worker. */
  #takeOver(worker: Worker, cause: Error): void {
    if (this.#worker !== worker) return
    this.#worker = undefined
    const now = this.#postponeRestart()
    this.#aliveTimer?.cancel()
    this.#parts.events.heard('heartbeatFailed')?.({ error: cause })
    this.#settleAll(cause)
    const renewers = [...this.#renewers.values()]
    this.#renewers.clear()
    for (const renewer of renewers) {
      const slot = renewer.renewLocally(now)
      if (slot !== undefined) this.#slots.free(slot)
    }
  }

  #postponeRestart(): Instant {
    const now = this.#parts.clock.now()
    this.#failures += 1
    this.#restartAtMs = now.monotonicMs + backoffMs(RESTART, this.#failures, this.#parts.random)
    return now
  }
}

/** How long `close` waits for a thread that is still loading its code. Its driver may hang while it opens. */
const MAX_OPENING_MS = 2_000
const RESTART = { firstMs: 2_000, maxMs: 60_000 }
