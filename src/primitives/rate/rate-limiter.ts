import { checkSignal, checkWhole, waitMsFrom } from '../../core/arguments.ts'
import type { Holder } from '../../core/claim/holder.ts'
import type { RateAnswer, RateChange, RateRequest } from '../../core/driver.ts'
import { ClosedError, InvalidArgumentError, RateLimitedError, UnsupportedError } from '../../core/errors.ts'
import { checkLockName } from '../../core/names.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { type Clock, type Instant, systemClock } from '../../core/time/clock.ts'
import { type Random, systemRandom } from '../../core/time/random.ts'
import { type Turns, turnsOf } from '../../core/time/turns.ts'
import { everything } from '../everything.ts'
import { Instance, type InstanceOptions } from '../instance.ts'
import { RateFallback } from './fallback.ts'
import { foreseen, type Limit, limitsFrom, type RateLimitOptions, type RateLimitResult, resultFrom } from './limits.ts'
import { checkShare, type LocalShareOptions, LocalShares } from './local-share.ts'
import { RateMemory } from './memory.ts'
import { RateWaiting } from './waiting.ts'

export interface RateLimiterOptions
  extends Pick<InstanceOptions, 'driver' | 'url' | 'callTimeoutSeconds' | 'clock' | 'random'> {
  /** One limit, or up to four that hold together: all of them allow a call, or none is charged. */
  limits: RateLimitOptions | readonly RateLimitOptions[]
  /**
   * Takes units from the store in blocks and hands them out in this process, for keys that are in constant use: one round trip for each block
   * instead of each call. The store is never asked for more than its limits; but a unit may be used up to `forSeconds` after it was paid for, so up to
   * `units` more for each process can fall into a period, and up to `units` for each key and process are lost when they are not used in time.
   */
  localShare?: LocalShareOptions
  /**
   * Answers instead of the store while that cannot be asked (`StoreError`), such as a limiter in memory: `new RateLimiter({ url: 'memory:', limits })`. Its limits
   * then count for each process by itself, and its answers have `fallback: true`. It stays the caller's, who closes it. Without it, the `StoreError` is thrown.
   */
  fallback?: RateLimiter
  /**
   * How long the fallback answers before the store is tried again, with one call; the others are answered by the fallback until the store has answered that one.
   * @default 1
   */
  fallbackSeconds?: number
}

export interface ConsumeOptions {
  /** How many units the call takes, all or none: 1 if not said, at most the smallest burst. */
  cost?: number
}

export interface RateWaitOptions extends ConsumeOptions {
  /** How long to wait at most: 10 if not said. */
  timeoutSeconds?: number
  /** Gives up waiting. */
  signal?: AbortSignal
}

const OPTIONS = optionNames<RateLimiterOptions>({
  driver: true,
  url: true,
  callTimeoutSeconds: true,
  clock: true,
  random: true,
  limits: true,
  localShare: true,
  fallback: true,
  fallbackSeconds: true,
})
const CONSUME_OPTIONS = optionNames<ConsumeOptions>({ cost: true })
const WAIT_OPTIONS = optionNames<RateWaitOptions>({ cost: true, timeoutSeconds: true, signal: true })

/**
 * Says how often something may be done, over all processes on one store: by the generic cell rate algorithm, on the
 * store's own clock. A limiter has the limits, the key says for whom they count, such as `login:user:7`. Limiters on one
 * store share the units of a key under each limit that they have in common.
 */
export class RateLimiter implements AsyncDisposable {
  readonly #instance: Instance
  readonly #clock: Clock
  readonly #turns: Turns
  readonly #limits: readonly Limit[]
  readonly #mostCost: number
  readonly #memory: RateMemory
  readonly #shares: LocalShares | undefined
  readonly #waiting: RateWaiting
  readonly #fallback: RateFallback<RateLimiter> | undefined
  readonly #random: Random

  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options: RateLimiterOptions) {
    this.#instance = new Instance('RateLimiter', options, everything, OPTIONS)
    this.#limits = limitsFrom(options.limits)
    this.#mostCost = Math.min(...this.#limits.map(({ burst }) => burst))
    this.#clock = options.clock ?? systemClock
    this.#random = options.random ?? systemRandom
    this.#turns = turnsOf(this.#clock)
    this.#memory = new RateMemory(this.#clock, this.#limits)
    this.#waiting = new RateWaiting({
      clock: this.#clock,
      consume: (key, cost) => this.#take(key, cost),
      refusal: (key, cost) => this.#memory.refusal(key, cost),
    })
    if (options.localShare !== undefined) {
      const share = checkShare(options.localShare, this.#mostCost)
      this.#shares = new LocalShares(share, this.#clock, (key, cost) => this.#ask(key, cost))
    }
    const { fallback, fallbackSeconds = 1 } = options
    if (fallback !== undefined && !(fallback instanceof RateLimiter)) {
      throw new InvalidArgumentError('fallback', fallback, 'a RateLimiter')
    }
    const tryAgainMs = waitMsFrom('fallbackSeconds', fallbackSeconds)
    this.#fallback = fallback && new RateFallback(fallback, this.#clock, tryAgainMs)
  }

  /** The limits that it was given, with every burst. */
  get limits(): readonly Required<RateLimitOptions>[] {
    return this.#limits.map(({ limit, periodMs, burst }) => ({ limit, periodSeconds: periodMs / 1_000, burst }))
  }

  /**
   * Takes units for the key, all or none. Being over the limit is an answer: `allowed: false`, with when to come again.
   * Everything else throws: `StoreError` (not known whether it was taken), `InvalidArgumentError`, also for a cost that no
   * limit could ever allow, `UnsupportedError`, `OverloadError` (PostgreSQL: more than 32 different limits on one key),
   * `ClosedError`. What was refused is not charged. A refusal is remembered until its time is up, for 10 s at most, and
   * costs no round trip meanwhile. With a `fallback`, that answers instead of a `StoreError`.
   */
  consume(key: string, options?: ConsumeOptions): Promise<RateLimitResult> {
    // Not an async function: the way of every call goes through here, and one promise is enough.
    try {
      return this.#turns.settle(this.#take(key, this.#checked(key, options)))
    } catch (error) {
      return Promise.reject(error)
    }
  }

  /** As `consume`, and throws `RateLimitedError` instead of answering no. */
  async consumeOrThrow(key: string, options?: ConsumeOptions): Promise<RateLimitResult> {
    const result = await this.consume(key, options)
    if (!result.allowed) throw new RateLimitedError(key, result.retryAfterSeconds)
    return result
  }

  /** What `consume` would answer. It writes nothing. Units of this process's local share are not counted. */
  async peek(key: string, options?: ConsumeOptions): Promise<RateLimitResult> {
    const cost = this.#checked(key, options)
    const look = async (): Promise<RateLimitResult> =>
      foreseen(await this.#request({ name: key, cost: 0, limits: this.#limits }), cost, this.#limits)
    const looked =
      this.#fallback === undefined ? look() : this.#fallback.or(look, (other) => other.peek(key, { cost }), cost)
    return this.#turns.settle(looked)
  }

  /**
   * Forgets what was taken for the key under this limiter's limits, and a block. Other limits on the same key stay as they are. Processes that remember a
   * refusal allow calls again within 10 s; this limiter does so at once, and wakes who waits for the key.
   *
   * @throws `StoreError`, `InvalidArgumentError`, `UnsupportedError`, `ClosedError`
   */
  async reset(key: string): Promise<void> {
    this.#checked(key, undefined)
    await Promise.all([this.#change(key, 'reset'), this.#fallback?.limiter.reset(key)])
  }

  /**
   * Refuses every call for the key for so long from now on, in every process and limiter that has one of this limiter's limits, whatever there is left of it;
   * `retryAfterSeconds` says when it ends. What was taken before still counts afterwards. Called again, it sets another end; 0 ends a block. A local share of
   * another process may be used up first.
   *
   * @throws `StoreError`, `InvalidArgumentError`, `UnsupportedError`, `ClosedError`
   */
  async block(key: string, seconds: number): Promise<void> {
    this.#checked(key, undefined)
    const blockMs = waitMsFrom('seconds', seconds)
    await Promise.all([this.#change(key, { blockMs }), this.#fallback?.limiter.block(key, seconds)])
  }

  /**
   * Opens the store and proves that it works: takes a unit of a key that is new (`ping:` and a random part) and forgets it.
   *
   * @throws `StoreError`; its `retryable` is false for a fault that trying again cannot mend, such as a wrong password, missing tables or a read-only replica
   */
  async ping(): Promise<void> {
    this.#instance.assertOpen()
    const key = `ping:${this.#random.id()}`
    await this.#request({ name: key, cost: 1, limits: this.#limits })
    await this.#change(key, 'reset')
  }

  /**
   * Waits until the units can be had, and takes them. Throws `RateLimitedError` when they cannot be had in time, as soon as that is certain;
   * `AbortedError`, `ClosedError` while it waits, `OverloadError` if 100,000 calls of this limiter wait already, and what `consume` throws. An abort while
   * the store is being asked may leave the units taken.
   *
   * Those who have to wait for one key in this process are served first come, first served, whatever their cost. Between processes there is no order: each asks
   * again when the store said that it could succeed, and whoever is first then has it.
   */
  async wait(key: string, options: RateWaitOptions = {}): Promise<RateLimitResult> {
    const cost = this.#checked(key, options, WAIT_OPTIONS)
    const { timeoutSeconds = 10, signal } = options
    const waitMs = waitMsFrom('timeoutSeconds', timeoutSeconds)
    if (signal !== undefined) checkSignal('signal', signal)
    return this.#turns.settle(this.#waiting.wait({ key, cost, waitMs, signal }))
  }

  /** Gives up what waits, and closes the store if this limiter opened it. Later calls throw `ClosedError`. */
  close(): Promise<void> {
    const closing = this.#instance.close()
    this.#waiting.giveUp(new ClosedError('the limiter was closed while the call waited'))
    return closing
  }

  get closed(): boolean {
    return this.#instance.closed
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  #take(key: string, cost: number): Promise<RateLimitResult> {
    if (this.#fallback === undefined) return this.#takeHere(key, cost)
    // What the store has refused stays refused, as long as it is remembered.
    const refusal = this.#memory.refusal(key, cost)
    if (refusal !== undefined) return Promise.resolve(refusal)
    return this.#fallback.or(
      () => this.#takeHere(key, cost),
      (other) => other.consume(key, { cost }),
      cost,
    )
  }

  #takeHere(key: string, cost: number): Promise<RateLimitResult> {
    return this.#shares === undefined ? this.#ask(key, cost) : this.#shares.consume(key, cost)
  }

  async #change(key: string, change: RateChange): Promise<void> {
    const answer = await this.#request({ name: key, cost: 0, limits: this.#limits, change })
    this.#memory.forget(key)
    this.#shares?.forget(key)
    this.#waiting.wake(key)
    const isBlocked = answer.blockedMs !== undefined
    const isDone = change === 'reset' ? answer.resetAfterMs === 0 : change.blockMs > 0 === isBlocked
    if (!isDone) throw new UnsupportedError('the driver cannot reset or block a rate: it ignored the change')
  }

  /** For what is rare: with a promise on its way. */
  async #request(request: RateRequest): Promise<RateAnswer> {
    const holder = this.#instance.holder ?? (await this.#instance.open())
    const answer = await (holder.consumeAtOnce(request) ??
      new Promise<RateAnswer>((answered, failed) => holder.consume(request, { answered, failed })))
    this.#fallback?.answered()
    return answer
  }

  #ask(key: string, cost: number): Promise<RateLimitResult> {
    const refusal = this.#memory.refusal(key, cost)
    if (refusal !== undefined) return Promise.resolve(refusal)
    const { holder } = this.#instance
    return holder === undefined ? this.#openAndAsk(key, cost) : this.#send(holder, key, cost)
  }

  async #openAndAsk(key: string, cost: number): Promise<RateLimitResult> {
    return this.#send(await this.#instance.open(), key, cost)
  }

  #send(holder: Holder, key: string, cost: number): Promise<RateLimitResult> {
    const request = { name: key, cost, limits: this.#limits }
    const atOnce = holder.consumeAtOnce(request)
    if (atOnce instanceof Promise) return atOnce.then((answer) => this.#received(request, answer))
    if (atOnce !== undefined) return Promise.resolve(this.#received(request, atOnce))
    return new Promise((resolve, failed) => {
      const answered = (answer: RateAnswer, sent: Instant): void => resolve(this.#received(request, answer, sent))
      holder.consume(request, { answered, failed })
    })
  }

  /** `sent`: when the store was asked; now, if it was asked in this process. */
  #received({ name, cost }: RateRequest, answer: RateAnswer, sent?: Instant): RateLimitResult {
    const result = resultFrom(answer, this.#limits)
    this.#fallback?.answered()
    if (!result.allowed) this.#memory.note(name, cost, sent ?? this.#clock.now(), result)
    return result
  }

  #checked(key: string, options: ConsumeOptions | undefined, known = CONSUME_OPTIONS): number {
    checkLockName(key, 'key')
    this.#instance.assertOpen()
    if (options === undefined) return 1
    const { cost = 1 } = checkOptions(options, known)
    return checkWhole('cost', cost, 1, this.#mostCost)
  }
}
