import { type Clock, systemClock } from '../../core/time/clock.ts'
import { isReadOnly } from './errors.ts'

/**
 * Behind one address, a master can be demoted and keep its connections open. Every write over them fails as long as the
 * client stays connected, although a new connection would reach the new master. So the client is made to reconnect when
 * a server refuses writes that has run a write command before. A server that never did was a replica from the start.
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
   * The server never ran a write command: if it refuses writes, it was a replica from the start. False if the address
   * comes from Sentinel, which may be about to promote the server.
   */
  get neverWrote(): boolean {
    return !this.#hasWritten && !this.#mayBePromoted
  }

  /** Whether it matters to this object that the server has run a write command: see `wrote`. */
  get expectsWrite(): boolean {
    return !this.#hasWritten || this.#isRefused
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

  /** Called when writes succeed again, presumably on another server. Returns a function that removes the listener. */
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
 * While the address still leads to the demoted server, reconnecting with every call would only add load.
 */
const RECONNECT_EVERY_MS = 1_000
