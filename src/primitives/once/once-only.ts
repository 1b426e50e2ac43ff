import { storeOpener } from '../../connect.ts'
import { checkFunction, checkSignal, checkText, ttlMsFrom, waitMsFrom } from '../../core/arguments.ts'
import type { ClaimRequest, Holder } from '../../core/claim/holder.ts'
import { AbortedError, InvalidArgumentError, isOutage, StoreError } from '../../core/errors.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { MAX_WAIT_MS } from '../../core/limits.ts'
import { checkOptions, type OptionNames, optionNames } from '../../core/options.ts'
import { pause, unlessAborted, withTimeout } from '../../core/time/abort.ts'
import { backoffMs } from '../../core/time/backoff.ts'
import { Instance } from '../instance.ts'
import type { InstanceOptions } from '../instance-options.ts'
import { leaseOf, observed, throwIfLost } from '../lock/claims.ts'
import { unheld } from '../lock/forced-release-record.ts'
import { EXCLUSIVE, Reentry } from '../lock/reentry.ts'
import { Primitive } from '../primitive.ts'
import {
  assertKeepsResults,
  boxed,
  type FoundResult,
  MAX_KEY_LENGTH,
  metadataFrom,
  namesOf,
  resultFrom,
  WaitingCalls,
} from './results.ts'
import { MAX_TICK_LENGTH, tickOf } from './tick.ts'

export interface OnceOptions {
  /**
   * How long a run counts, from its end. The store keeps the result for this time. From 0.05 to one year. With
   * `redlock` at most its `longestTtlSeconds`: otherwise the call rejects with `InvalidArgumentError` before the job
   * runs.
   */
  forSeconds: number
  /**
   * The time to live of the run's lease. A heartbeat renews it. After a crash, another process takes over when this
   * time has passed.
   *
   * @default 30
   */
  timeoutSeconds?: number
  /**
   * How long to wait for a run in another process or task. 0 does not wait.
   *
   * @default no limit
   */
  blockingTimeoutSeconds?: number
  /** Ends the wait: the call rejects with an `AbortedError`. It does not stop a run that has begun. */
  signal?: AbortSignal
}

export interface TickOptions extends Partial<OnceOptions> {
  /**
   * How long a tick is remembered. The clocks of two instances may differ by this much.
   *
   * @default 600
   */
  forSeconds?: number
  /** The period of the schedule. Required when the scheduler passes no tick time. */
  everySeconds?: number
}

const NAMES: OptionNames<OnceOptions> = {
  forSeconds: true,
  timeoutSeconds: true,
  blockingTimeoutSeconds: true,
  signal: true,
}
const ONCE_OPTIONS = optionNames<OnceOptions>(NAMES)
const TICK_OPTIONS = optionNames<TickOptions>({ ...NAMES, everySeconds: true })

/** What a run receives: its fencing token, and whether it may go on. */
export type OnceRun = Pick<Lease, 'fencingToken' | 'signal' | 'held' | 'remainingSeconds' | 'assertHeld'>

/**
 * Runs a job once per key and period over all instances, and keeps its result for later callers. It works with every
 * driver that keeps metadata and whose leases expire by time.
 *
 * Exactly once needs the help of the effect itself. If a process dies after the effect but before the result is kept,
 * the job looks undone and runs again, with a higher fencing token. Record the effect under the key, in the same step
 * that checks the token, and it happens once.
 *
 * Closing lets a run that ends in time keep its result. A run that does not end loses its lease. Results stay.
 *
 * @example
 * ```ts
 * const jobs = new OnceOnly({ url: 'redis://localhost:6379' })
 * // Also pass the key to the payment provider: after the period, the job would run again.
 * const receipt = await jobs.once('payment:7', () => charge(7), { forSeconds: 86_400 })
 * ```
 */
export class OnceOnly extends Primitive {
  readonly #instance: Instance
  readonly #reentry = new Reentry()
  readonly #waiting = new WaitingCalls()

  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(options: InstanceOptions = {}) {
    const instance = new Instance('OnceOnly', options, storeOpener)
    super(instance)
    this.#instance = instance
  }

  /**
   * Resolves with the result of the key's one run: that of `fn` if it runs here, or else the kept result. If the job is
   * running elsewhere, waits for it.
   *
   * - If `fn` rejects, this rejects with the same error. Nothing is kept. The next caller runs the job again, and so
   *   does a caller that is waiting.
   * - If the process dies, a waiter or the next caller takes over after `timeoutSeconds`, with a higher fencing token.
   * - If the lease is lost before `fn` has ended, this rejects with `LeaseLostError` and keeps nothing. Another run may
   *   have begun.
   * - The result must be `undefined` or JSON of at most 16,368 bytes. Any other result is not kept. The job then counts
   *   as done, and this call and all later calls in the period reject with `ResultNotKeptError`.
   *
   * @throws `NotAcquiredError` when `blockingTimeoutSeconds` has passed
   * @throws `AbortedError`, `ClosedError`, `InvalidArgumentError`, `OverloadError`
   * @throws `DeadlockError` if the run that it waits for waits for this caller; at once if it is the caller's own run
   * @throws `StoreError` if the store does not answer. If its message says that the job ran, it is unknown whether the
   * result is kept
   * @throws `UnsupportedError` for a driver whose leases do not expire by time, or that keeps no metadata
   */
  once<T>(key: string, fn: (run: OnceRun) => Promise<T> | T, options: OnceOptions): Promise<T> {
    return observed((isAwaited) => this.#once(key, fn, options, isAwaited))
  }

  async #once<T>(
    key: string,
    fn: (run: OnceRun) => Promise<T> | T,
    options: OnceOptions,
    isAwaited: () => boolean,
  ): Promise<T> {
    checkFunction('fn', fn)
    const { names, request, forMs } = requestFrom(key, options)
    const beganMs = this.#nowMs
    this.#instance.assertOpen()
    this.#reentry.assertOutside(request, 'a run has no result before it has ended')
    if (options.signal?.aborted) throw new AbortedError(`waiting for "${key}"`, options.signal.reason)
    const holder = await this.#instance.openFor(request)
    assertKeepsResults(holder, forMs)
    // It only saves the lease. What counts is the look under the lease, below.
    const early = await this.#findInTime(holder, names.done, request, beganMs).catch(unlessDown)
    if (early !== undefined) return this.#tell(key, early)
    // One waiting time for the store and the run.
    const patienceMs = request.patienceMs === 0 ? 0 : Math.max(1, request.patienceMs - (this.#nowMs - beganMs))
    const claim = { ...request, patienceMs, chain: this.#reentry.chain, isAwaited }
    const turn = await this.#waiting.wait(key, beganMs, claim.signal, (signal) =>
      holder.acquire({ ...claim, signal }, (end) => leaseOf(names.run, end)),
    )
    if (!(turn instanceof LeaseUse)) return resultFrom(key, turn.metadata)
    await using lease = turn
    const found = await this.#insist(lease, () => this.#find(holder, names.done))
    if (found !== undefined) return this.#tell(key, found)
    // The lease may have ended meanwhile, by closing, by force or by time. Then another run may have begun.
    lease.assertHeld()
    // Awaited here: the lease is released at the end of this block.
    return await holder.running(this.#run({ holder, lease, key, done: names.done, forMs }, fn))
  }

  /**
   * Wraps a scheduled job so that each tick runs once over all instances with the same schedule. Pass the returned
   * function to the scheduler.
   *
   * The key is the name and the tick. The tick is what the scheduler passes (BullMQ, node-cron, croner, or a `Date`),
   * or else the current time rounded down to `everySeconds`. An instance that comes while the tick runs elsewhere
   * waits, and takes over if that process dies. With `redlock`, pass a `forSeconds` that its `longestTtlSeconds`
   * allows.
   *
   * @throws `InvalidArgumentError`, also for a `name` of more than 180 characters. The returned function rejects with
   * what `once` rejects with, and if the scheduler's id of the tick has more than 64 characters
   */
  everyTick<T, Context = unknown>(
    name: string,
    fn: (run: OnceRun, context: Context | undefined) => Promise<T> | T,
    options: TickOptions = {},
  ): (context?: Context) => Promise<T> {
    checkFunction('fn', fn)
    checkOptions(options, TICK_OPTIONS)
    const { everySeconds, forSeconds = TICK_SECONDS, ...rest } = options
    const everyMs = everySeconds === undefined ? undefined : ttlMsFrom('everySeconds', everySeconds)
    checkText('name', name, MAX_TICK_NAME_LENGTH)
    requestFrom('name', { ...rest, forSeconds })
    // Not async: that would count as waiting for the run.
    return (context) => {
      try {
        const tick = tickOf(context, this.#instance.clock.now().wallMs, everyMs)
        return this.once(`${name}@${tick}`, (run) => fn(run, context), { ...rest, forSeconds })
      } catch (error) {
        return Promise.reject(error)
      }
    }
  }

  /**
   * Lets a key run again before its period is over. True if a result was kept. It does not stop a run.
   *
   * @throws `StoreError`, `InvalidArgumentError`, `ClosedError`
   */
  async forget(key: string): Promise<boolean> {
    const { done } = namesOf(key)
    const holder = await this.#instance.open()
    const { record } = (await this.#find(holder, done)) ?? {}
    return record !== undefined && holder.release(record)
  }

  async #run<T>({ holder, lease, key, done, forMs }: Turn, fn: (run: OnceRun) => Promise<T> | T): Promise<T> {
    const result = await this.#reentry.run([lease], EXCLUSIVE, async () => boxed(fn(lease)))
    throwIfLost(lease)
    // The store decides. Otherwise a lease that was ended by force would go unnoticed until the next heartbeat, and the
    // result would be kept while another run is going on.
    const isInStore = await this.#insist(lease, () => lease.lease.confirm()).catch(unknownOutcome(key))
    if (!isInStore) throwIfLost(lease)
    const metadata = metadataFrom(result)
    // One claim for all tries: if an answer is lost, the next try gets the same lease.
    const claim = holder.createClaim(unheld(done, forMs, metadata))
    const askedMs = this.#nowMs
    const answer = await this.#insist(lease, () => holder.askOnce(claim)).catch(unknownOutcome(key))
    // Refused: a run that took over from this one was faster, and all others have its result.
    const theirs = answer.granted ? undefined : await this.#insist(lease, () => this.#find(holder, done))
    if (theirs !== undefined) return this.#tell(key, theirs)
    this.#tell(key, { metadata, askedMs })
    return result.own
  }

  /** Returns the result, and passes it to the calls that wait for this key. */
  #tell<T>(key: string, found: FoundResult): T {
    this.#waiting.found(key, found)
    return resultFrom(key, found.metadata)
  }

  /** For no longer than the caller waits. */
  #findInTime(
    holder: Holder,
    done: string,
    { lockName, patienceMs, signal }: ClaimRequest,
    beganMs: number,
  ): Promise<FoundResult | undefined> {
    const found = unlessAborted(this.#find(holder, done), signal, `acquiring "${lockName}"`)
    if (patienceMs === 0) return found
    const leftMs = Math.max(0, beganMs + patienceMs - this.#nowMs)
    return withTimeout(this.#instance.clock, leftMs, found, () => new StoreError('the store did not answer in time'))
  }

  async #find(holder: Holder, done: string): Promise<FoundResult | undefined> {
    const askedMs = this.#nowMs
    const [record] = (await holder.inspect({ lockName: done })).leases
    return record && { record, metadata: record.metadata, askedMs }
  }

  /** Asks until the store answers, as long as the run's lease lasts. */
  async #insist<T>(lease: LeaseUse, ask: () => Promise<T>): Promise<T> {
    const { clock, random } = this.#instance
    for (let tries = 1; ; tries += 1) {
      try {
        return await ask()
      } catch (error) {
        if (!isOutage(error)) throw error
        await pause(clock, backoffMs(RETRY, tries, random), lease.signal)
        if (!lease.held) throw error
      }
    }
  }

  get #nowMs(): number {
    return this.#instance.clock.now().monotonicMs
  }
}

/** A call whose turn it is to run the job. */
interface Turn {
  readonly holder: Holder
  readonly lease: LeaseUse
  readonly key: string
  readonly done: string
  readonly forMs: number
}

function requestFrom(key: string, options: OnceOptions) {
  const names = namesOf(key)
  if (options === undefined) throw new InvalidArgumentError('options', options, 'given, such as { forSeconds: 86_400 }')
  checkOptions(options, ONCE_OPTIONS)
  const { forSeconds, timeoutSeconds = 30, blockingTimeoutSeconds, signal } = options
  const endless = blockingTimeoutSeconds === undefined
  const request: ClaimRequest = {
    lockName: names.run,
    mode: 'exclusive',
    ttlMs: ttlMsFrom('timeoutSeconds', timeoutSeconds),
    patienceMs: endless ? MAX_WAIT_MS : waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds),
    signal: signal === undefined ? undefined : checkSignal('signal', signal),
    heartbeat: true,
    minHoldMs: 0,
    maxHoldMs: Number.POSITIVE_INFINITY,
  }
  return { names, request, forMs: ttlMsFrom('forSeconds', forSeconds) }
}

const unknownOutcome =
  (key: string) =>
  (cause: unknown): never => {
    throw new StoreError(`the job "${key}" ran, but whether its result is kept is not known`, { cause })
  }

function unlessDown(error: unknown): undefined {
  if (!isOutage(error)) throw error
}

const TICK_SECONDS = 600
/** The key is the name, "@" and the tick. */
const MAX_TICK_NAME_LENGTH = MAX_KEY_LENGTH - 1 - MAX_TICK_LENGTH
const RETRY = { firstMs: 50, maxMs: 1_000 }
