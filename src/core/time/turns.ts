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
  /** From when on a step waits for the turn that was asked for. Undefined: none was. */
  #dueMs: number | undefined

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /**
   * Whether the next step has to wait for a turn of the event loop. Turns that the loop took by itself are not known.
   * So a turn is asked for in the background, and a step waits only if that has not come in time: the first step after
   * an idle time, or after an answer from a socket, does not wait.
   */
  owed(nowMs: number): boolean {
    if (this.#clock.nextTurn === undefined) return false
    if (this.#dueMs !== undefined) return nowMs >= this.#dueMs
    if (nowMs - this.#lastMs >= MAX_TURN_MS / 2) this.#ask(nowMs, nowMs + MAX_TURN_MS / 2)
    return false
  }

  /** Calls `run` in the next turn. */
  next(run: () => void): void {
    const askedMs = this.#clock.now().monotonicMs
    this.#clock.nextTurn?.(() => {
      this.#began(askedMs)
      // The next one is asked for before the steps of this one: each of them may take long.
      if (this.#dueMs === undefined) this.#ask(this.#lastMs, this.#lastMs + MAX_TURN_MS)
      run()
    })
  }

  #ask(nowMs: number, dueMs: number): void {
    this.#dueMs = dueMs
    this.#clock.nextTurn?.(() => this.#began(nowMs))
  }

  #began(askedMs: number): void {
    // Another callback of the same turn was first, and no timer has run since.
    if (askedMs < this.#lastMs) return
    this.#lastMs = this.#clock.now().monotonicMs
    this.#dueMs = undefined
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
