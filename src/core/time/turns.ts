import { MAX_TURN_MS } from '../limits.ts'
import type { Clock } from './clock.ts'

/**
 * Lets the event loop run from time to time. A store inside the process answers in microtasks, so a loop that awaits
 * one call after the other would never return to the event loop: no timer fires, no heartbeat is sent, and the lease
 * around the loop is lost.
 */
export class Turns {
  readonly #clock: Clock
  /** When the last turn that was asked for here began. */
  #lastMs = Number.NEGATIVE_INFINITY
  /** Since when a turn has been asked for and has not come. */
  #askedMs: number | undefined

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /**
   * Whether the next step has to wait for a turn of the event loop. In the second half of the longest time without a
   * turn, this asks for one. If it has not come when that time is over, a step waits for it. So the first step after an
   * idle time, or after an answer from a socket, does not wait.
   */
  owed(nowMs: number): boolean {
    if (nowMs - this.#lastMs < MAX_TURN_MS / 2 || this.#clock.nextTurn === undefined) return false
    if (this.#askedMs !== undefined) return nowMs - this.#askedMs >= MAX_TURN_MS / 2
    this.#askedMs = nowMs
    this.next(() => {})
    return false
  }

  /** Calls `run` in the next turn. */
  next(run: () => void): void {
    this.#clock.nextTurn?.(() => {
      this.#askedMs = undefined
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
