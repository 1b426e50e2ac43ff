import { MAX_RENEWALS_PER_TURN } from '../limits.ts'
import type { Clock, Instant } from '../time/clock.ts'
import { type Turns, turnsOf } from '../time/turns.ts'

/** A lease whose heartbeat is due. */
export interface DueHeartbeat {
  /** Checks the lease's deadline, and sends the heartbeat. All heartbeats of a turn get the same `now`. */
  sendHeartbeat(now: Instant): void
}

/**
 * Sends the heartbeats that are due, a bounded number of them in each turn of the event loop. Leases that were acquired
 * together are due together. To send 10,000 heartbeats in one turn would block the event loop for so long that
 * deadlines of other leases are reported late.
 */
export class HeartbeatQueue {
  readonly #clock: Clock
  readonly #turns: Turns
  readonly #urgent: DueHeartbeat[] = []
  readonly #others: DueHeartbeat[] = []
  #isSending = false

  constructor(clock: Clock) {
    this.#clock = clock
    this.#turns = turnsOf(clock)
  }

  /** `leftMs`: how long the lease can be relied on without this heartbeat. */
  add(heartbeat: DueHeartbeat, leftMs: number): void {
    // In virtual time there are no turns.
    if (this.#clock.nextTurn === undefined) {
      heartbeat.sendHeartbeat(this.#clock.now())
      return
    }
    const queue = leftMs < URGENT_MS ? this.#urgent : this.#others
    queue.push(heartbeat)
    if (this.#isSending) return
    this.#isSending = true
    this.#turns.next(this.#sendSome)
  }

  readonly #sendSome = (): void => {
    const heartbeats = this.#urgent.splice(0, MAX_RENEWALS_PER_TURN)
    const room = MAX_RENEWALS_PER_TURN - heartbeats.length
    if (room > 0) heartbeats.push(...this.#others.splice(0, room))
    this.#isSending = this.#urgent.length + this.#others.length > 0
    if (this.#isSending) this.#turns.next(this.#sendSome)
    const now = this.#clock.now()
    for (const heartbeat of heartbeats) heartbeat.sendHeartbeat(now)
  }
}

/**
 * Leases that end sooner than this overtake the others. A lease with a short TTL must not wait behind thousands of
 * leases that have more time.
 */
const URGENT_MS = 1_000
