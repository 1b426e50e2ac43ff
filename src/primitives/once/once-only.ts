import { storeOpener } from '../../connect.ts'
import { checkBoolean, checkFunction, checkOneOf, checkSignal, ttlMsFrom, waitMsFrom } from '../../core/arguments.ts'
import type { ClaimRequest, Holder } from '../../core/claim/holder.ts'
import { AbortedError, InvalidArgumentError, isOutage, StoreError } from '../../core/errors.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { MAX_WAIT_MS } from '../../core/limits.ts'
import { checkOptions, type OptionNames, optionNames } from '../../core/options.ts'
import { unlessAborted, withTimeout } from '../../core/time/abort.ts'
import { Instance } from '../instance.ts'
import type { InstanceOptions } from '../instance-options.ts'
import { leaseOf, observed } from '../lock/claims.ts'
import { Primitive } from '../primitive.ts'
import { assertKeepsResults, type FoundResult, metadataFrom, namesOf, resultFrom, WaitingCalls } from './results.ts'
import { type OnceRun, Runs } from './runs.ts'
import { Schedule, type TickResult } from './schedule.ts'
import { checkTickName, tickOf } from './tick.ts'

export type { OnceRun } from './runs.ts'
export type { TickResult } from './schedule.ts'

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
   * How long a tick that ran is remembered. The clocks of two instances may differ by this much.
   *
   * @default 600
   */
  forSeconds?: number
  /** The period of the schedule. Required when the scheduler passes no tick time. */
  everySeconds?: number
  /**
   * What happens to ticks that could not run in time, because the store was away:
   *
   * - `skip`: they do not run. The tick that meets the outage rejects with `StoreError`
   * - `last`: the last one runs late, and the others do not run
   * - `all`: all run late, in order, one at a time
   *
   * @default 'last'
   */
  missed?: 'skip' | 'last' | 'all'
  /**
   * Whether a tick may run while the job of another tick still runs, here or elsewhere. Otherwise it is skipped.
   *
   * @default false
   */
  overlap?: boolean
  /**
   * How long to wait for a run of the same tick elsewhere, to take over if that process dies, and for a store that is
   * away. 0 does not wait.
   *
   * @default no limit
   */
  blockingTimeoutSeconds?: number
}

const NAMES: OptionNames<OnceOptions> = {
  forSeconds: true,
  timeoutSeconds: true,
  blockingTimeoutSeconds: true,
  signal: true,
}
const ONCE_OPTIONS = optionNames<OnceOptions>(NAMES)
const TICK_OPTIONS = optionNames<TickOptions>({ ...NAMES, everySeconds: true, missed: true, overlap: true })

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
  readonly #runs: Runs
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
    this.#runs = new Runs(instance)
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
    const beganMs = this.#runs.nowMs
    this.#instance.assertOpen()
    this.#runs.reentry.assertOutside(request, 'a run has no result before it has ended')
    if (options.signal?.aborted) throw new AbortedError(`waiting for "${key}"`, options.signal.reason)
    const holder = await this.#instance.openFor(request)
    assertKeepsResults(holder, forMs)
    // It only saves the lease. What counts is the look under the lease, below.
    const early = await this.#findInTime(holder, names.done, request, beganMs).catch(unlessDown)
    if (early !== undefined) return this.#tell(key, early)
    // One waiting time for the store and the run.
    const patienceMs = request.patienceMs === 0 ? 0 : Math.max(1, request.patienceMs - (this.#runs.nowMs - beganMs))
    const claim = { ...request, patienceMs, chain: this.#runs.reentry.chain, isAwaited }
    const turn = await this.#waiting.wait(key, beganMs, claim.signal, (signal) =>
      holder.acquire({ ...claim, signal }, (end) => leaseOf(names.run, end)),
    )
    if (!(turn instanceof LeaseUse)) return resultFrom(key, turn.metadata)
    await using lease = turn
    const found = await this.#runs.insist(lease, () => this.#runs.find(holder, names.done))
    if (found !== undefined) return this.#tell(key, found)
    // The lease may have ended meanwhile, by closing, by force or by time. Then another run may have begun.
    lease.assertHeld()
    // Awaited here: the lease is released at the end of this block.
    const run = { holder, lease, key, done: names.done, forMs, metadataOf: metadataFrom }
    const { own, kept, theirs } = await holder.running(this.#runs.run(run, fn))
    // All others have the result of the run that was faster.
    if (theirs !== undefined) return this.#tell(key, theirs)
    this.#tell(key, kept)
    return own
  }

  /**
   * Wraps a scheduled job so that each tick runs once over all instances with the same schedule, and one tick at a
   * time. Pass the returned function to the scheduler. It resolves with `{ ran: true, result }`, or with
   * `{ ran: false, reason }`:
   *
   * - `elsewhere`: another instance runs this tick, or has run it
   * - `overlap`: the job of another tick still runs, here or elsewhere, or the lock `cron:NAME` is held by other means
   * - `missed`: a later tick came before this one could run
   * - `closed`, `aborted`: this instance was closed, or `signal` was aborted, before the job began
   *
   * The tick is what the scheduler passes (BullMQ, node-cron, croner, or a `Date`), or else the current time rounded
   * down to `everySeconds`. While the job runs, its instance holds the lock `cron:NAME`. An instance that comes while
   * the tick runs elsewhere waits, and takes over if that process dies or the job fails there. With `redlock`, pass a
   * `forSeconds` that its `longestTtlSeconds` allows.
   *
   * The returned function rejects with what the job throws. It rejects with `StoreError` if the store does not answer:
   * after `blockingTimeoutSeconds`, or at once with `missed: 'skip'`; and with `LeaseLostError` if the run lost its
   * lease. It rejects with `InvalidArgumentError` if the scheduler's id of the tick has more than 64 characters.
   *
   * @throws `InvalidArgumentError`, also for a `name` of more than 180 characters
   */
  everyTick<T, Context = unknown>(
    name: string,
    fn: (run: OnceRun, context: Context | undefined) => Promise<T> | T,
    options: TickOptions = {},
  ): (context?: Context) => Promise<TickResult<T>> {
    checkFunction('fn', fn)
    checkOptions(options, TICK_OPTIONS)
    const { everySeconds, forSeconds = TICK_SECONDS, missed = 'last', overlap = false, ...rest } = options
    const everyMs = everySeconds === undefined ? undefined : ttlMsFrom('everySeconds', everySeconds)
    checkTickName(name)
    checkOneOf('missed', missed, ['skip', 'last', 'all'])
    checkBoolean('overlap', overlap)
    const { request, forMs } = requestFrom('name', { ...rest, forSeconds })
    const schedule = new Schedule(this.#instance, this.#runs, { name, request, forMs, missed, overlap })
    // Not async: that would count as waiting for the run.
    return (context) => {
      try {
        const tick = tickOf(context, this.#instance.clock.now().wallMs, everyMs)
        return observed((isAwaited) => schedule.call(tick, (run) => fn(run, context), isAwaited))
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
    const { record } = (await this.#runs.find(holder, done)) ?? {}
    return record !== undefined && holder.release(record)
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
    const found = unlessAborted(this.#runs.find(holder, done), signal, `acquiring "${lockName}"`)
    if (patienceMs === 0) return found
    const leftMs = Math.max(0, beganMs + patienceMs - this.#runs.nowMs)
    return withTimeout(this.#instance.clock, leftMs, found, () => new StoreError('the store did not answer in time'))
  }
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

function unlessDown(error: unknown): undefined {
  if (!isOutage(error)) throw error
}

const TICK_SECONDS = 600
