import { earlier, type Instant, later } from './clock.ts'

/** What is held back from a lease's time, for clocks that run at slightly different rates: 1 % and 2 ms. */
export const marginMs = (ttlMs: number): number => ttlMs * 0.01 + 2

/** A lease is trusted from the moment its request was sent: when the store began to count is not known, only that it was later. */
export const trustedUntil = (sent: Instant, ttlMs: number): Instant => later(sent, ttlMs - marginMs(ttlMs))

/**
 * Until when a lease can be relied on, while renewals of different lengths may be under way and arrive in any order.
 *
 * A store sets the end of a lease to exactly what a renewal says. So a renewal that is still on its way, or whose answer
 * never came, may shorten the lease at any later moment, and nothing longer may be trusted while that can happen.
 */
export class Trust {
  #deadline: Instant
  #endsAtMs: number
  #unansweredMs = Number.POSITIVE_INFINITY
  readonly #underWay: number[] = []

  constructor(sent: Instant, ttlMs: number) {
    this.#deadline = trustedUntil(sent, ttlMs)
    this.#endsAtMs = sent.monotonicMs + ttlMs
  }

  get deadline(): Instant {
    return this.#deadline
  }

  /** When the store's own lease ends at the earliest, on the monotonic clock. */
  get endsAtMs(): number {
    return this.#endsAtMs
  }

  sending(sent: Instant, ttlMs: number): void {
    this.#underWay.push(ttlMs)
    this.#deadline = earlier(this.#deadline, trustedUntil(sent, ttlMs))
    this.#endsAtMs = Math.min(this.#endsAtMs, sent.monotonicMs + ttlMs)
  }

  confirmed(sent: Instant, ttlMs: number): void {
    this.#settled(ttlMs)
    const sureMs = Math.min(ttlMs, this.#unansweredMs, ...this.#underWay)
    this.#deadline = trustedUntil(sent, sureMs)
    this.#endsAtMs = sent.monotonicMs + sureMs
  }

  unanswered(ttlMs: number): void {
    this.#settled(ttlMs)
    this.#unansweredMs = Math.min(this.#unansweredMs, ttlMs)
  }

  #settled(ttlMs: number): void {
    this.#underWay.splice(this.#underWay.indexOf(ttlMs), 1)
  }
}
