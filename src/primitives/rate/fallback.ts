import { StoreError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { RateLimitResult } from './limits.ts'

/**
 * Another limiter that answers while the store of the first cannot be reached. When a call has failed, no call waits
 * for the store until it is time to try again. Then one call tries it, and the fallback answers the others until that
 * one is answered. So an outage delays one call at a time.
 */
export class RateFallback<Limiter extends LimiterWithLimits> {
  readonly limiter: Limiter
  readonly #clock: Clock
  readonly #tryAgainMs: number
  readonly #onFailure: (error: StoreError) => void
  readonly #mostCost: number
  /** On the monotonic clock: when to try the store again. Undefined: it answered the last call. */
  #tryAtMs: number | undefined

  /** `onFailure` is called when the store has failed and the fallback answers. */
  constructor(limiter: Limiter, clock: Clock, tryAgainMs: number, onFailure: (error: StoreError) => void) {
    this.limiter = limiter
    this.#clock = clock
    this.#tryAgainMs = tryAgainMs
    this.#onFailure = onFailure
    this.#mostCost = Math.min(...limiter.limits.map(({ burst }) => burst))
  }

  /**
   * The store's answer, or else the fallback's. Throws the store's error for a cost that the fallback can never allow.
   */
  async or(
    store: () => Promise<RateLimitResult>,
    other: (limiter: Limiter) => Promise<RateLimitResult>,
    cost: number,
  ): Promise<RateLimitResult> {
    const canAnswer = cost <= this.#mostCost
    if (canAnswer && this.#tryAtMs !== undefined) {
      if (this.#clock.now().monotonicMs < this.#tryAtMs) return this.#answerOf(other)
      // This call tries the store. No other does until it is answered.
      this.#tryAtMs = Number.POSITIVE_INFINITY
    }
    try {
      const result = await store()
      // The answer came without asking the store, so the next call tries it.
      if (this.#tryAtMs === Number.POSITIVE_INFINITY) this.#tryAtMs = this.#clock.now().monotonicMs
      return result
    } catch (error) {
      if (!(error instanceof StoreError)) {
        this.#tryAtMs = undefined
        throw error
      }
      this.#tryAtMs = this.#clock.now().monotonicMs + this.#tryAgainMs
      if (!canAnswer) throw error
      this.#onFailure(error)
      return this.#answerOf(other)
    }
  }

  /** The store itself has answered. */
  answered(): void {
    this.#tryAtMs = undefined
  }

  async #answerOf(other: (limiter: Limiter) => Promise<RateLimitResult>): Promise<RateLimitResult> {
    return { ...(await other(this.limiter)), fallback: true }
  }
}

interface LimiterWithLimits {
  readonly limits: readonly { readonly burst: number }[]
}
