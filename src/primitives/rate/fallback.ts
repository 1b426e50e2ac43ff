import { StoreError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { RateLimitResult } from './limits.ts'

/**
 * Another limiter, which answers while the store of the first cannot be asked. Once a call has failed, none waits for the store any more until its time has come; then one
 * call tries it, and the others go on with the fallback until that one is answered. So an outage costs one call at a time its timeout.
 */
export class RateFallback<Limiter extends LimiterWithLimits> {
  readonly limiter: Limiter
  readonly #clock: Clock
  readonly #tryAgainMs: number
  readonly #mostCost: number
  /** On the monotonic clock: when the store is tried again. Undefined: it answered the last call. */
  #tryAtMs: number | undefined

  constructor(limiter: Limiter, clock: Clock, tryAgainMs: number) {
    this.limiter = limiter
    this.#clock = clock
    this.#tryAgainMs = tryAgainMs
    this.#mostCost = Math.min(...limiter.limits.map(({ burst }) => burst))
  }

  /** What the store says, or else the fallback. A cost that the fallback could never allow has the store's error. */
  async or(
    store: () => Promise<RateLimitResult>,
    other: (limiter: Limiter) => Promise<RateLimitResult>,
    cost: number,
  ): Promise<RateLimitResult> {
    const canAnswer = cost <= this.#mostCost
    if (canAnswer && this.#tryAtMs !== undefined) {
      if (this.#clock.now().monotonicMs < this.#tryAtMs) return this.#answerOf(other)
      // This call tries it; until it is answered, no other does.
      this.#tryAtMs = Number.POSITIVE_INFINITY
    }
    try {
      const result = await store()
      // Known without asking the store: the next call tries it.
      if (this.#tryAtMs === Number.POSITIVE_INFINITY) this.#tryAtMs = this.#clock.now().monotonicMs
      return result
    } catch (error) {
      if (!(error instanceof StoreError)) {
        this.#tryAtMs = undefined
        throw error
      }
      this.#tryAtMs = this.#clock.now().monotonicMs + this.#tryAgainMs
      if (!canAnswer) throw error
      return this.#answerOf(other)
    }
  }

  /** By the store itself. */
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
