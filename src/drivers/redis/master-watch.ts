import { type Clock, systemClock } from '../../core/time/clock.ts'
import { isReadOnly } from './errors.ts'

/**
 * Behind one address, a master can be demoted and keep its connections open. Every write over them fails for as long as
 * the client stays connected, although a new connection would reach the new master. So the client is made to connect
 * again when a server refuses writes that has run a write command before. One that never did was a replica from the
 * start.
 */
export class MasterWatch {
  readonly #reconnect: () => void
  readonly #mayBePromoted: boolean
  readonly #clock: Clock
  readonly #listeners = new Set<() => void>()
  #hasWritten = false
  #isRefused = false
  #nextTryMs = Number.NEGATIVE_INFINITY

  constructor(reconnect: () => void, { mayBePromoted = false, clock = systemClock }: MasterWatchOptions = {}) {
    this.#reconnect = reconnect
    this.#mayBePromoted = mayBePromoted
    this.#clock = clock
  }

  /**
   * Nothing was ever written there: if it refuses writes, it was a replica from the start. False where Sentinel names the
   * server, which may be about to promote it.
   */
  get neverWrote(): boolean {
    return !this.#hasWritten && !this.#mayBePromoted
  }

  /** The server has run a write command, even if there was nothing to change. */
  wrote(): void {
    this.#hasWritten = true
    if (!this.#isRefused) return
    this.#isRefused = false
    for (const listener of [...this.#listeners]) listener()
  }

  failed(error: unknown): void {
    if (!this.#hasWritten || !isReadOnly(error)) return
    this.#isRefused = true
    const { monotonicMs } = this.#clock.now()
    if (monotonicMs < this.#nextTryMs) return
    this.#nextTryMs = monotonicMs + RECONNECT_EVERY_MS
    this.#reconnect()
  }

  /** Told when writes are taken again: by another server, as far as anyone knows. Returns what ends it. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
}

export interface MasterWatchOptions {
  /** The address comes from Sentinel. */
  readonly mayBePromoted?: boolean
  readonly clock?: Clock
}

/**
 * While the address still leads to the demoted server, a client that reconnects with every call would only add load.
 */
const RECONNECT_EVERY_MS = 1_000
