import { type Clock, dueAtMs, type Instant, isPast, later } from '../../core/time/clock.ts'
import { aged, type Limit, type RateLimitResult } from './limits.ts'

/**
 * The refusals that this process remembers. Units are never given back, so a refusal is valid until its time has
 * passed: until then, the store need not be asked for the same cost or more. The time counts from the request, so it
 * never ends after the store's own. From time to time the store is asked nevertheless: another process may have reset
 * the key, or the store may have been emptied.
 */
export class RememberedRefusals {
  readonly #clock: Clock
  readonly #limits: readonly Limit[]
  readonly #refusals = new Map<string, Refusal>()
  #changedAtMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock, limits: readonly Limit[]) {
    this.#clock = clock
    this.#limits = limits
  }

  /** The remembered refusal of such a call. */
  refusal(key: string, cost: number): RateLimitResult | undefined {
    const found = this.#refusals.size === 0 ? undefined : this.#refusals.get(key)
    if (found === undefined) return undefined
    const now = this.#clock.now()
    if (isPast(found.until, now) || isPast(found.askAgain, now)) {
      this.#refusals.delete(key)
      return undefined
    }
    if (cost < found.cost) return undefined
    return this.#aged(found, cost, dueAtMs(found.until, now) - now.monotonicMs)
  }

  /** The key was reset or blocked. Answers to earlier requests are then void, even if they arrive later. */
  forget(key: string): void {
    this.#refusals.delete(key)
    this.#changedAtMs = this.#clock.now().monotonicMs
  }

  /** Remembers a refusal. `askedAt` is when its request was sent. */
  note(key: string, cost: number, askedAt: Instant, result: RateLimitResult): void {
    // One moment for all keys: changes are rare.
    if (askedAt.monotonicMs <= this.#changedAtMs) return
    const known = this.#refusals.get(key)
    const until = later(askedAt, result.retryAfterSeconds * 1_000)
    // One refusal per key: that of the smaller cost covers more calls.
    if (known !== undefined && known.cost < cost && !isPast(known.until, askedAt)) return
    if (this.#refusals.size >= MAX_REFUSALS) {
      const [oldest = key] = this.#refusals.keys()
      this.#refusals.delete(oldest)
    }
    this.#refusals.set(key, { cost, until, askAgain: later(askedAt, MAX_MEMORY_MS), result })
  }

  /** The refusal some time later. A larger cost waits longer. */
  #aged({ result, cost: refused }: Refusal, cost: number, leftMs: number): RateLimitResult {
    const leftSeconds = Math.max(0, leftMs) / 1_000
    const later = aged(result, Math.max(0, result.retryAfterSeconds - leftSeconds))
    const retryAfterSeconds =
      cost === refused
        ? leftSeconds
        : Math.max(leftSeconds, ...later.limits.map((each, at) => this.#until(each, cost, at)))
    return { ...later, retryAfterSeconds }
  }

  /** The time until a limit allows this cost: what was taken has to become available again. */
  #until({ resetAfterSeconds }: { readonly resetAfterSeconds: number }, cost: number, at: number): number {
    const { spacingMs, fullMs } = this.#limits[at] as Limit
    return resetAfterSeconds + (spacingMs * cost - fullMs) / 1_000
  }
}

interface Refusal {
  readonly cost: number
  readonly until: Instant
  readonly askAgain: Instant
  readonly result: RateLimitResult
}

/** How many refusals are remembered. With more, the oldest is forgotten, and the store is asked for its key. */
const MAX_REFUSALS = 10_000
const MAX_MEMORY_MS = 10_000
