import { MAX_TURN_MS } from '../limits.ts'
import type { Clock } from './clock.ts'

/**
 * Gives the event loop its turns. A store inside the process answers without one, so a loop that awaits one call after the
 * other would run in microtasks alone: no timer fires, no heartbeat is sent, and the lease around the loop is lost.
 */
export class Turns {
  readonly #clock: Clock
  #lastMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Whether the next step has to wait for a turn. Also true if turns took place that were not asked for here. */
  owed(nowMs: number): boolean {
    return nowMs - this.#lastMs >= MAX_TURN_MS && this.#clock.nextTurn !== undefined
  }

  /** Runs in the next turn. */
  next(run: () => void): void {
    this.#clock.nextTurn?.(() => {
      this.#lastMs = this.#clock.now().monotonicMs
      run()
    })
  }

  /** The same result, in a later turn if one is owed. */
  settle<T>(result: Promise<T>): Promise<T> {
    if (!this.owed(this.#clock.now().monotonicMs)) return result
    // A rejection is passed on below; until then nobody has a handler on it.
    result.catch(() => {})
    return new Promise((resolve) => this.next(() => resolve(result)))
  }
}

/** One for each clock: all that a process does shares one event loop. */
export function turnsOf(clock: Clock): Turns {
  const known = turns.get(clock) ?? new Turns(clock)
  turns.set(clock, known)
  return known
}

const turns = new WeakMap<Clock, Turns>()
