import { storeOpener } from '../../connect.ts'
import { checkLockName, checkSignal, checkWhole, waitMsFrom } from '../../core/arguments.ts'
import type { RateAnswer, RateChange, RateRequest } from '../../core/driver.ts'
import { ClosedError, InvalidArgumentError, RateLimitedError, StoreError, UnsupportedError } from '../../core/errors.ts'
import { checkOptions, isReadable, optionNames } from '../../core/options.ts'
import type { Instant } from '../../core/time/clock.ts'
import { type Turns, turnsOf } from '../../core/time/turns.ts'
import { Instance } from '../instance.ts'
import type { InstanceOptions } from '../instance-options.ts'
import { Closable } from '../primitive.ts'
import { RateFallback } from './fallback.ts'
import {
  CONSUME_OPTIONS,
  type ConsumeOptions,
  foreseen,
  type Limit,
  limitsFrom,
  type RateLimitOptions,
  type RateLimitResult,
  type RateWaitOptions,
  resultFrom,
  WAIT_OPTIONS,
} from './limits.ts'
import { checkShare, type LocalShareOptions, LocalShares } from './local-share.ts'
import { RememberedRefusals } from './remembered-refusals.ts'
import { RateWaiting } from './waiting.ts'

export interface RateLimiterOptions
  extends Pick<InstanceOptions, 'driver' | 'url' | 'callTimeoutSeconds' | 'clock' | 'random'> {
  /** One limit, or up to four. A call must be within all of them; otherwise none is charged. */
  limits: RateLimitOptions | readonly RateLimitOptions[]
  /**
   * Takes units from the store in blocks and hands them out in this process: one round trip per block instead of one
   * per call, for keys that are in constant use.
   *
   * The store never grants more than its limits. But a unit may be used up to `keepSeconds` after it was taken. So up
   * to `units` more per process can fall into a period, and up to `units` per key and process are lost if they are
   * not used in time.
   */
  localShare?: LocalShareOptions
  /**
   * A limiter that answers while the store cannot be reached (`StoreError`), such as one in memory: `new RateLimiter({
   * url: 'memory:', limits })`. Its limits then apply to each process separately, and its answers have `fallback:
   * true`. You close it yourself. Without a fallback, the `StoreError` is thrown.
   */
  fallback?: RateLimiter
  /**
   * How long the fallback answers before one call tries the store again. The fallback answers the other calls until the
   * store has answered that one.
   *
   * @default 1
   */
  fallbackSeconds?: number
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

/**
 * Limits how often something is done, over all processes on one store. It uses the generic cell rate algorithm (GCRA)
 * on the store's clock.
 *
 * A limiter has the limits. The key says to whom they apply, such as `login:user:7`. Limiters on one store share the
 * units of a key for each limit that they have in common.
 *
 * @example
 * ```ts
 * const limiter = new RateLimiter({ url: 'redis://localhost:6379', limits: { limit: 100, periodSeconds: 60 } })
 * const { allowed, retryAfterSeconds } = await limiter.consume('api:user:7')
 * if (!allowed) throw new Error(`try again in ${retryAfterSeconds} s`)
 * ```
 */
export class RateLimiter extends Closable {
  readonly #instance: Instance
  readonly #turns: Turns
  readonly #limits: readonly Limit[]
  readonly #mostCost: number
  readonly #memory: RememberedRefusals
  readonly #shares: LocalShares | undefined
  readonly #waiting: RateWaiting
  readonly #fallback: RateFallback<RateLimiter> | undefined

  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`
   */
  constructor(options: RateLimiterOptions) {
    const instance = new Instance('RateLimiter', options, storeOpener, OPTIONS)
    super(instance)
    this.#instance = instance
    const { clock } = instance
    this.#limits = limitsFrom(options.limits)
    this.#mostCost = Math.min(...this.#limits.map(({ burst }) => burst))
    this.#turns = turnsOf(clock)
    this.#memory = new RememberedRefusals(clock, this.#limits)
    this.#waiting = new RateWaiting({
      clock,
      consume: (key, cost) => this.#take(key, cost),
      refusal: (key, cost) => this.#memory.refusal(key, cost),
    })
    if (options.localShare !== undefined) {
      const share = checkShare(options.localShare, this.#mostCost)
      this.#shares = new LocalShares(share, clock, (key, cost) => this.#ask(key, cost))
    }
    const { fallback, fallbackSeconds = 1 } = options
    if (fallback !== undefined && !(isReadable(fallback) && fallback instanceof RateLimiter)) {
      throw new InvalidArgumentError('fallback', fallback, 'a RateLimiter')
    }
    const tryAgainMs = waitMsFrom('fallbackSeconds', fallbackSeconds)
    this.#fallback = fallback && new RateFallback(fallback, clock, tryAgainMs, (error) => this.#emitFailed(error))
  }

  /** The limits of this limiter, each with its burst. */
  get limits(): readonly Required<RateLimitOptions>[] {
    return this.#limits.map(({ limit, periodMs, burst }) => ({ limit, periodSeconds: periodMs / 1_000, burst }))
  }

  /**
   * Takes units for the key, all or none. Being over the limit is a value: `allowed: false`, with the time to try
   * again. A refused call is not charged.
   *
   * The process remembers a refusal until its time has passed, for at most 10 seconds, and answers such calls without a
   * round trip. With a `fallback`, that answers instead of a `StoreError`.
   *
   * @throws `StoreError` if it is unknown whether the units were taken
   * @throws `InvalidArgumentError`, also for a cost above the smallest burst, which could never be allowed
   * @throws `UnsupportedError` for a driver without rate limits
   * @throws `OverloadError` with more than 32 different limits on one key (PostgreSQL)
   * @throws `ClosedError`
   */
  consume(key: string, options?: ConsumeOptions): Promise<RateLimitResult> {
    try {
      const cost = this.#checked(key, options)
      return this.#noted(this.#turns.settle(this.#take(key, cost)), key, cost)
    } catch (error) {
      return Promise.reject(error)
    }
  }

  /** Without an event: the limiter that this is the fallback of emits one. */
  async #consumeAsFallback(key: string, cost: number): Promise<RateLimitResult> {
    return this.#turns.settle(this.#take(key, this.#checked(key, { cost })))
  }

  /** Not an async function: each call passes here, and one promise is enough where no one listens. */
  #noted(result: Promise<RateLimitResult>, key: string, cost: number): Promise<RateLimitResult> {
    const { events } = this.#instance
    if (events.heard('consumed') === undefined && events.heard('storeFailed') === undefined) return result
    const decided = (allowed: boolean, fallback: boolean): void =>
      events.heard('consumed')?.({ key, cost, allowed, fallback })
    return result.then(
      (known) => {
        decided(known.allowed, known.fallback === true)
        return known
      },
      (error: unknown) => {
        if (error instanceof RateLimitedError) decided(false, false)
        else if (error instanceof StoreError) this.#emitFailed(error)
        throw error
      },
    )
  }

  #emitFailed(error: StoreError): void {
    this.#instance.events.heard('storeFailed')?.({ operation: 'consume', error })
  }

  /**
   * As `consume`, but throws when the call is over the limit.
   *
   * @throws `RateLimitedError`, and what `consume` throws
   */
  async consumeOrThrow(key: string, options?: ConsumeOptions): Promise<RateLimitResult> {
    const result = await this.consume(key, options)
    if (!result.allowed) throw new RateLimitedError(key, result.retryAfterSeconds)
    return result
  }

  /**
   * Resolves with what `consume` would resolve with. It writes nothing. Units of this process's local share are not
   * counted.
   *
   * @throws what `consume` throws
   */
  async peek(key: string, options?: ConsumeOptions): Promise<RateLimitResult> {
    const cost = this.#checked(key, options)
    const look = async (): Promise<RateLimitResult> =>
      foreseen((await this.#request({ name: key, cost: 0, limits: this.#limits })).answer, cost, this.#limits)
    const looked =
      this.#fallback === undefined ? look() : this.#fallback.or(look, (other) => other.peek(key, { cost }), cost)
    return this.#turns.settle(looked)
  }

  /**
   * Forgets what was taken for the key under this limiter's limits, and ends a block. Other limits on the key stay.
   * This limiter allows calls at once and wakes the calls that wait for the key. Processes that remember a refusal
   * allow calls within 10 seconds.
   *
   * @throws `StoreError`, `InvalidArgumentError`, `UnsupportedError`, `ClosedError`
   */
  async reset(key: string): Promise<void> {
    this.#checked(key, undefined)
    await Promise.all([this.#change(key, 'reset'), this.#fallback?.limiter.reset(key)])
  }

  /**
   * Refuses all calls for the key for so many seconds from now, in every process and limiter that has one of this
   * limiter's limits. `retryAfterSeconds` says when the block ends. Units taken before still count afterwards. Calling
   * it again sets a new end; 0 ends the block. A local share of another process may be used up first.
   *
   * @throws `StoreError`, `InvalidArgumentError`, `UnsupportedError`, `ClosedError`
   */
  async block(key: string, seconds: number): Promise<void> {
    this.#checked(key, undefined)
    const blockMs = waitMsFrom('seconds', seconds)
    await Promise.all([this.#change(key, { blockMs }), this.#fallback?.limiter.block(key, seconds)])
  }

  /**
   * Opens the store unless it is open, and proves that it works: takes a unit of a new key (`ping:` and a random part)
   * and resets it.
   *
   * @throws `StoreError`. Its `retryable` is false if trying again cannot help, as with a wrong password, missing
   * tables or a read-only replica
   * @throws `UnsupportedError`, `ClosedError`
   */
  async ping(): Promise<void> {
    this.#instance.assertOpen()
    const key = `ping:${this.#instance.random.id()}`
    await this.#request({ name: key, cost: 1, limits: this.#limits })
    await this.#change(key, 'reset')
  }

  /**
   * Waits until the units are available, and takes them. An abort while the store is being asked may leave the units
   * taken.
   *
   * Calls that wait for one key in this process are served first come, first served, at any cost. Between
   * processes there is no order: each asks again when the store said that it could succeed, and the first one gets the
   * units.
   *
   * @throws `RateLimitedError` as soon as it is certain that the units are not available in time
   * @throws `AbortedError`, `ClosedError`
   * @throws `OverloadError` if 100,000 calls of this limiter are already waiting
   * @throws what `consume` throws
   */
  async wait(key: string, options: RateWaitOptions = {}): Promise<RateLimitResult> {
    const cost = this.#checked(key, options, WAIT_OPTIONS)
    const { blockingTimeoutSeconds = 10, signal } = options
    const waitMs = waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds)
    if (signal !== undefined) checkSignal('signal', signal)
    return this.#noted(this.#turns.settle(this.#waiting.wait({ key, cost, waitMs, signal })), key, cost)
  }

  /** Rejects the calls that wait, and closes the store if this limiter opened it. Later calls throw `ClosedError`. */
  override close(): Promise<void> {
    const closing = super.close()
    this.#waiting.giveUp(new ClosedError('the limiter was closed while the call waited'))
    return closing
  }

  #take(key: string, cost: number): Promise<RateLimitResult> {
    if (this.#fallback === undefined) return this.#takeHere(key, cost)
    // A remembered refusal counts before the fallback.
    const refusal = this.#memory.refusal(key, cost)
    if (refusal !== undefined) return Promise.resolve(refusal)
    return this.#fallback.or(
      () => this.#takeHere(key, cost),
      (other) => other.#consumeAsFallback(key, cost),
      cost,
    )
  }

  #takeHere(key: string, cost: number): Promise<RateLimitResult> {
    return this.#shares === undefined ? this.#ask(key, cost) : this.#shares.consume(key, cost)
  }

  async #change(key: string, change: RateChange): Promise<void> {
    const { answer } = await this.#request({ name: key, cost: 0, limits: this.#limits, change })
    this.#memory.forget(key)
    this.#shares?.forget(key)
    this.#waiting.wake(key)
    const isBlocked = answer.blockedMs !== undefined
    const isDone = change === 'reset' ? answer.resetAfterMs === 0 : change.blockMs > 0 === isBlocked
    if (!isDone) throw new UnsupportedError('the driver cannot reset or block a rate: it ignored the change')
  }

  async #ask(key: string, cost: number): Promise<RateLimitResult> {
    const refusal = this.#memory.refusal(key, cost)
    if (refusal !== undefined) return refusal
    const { answer, sent } = await this.#request({ name: key, cost, limits: this.#limits })
    const result = resultFrom(answer, this.#limits)
    if (!result.allowed) this.#memory.note(key, cost, sent, result)
    return result
  }

  async #request(request: RateRequest): Promise<{ answer: RateAnswer; sent: Instant }> {
    const holder = this.#instance.holder ?? (await this.#instance.open())
    const answered = await new Promise<{ answer: RateAnswer; sent: Instant }>((resolve, failed) =>
      holder.consume(request, { answered: (answer, { sent }) => resolve({ answer, sent }), failed }),
    )
    this.#fallback?.answered()
    return answered
  }

  #checked(key: string, options: ConsumeOptions | undefined, known = CONSUME_OPTIONS): number {
    checkLockName(key, 'key')
    this.#instance.assertOpen()
    if (options === undefined) return 1
    const { cost = 1 } = checkOptions(options, known)
    return checkWhole('cost', cost, 1, this.#mostCost)
  }
}
