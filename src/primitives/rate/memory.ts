import { type Clock, dueAtMs, type Instant, isPast, later } from '../../core/time/clock.ts'
import type { Limit, RateLimitResult } from './limits.ts'

/**
 * What a process knows without asking. A refusal lasts until its time is up, since nobody can give units back: until then the store need not be
 * asked for as much or more. It is counted from the moment of asking, so it never outlasts the store's own. Now and then the store is asked all the
 * same: another process may have reset the key, or somebody may have emptied the store.
 */
export class RateMemory {
  readonly #clock: Clock
  readonly #limits: readonly Limit[]
  readonly #refusals = new Map<string, Refusal>()
  #changedAtMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock, limits: readonly Limit[]) {
    this.#clock = clock
    this.#limits = limits
  }

  /** The answer, if it must be no. */
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

  /** The key was reset or blocked. What the store was asked before this says nothing any more, also if its answer comes later. */
  forget(key: string): void {
    this.#refusals.delete(key)
    this.#changedAtMs = this.#clock.now().monotonicMs
  }

  note(key: string, cost: number, askedAt: Instant, result: RateLimitResult): void {
    // Of any key, so that there is only one moment to keep: changes are rare.
    if (askedAt.monotonicMs <= this.#changedAtMs) return
    const known = this.#refusals.get(key)
    const until = later(askedAt, result.retryAfterSeconds * 1_000)
    // One refusal for each key. That of the smaller cost says more.
    if (known !== undefined && known.cost < cost && !isPast(known.until, askedAt)) return
    if (this.#refusals.size >= MAX_REFUSALS) {
      const [oldest = key] = this.#refusals.keys()
      this.#refusals.delete(oldest)
    }
    this.#refusals.set(key, { cost, until, askAgain: later(askedAt, MAX_MEMORY_MS), result })
  }

  /** A refusal as it is some time later: the waits are shorter, and nothing more is promised than before. A larger cost waits longer. */
  #aged({ result, cost: refused }: Refusal, cost: number, leftMs: number): RateLimitResult {
    const leftSeconds = Math.max(0, leftMs) / 1_000
    const agedSeconds = Math.max(0, result.retryAfterSeconds - leftSeconds)
    const younger = (seconds: number): number => Math.max(0, seconds - agedSeconds)
    const limits = result.limits.map(({ remaining, nextAfterSeconds, resetAfterSeconds }) => ({
      remaining,
      nextAfterSeconds: younger(nextAfterSeconds),
      resetAfterSeconds: younger(resetAfterSeconds),
    }))
    const retryAfterSeconds =
      cost === refused ? leftSeconds : Math.max(leftSeconds, ...limits.map((each, at) => this.#until(each, cost, at)))
    return { ...result, retryAfterSeconds, resetAfterSeconds: younger(result.resetAfterSeconds), limits }
  }

  /** When a limit can give so much: what has been taken of it is what has to come back until it is full. */
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

/** How many keys' refusals are remembered; the oldest is forgotten first, and then the store is asked. */
const MAX_REFUSALS = 10_000
const MAX_MEMORY_MS = 10_000
