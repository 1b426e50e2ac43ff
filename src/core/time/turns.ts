import { MAX_TURN_MS } from '../limits.ts'
import type { Clock } from './clock.ts'

/**
 * Lets the event loop run from time to time. A store inside the process answers in microtasks, so a loop that awaits
 * one call after the other would never return to the event loop: no timer fires, no heartbeat is sent, and the lease
 * around the loop is lost.
 */
export class Turns {
  readonly #clock: Clock
  #lastMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /**
   * Whether the next step has to wait for a turn of the event loop. Turns that were not requested here do not count.
   */
  owed(nowMs: number): boolean {
    return nowMs - this.#lastMs >= MAX_TURN_MS && this.#clock.nextTurn !== undefined
  }

  /** Calls `run` in the next turn. */
  next(run: () => void): void {
    this.#clock.nextTurn?.(() => {
      this.#lastMs = this.#clock.now().monotonicMs
      run()
    })
  }

  /** Settles as `result` does, in a later turn if one is owed. */
  settle<T>(result: Promise<T>): Promise<T> {
    if (!this.owed(this.#clock.now().monotonicMs)) return result
    // The rejection is passed on below. Until then it would count as unhandled.
    result.catch(() => {})
    return new Promise((resolve) => this.next(() => resolve(result)))
  }
}

/** One object for each clock, because a process has one event loop. */
export function turnsOf(clock: Clock): Turns {
  const known = turns.get(clock) ?? new Turns(clock)
  turns.set(clock, known)
  return known
}

const turns = new WeakMap<Clock, Turns>()
