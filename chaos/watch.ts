import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { nowMs } from './history.ts'
import type { Grant, HistoryWriter } from './history-writer.ts'
import { STALL_MS } from './stalls.ts'

/** The interval between two checks of a lease while it is held. */
const TICK_MS = 10
const MEMORY_EVERY_MS = 2_000
/** How long after the loss of a lease its signal is waited for, before it counts as missing. */
const SIGNAL_WITHIN_MS = 2_000

/** A lease or a term. */
export interface Held {
  readonly fencingToken: number
  readonly held: boolean
  readonly remainingSeconds: number
  readonly signal: AbortSignal
  release(): Promise<boolean>
}

/**
 * A lease that is checked while it is held, by `held` or by its signal alone. Reading `held` notices the end of a lease
 * at once and aborts its signal, so only a holder that does not read it shows how late a signal comes.
 */
export class Watch {
  readonly lease: Held
  readonly task: number
  readonly isBySignal: boolean
  readonly signal: AbortSignal
  readonly #history: HistoryWriter
  readonly #number: number
  /** The lease's own deadline lies between these two: the clock cannot be read at the same moment. */
  #deadline = { from: Number.POSITIVE_INFINITY, to: Number.POSITIVE_INFINITY }
  #heldUntil: number | undefined
  #ticksLate = 0
  #lateAtMs = Number.NEGATIVE_INFINITY
  #signalledAt: number | undefined
  #isOver = false
  readonly #onAbort = (): void => {
    this.#signalledAt = nowMs()
  }

  constructor(history: HistoryWriter, task: number, lease: Held, grant: Grant, isBySignal: boolean) {
    this.lease = lease
    this.task = task
    this.isBySignal = isBySignal
    this.#history = history
    this.#readDeadline()
    this.#heldUntil = grant.heldUntil
    this.#number = history.grant(grant)
    this.signal = lease.signal
    this.signal.addEventListener('abort', this.#onAbort)
    if (this.signal.aborted) this.#onAbort()
  }

  /** Must be called when the store has confirmed the lease, and when an extension is sent. */
  confirmed(): void {
    this.#readDeadline()
    this.#history.renewed(this.#number, nowMs())
  }

  #readDeadline(): void {
    const from = nowMs()
    const leftMs = this.lease.remainingSeconds * 1_000
    if (leftMs > 0) this.#deadline = { from: from + leftMs, to: nowMs() + leftMs }
  }

  /** Is called by a timer, which began at this time: a process that stalls in the midst of a turn is not late. */
  tick(beganAtMs: number): void {
    if (this.isBySignal && !this.signal.aborted) this.#countLate(beganAtMs)
    this.look()
  }

  /** After a stall, an interval may run twice in one turn of the event loop. The second time proves nothing. */
  #countLate(atMs: number): void {
    if (atMs <= this.#deadline.to || atMs - this.#lateAtMs < TICK_MS / 2) return
    this.#ticksLate += 1
    this.#lateAtMs = atMs
  }

  /** Reads the clock first: a process that is paused in between must not count as a holder afterwards. */
  look(): boolean {
    const atMs = nowMs()
    if (!this.#isReliedOn(atMs)) {
      // Between the two, the lease may still be valid, and be renewed.
      if (!this.isBySignal || this.signal.aborted || atMs > this.#deadline.to) this.#isOver = true
      return false
    }
    if (this.#isOver || (!this.isBySignal && this.signal.aborted)) this.#history.resurrected(this.#number)
    this.#heldUntil = atMs
    this.#history.held(this.task, this.#number, atMs)
    return true
  }

  #isReliedOn(atMs: number): boolean {
    if (!this.isBySignal) return this.lease.held
    return !this.signal.aborted && atMs <= this.#deadline.from
  }

  /** Releases the lease if it is still held. From then on it is not relied on. */
  async release(onError: (error: unknown) => string): Promise<void> {
    if (this.look()) {
      this.#history.end(this.#number, 'released', this.#heldUntil)
      // A term that is resigned aborts its signal.
      this.signal.removeEventListener('abort', this.#onAbort)
      const result = await this.lease.release().catch(onError)
      this.#history.released(this.#number, nowMs(), result)
      return
    }
    this.#history.end(this.#number, 'lost', this.#heldUntil)
    if (!this.signal.aborted) await this.#signalled()
    const { from, to } = this.#deadline
    this.#history.loss(this.#number, {
      ...(this.#signalledAt !== undefined && { signalledAt: this.#signalledAt }),
      ...(from < Number.POSITIVE_INFINITY && { deadlineAt: to }),
      ticksLate: this.#ticksLate,
      isBySignal: this.isBySignal,
    })
  }

  #signalled(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, SIGNAL_WITHIN_MS)
      this.signal.addEventListener('abort', () => {
        clearTimeout(timer)
        resolve()
      })
    })
  }
}

/** One timer for all leases of the process. It also notices when the process was stalled, and measures its memory. */
export class Watches {
  readonly #history: HistoryWriter
  readonly #all = new Set<Watch>()
  readonly #timer: NodeJS.Timeout
  readonly #collectGarbage: () => void
  #lastMs = nowMs()
  #memoryAtMs = this.#lastMs + MEMORY_EVERY_MS

  constructor(history: HistoryWriter) {
    this.#history = history
    setFlagsFromString('--expose-gc')
    this.#collectGarbage = runInNewContext('gc') as () => void
    this.#timer = setInterval(() => this.#tick(), TICK_MS)
  }

  begin(task: number, lease: Held, grant: Grant, isBySignal: boolean): Watch {
    const watch = new Watch(this.#history, task, lease, grant, isBySignal)
    this.#all.add(watch)
    return watch
  }

  /** The store has confirmed the lease with this token. */
  confirmed(token: number): void {
    for (const watch of this.#all) if (watch.lease.fencingToken === token) watch.confirmed()
  }

  forget(watch: Watch): void {
    this.#all.delete(watch)
  }

  close(): void {
    clearInterval(this.#timer)
    this.#history.alive(nowMs())
  }

  #tick(): void {
    const atMs = nowMs()
    if (atMs - this.#lastMs > STALL_MS) this.#history.stall({ fromMs: this.#lastMs, toMs: atMs })
    this.#lastMs = atMs
    this.#history.alive(atMs)
    for (const each of this.#all) each.tick(atMs)
    if (atMs >= this.#memoryAtMs) this.#measure(atMs)
  }

  #measure(atMs: number): void {
    this.#memoryAtMs = atMs + MEMORY_EVERY_MS
    this.#collectGarbage()
    const { rss: rssBytes, heapUsed: heapBytes } = process.memoryUsage()
    this.#history.memory({ atMs, rssBytes, heapBytes })
  }
}
