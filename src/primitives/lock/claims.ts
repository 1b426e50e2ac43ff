import {
  checkBoolean,
  checkFunction,
  checkLockName,
  checkMetadata,
  checkSignal,
  ttlMsFrom,
  waitMsFrom,
} from '../../core/arguments.ts'
import type { ClaimRequest, Holder, Refused, RestoreRequest } from '../../core/claim/holder.ts'
import type { LeaseRecord } from '../../core/driver.ts'
import { AbortedError, InvalidArgumentError, LeaseLostError, NotAcquiredError } from '../../core/errors.ts'
import type { Emitter } from '../../core/events.ts'
import type { Chain } from '../../core/lease/chain.ts'
import type { HandOver } from '../../core/lease/hand-over.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { type LockInfo, lockInfoFrom } from '../../core/lock-info.ts'
import { checkOptions, type OptionNames, optionNames } from '../../core/options.ts'
import { checkedLease } from '../../core/store-answers.ts'
import type { Clock } from '../../core/time/clock.ts'
import { type Turns, turnsOf } from '../../core/time/turns.ts'
import type { Instance } from '../instance.ts'
import { ReacquireByExtending } from './reacquire.ts'
import { EXCLUSIVE, Reentry, type RequestedShare } from './reentry.ts'

export interface LockOptions {
  /**
   * The lease's time to live. From 0.05 to one year.
   *
   * @default 30
   */
  timeoutSeconds?: number
  /**
   * Whether to wait for a lock that is held. False answers at once, so that an instance that finds a job taken skips it
   * instead of queueing and doing it a second time.
   *
   * @default false, or true with a `blockingTimeoutSeconds` above 0
   */
  blocking?: boolean
  /**
   * How long to wait for a lock that is held. It implies `blocking: true` unless `blocking` is false; 0 does not wait.
   *
   * @default 10 with `blocking: true`
   */
  blockingTimeoutSeconds?: number
  /** Shown to everyone who asks who holds the lock. Plain JSON of at most 16 KiB. */
  metadata?: Record<string, unknown>
  /** Ends the wait: the call rejects with an `AbortedError`. It does not end a granted lease. */
  signal?: AbortSignal
  /**
   * Renews the lease until it is released.
   *
   * @default true in `hold…` and `with…`, false in `acquire…`
   */
  heartbeat?: boolean
  /**
   * A release before this time keeps the lock until the time has passed. So an instance whose clock is late does not
   * run a scheduled job a second time.
   *
   * @default 0
   */
  minHoldSeconds?: number
  /**
   * The heartbeat stops renewing after this time, so that work that hangs does not hold its lock forever.
   *
   * @default no limit
   */
  maxHoldSeconds?: number
  /**
   * A lease that the same task holds while it waits for this lock, so that a deadlock between the two can be detected.
   * Inside the function of a `with…` this is known. After `hold` or `acquire` it is not: pass the lease here.
   */
  under?: Lease
}

export interface PermitOptions extends LockOptions {
  /**
   * How many permits to take, all or none. At most the limit.
   *
   * @default 1
   */
  permits?: number
}

/** Options for all calls that do not set them. */
export type LockDefaults = Omit<LockOptions, 'under'>

export interface DefaultsOption {
  /** Options for all calls that do not set them: `{ timeoutSeconds: 60, blocking: true }`. */
  defaults?: LockDefaults
}

/**
 * The result of the methods that return contention as a value. `lock` is the lease. `error` is a sentence for a log
 * that names the lock and its holder. `holder` is one of the current holders, if the store shows it.
 */
export type LockResult = { acquired: true; lock: Lease } | { acquired: false; error: string; holder?: LockInfo }

const DEFAULT_NAMES: OptionNames<LockDefaults> = {
  timeoutSeconds: true,
  blocking: true,
  blockingTimeoutSeconds: true,
  metadata: true,
  signal: true,
  heartbeat: true,
  minHoldSeconds: true,
  maxHoldSeconds: true,
}
const NAMES: OptionNames<LockOptions> = { ...DEFAULT_NAMES, under: true }
const DEFAULTS = optionNames<LockDefaults>(DEFAULT_NAMES)
const LOCK_OPTIONS = optionNames<LockOptions>(NAMES)
const PERMIT_OPTIONS = optionNames<PermitOptions>({ ...NAMES, permits: true })

/** What locks, read-write locks and semaphores have in common: the three ways to claim, and re-entry. */
export class Claims {
  readonly reentry = new Reentry()
  readonly #instance: Instance
  readonly #turns: Turns
  readonly #defaults: LockDefaults | undefined
  readonly #reacquire: ReacquireByExtending | undefined

  /** Throws `InvalidArgumentError`. */
  constructor(instance: Instance, { defaults }: DefaultsOption, extendsOwn = false) {
    this.#instance = instance
    this.#turns = turnsOf(instance.clock)
    this.#defaults = defaults === undefined ? undefined : checkDefaults(defaults)
    this.#reacquire = extendsOwn ? new ReacquireByExtending() : undefined
  }

  /** Returns contention as a value. Without a heartbeat by default. */
  acquire(lockName: string, share: RequestedShare, options: LockOptions): Promise<LockResult> {
    return this.#acquire(lockName, share, options, false, (outcome) => answerOf(lockName, heldByCaller(outcome)))
  }

  /** Throws `NotAcquiredError` on contention. With a heartbeat by default. */
  hold(lockName: string, share: RequestedShare, options: LockOptions): Promise<Lease> {
    return this.#acquire(lockName, share, options, true, (outcome) => leaseOf(lockName, heldByCaller(outcome)))
  }

  /** Holds the lock while `fn` runs. Throws `LeaseLostError` if `fn` succeeded but the lease was lost. */
  with<T>(lockName: string, share: RequestedShare, fn: LeaseFunction<T>, options: LockOptions): Promise<T> {
    try {
      checkFunction('fn', fn)
      const request = this.request(lockName, share, options, true)
      const entry = this.reentry.enter(request, share)
      if (entry === undefined)
        return this.observed([request], ([asked]) => this.#askAndRun(asked ?? request, share, fn))
      return this.reentry.keepOpenFor([entry], async () => {
        // A function never runs before the call that it was passed to has returned.
        await this.settle(Promise.resolve())
        return this.#under(entry.use, share, fn)
      })
    } catch (error) {
      return Promise.reject(error)
    }
  }

  async #askAndRun<T>(request: ClaimRequest, share: RequestedShare, fn: LeaseFunction<T>): Promise<T> {
    const use = await this.#ask(request, (outcome) => leaseOf(request.lockName, heldByFunction(outcome)))
    return this.#under(use, share, fn)
  }

  #under<T>(use: LeaseUse, share: RequestedShare, fn: LeaseFunction<T>): Promise<T> {
    return this.run([use], () => this.runInside([use], share, async () => fn(use)))
  }

  /** Runs a callback of leases, inside what listeners of `running` put around it. */
  runInside<T>(uses: readonly LeaseUse[], share: RequestedShare, callback: () => Promise<T>): Promise<T> {
    const { events } = this.#instance
    if (events.heard('running') === undefined) return this.reentry.run(uses, share, callback)
    const own = uses.filter((use) => !this.reentry.isInside(use.lease))
    const around = own.reduceRight<() => Promise<T>>((inner, use) => () => wrapped(events, use, inner)(), callback)
    return this.reentry.run(uses, share, around)
  }

  /**
   * Runs a function under leases and ends these uses of them. An error of the function is thrown first. If the function
   * succeeded but a lease was lost before the end of its use, which that end may find out, the last steps of the
   * function may have run at the same time as another holder's: then it throws the `LeaseLostError`. It also does if
   * the instance was closed meanwhile: the function was asked to stop, and may have stopped half-way.
   */
  run<T>(uses: readonly LeaseUse[], callback: () => Promise<T>): Promise<T> {
    const work = runUnder(uses, callback)
    return this.#instance.holder?.running(work) ?? work
  }

  /** Checks everything. Throws `InvalidArgumentError`, `ClosedError`, `AbortedError`. */
  request(lockName: string, share: RequestedShare, options: LockOptions, heartbeatByDefault: boolean): ClaimRequest {
    const request = claimRequestFrom(lockName, options, heartbeatByDefault, share, this.#defaults)
    const chain = this.#chain(options.under)
    // Work that has begun may need more locks to finish.
    if (chain === undefined) this.#instance.assertOpen()
    else this.#instance.assertNotEnded()
    const { signal } = request
    if (signal?.aborted) throw new AbortedError(`acquiring "${lockName}"`, signal.reason)
    return chain === undefined ? request : { ...request, chain }
  }

  /**
   * Makes a call of requests that may wait inside a callback. The core can ask whether the caller waits for it: a call
   * that is not awaited does not keep the callback from ending, and so is no part of a deadlock.
   */
  observed<T>(requests: readonly ClaimRequest[], call: (requests: readonly ClaimRequest[]) => Promise<T>): Promise<T> {
    const [first] = requests
    if (first?.chain === undefined || first.patienceMs === 0) return call(requests)
    return observed((isAwaited) => call(requests.map((request) => ({ ...request, isAwaited }))))
  }

  get clock(): Clock {
    return this.#instance.clock
  }

  open(request: ClaimRequest): Promise<Holder> {
    return this.#instance.openFor(request)
  }

  /** Asks the store for a function that will run, even if this instance already holds the lock. */
  claim(holder: Holder, request: ClaimRequest): Promise<LeaseUse | Refused> {
    return holder.acquire(request, (outcome) => {
      if (outcome instanceof LeaseUse) this.#reacquire?.granted(holder, request.lockName)
      return heldByFunction(outcome)
    })
  }

  /** See `Holder.restore`. */
  async restore(handedOver: HandOver, options: RestoreRequest): Promise<Lease> {
    const holder = await this.#instance.open()
    const use = await holder.restore(handedOver, options)
    this.#reacquire?.granted(holder, handedOver.lockName)
    return use
  }

  /** For answers that do not come from the store: a loop of such calls must give the event loop its turns. */
  settle<T>(result: Promise<T>): Promise<T> {
    return this.#turns.settle(result)
  }

  #acquire<T>(
    lockName: string,
    share: RequestedShare,
    options: LockOptions,
    heartbeat: boolean,
    toResult: (outcome: LeaseUse | Refused) => T,
  ): Promise<T> {
    try {
      const request = this.request(lockName, share, options, heartbeat)
      const use = this.reentry.enter(request, share)?.hold()
      if (use !== undefined) return this.settle(Promise.resolve(toResult(use)))
      const acquired = this.reentry.acquiring(lockName)
      const result = (outcome: LeaseUse | Refused): T => {
        if (outcome instanceof LeaseUse) acquired?.(outcome)
        return toResult(outcome)
      }
      return this.observed([request], ([asked]) =>
        this.#ask(asked ?? request, acquired === undefined ? toResult : result),
      )
    } catch (error) {
      return Promise.reject(error)
    }
  }

  #ask<T>(request: ClaimRequest, toResult: (outcome: LeaseUse | Refused) => T): Promise<T> {
    const { holder } = this.#instance
    if (holder !== undefined && this.#reacquire === undefined) return holder.acquire(request, toResult)
    return this.settle(this.#openAndAsk(request, toResult))
  }

  async #openAndAsk<T>(request: ClaimRequest, toResult: (outcome: LeaseUse | Refused) => T): Promise<T> {
    const { patienceMs } = request
    const untilMs = this.clock.now().monotonicMs + patienceMs
    const holder = await this.open(request)
    // One waiting time for the store and the lock.
    const leftMs = patienceMs === 0 ? 0 : Math.max(1, untilMs - this.clock.now().monotonicMs)
    const asked = { ...request, patienceMs: leftMs }
    return this.#reacquire === undefined
      ? holder.acquire(asked, toResult)
      : toResult(await this.#reacquire.acquire(holder, asked))
  }

  #chain(under: Lease | undefined): Chain | undefined {
    if (under !== undefined && !isUse(under)) throw new InvalidArgumentError('under', under, 'a lease')
    return under?.held ? under.chain : this.reentry.chain
  }
}

function heldByFunction(outcome: LeaseUse | Refused): LeaseUse | Refused {
  if (outcome instanceof LeaseUse) outcome.runsFunction = true
  return outcome
}

/** A lease that was joined has counted as that of a function until now. */
function heldByCaller(outcome: LeaseUse | Refused): LeaseUse | Refused {
  if (outcome instanceof LeaseUse) outcome.runsFunction = false
  return outcome
}

export type LeaseFunction<T> = (lease: Lease) => Promise<T> | T

async function runUnder<T>(uses: readonly LeaseUse[], callback: () => Promise<T>): Promise<T> {
  let result: T
  try {
    // Since the grant, the lease may have expired or been released by `releaseAll`.
    for (const use of uses) assertBegun(use)
    result = await callback()
  } finally {
    await Promise.all(uses.map((use) => use[Symbol.asyncDispose]()))
  }
  for (const use of uses) throwIfLost(use)
  return result
}

function assertBegun(use: LeaseUse): void {
  if (use.held) return
  const { lockName, fencingToken, stopReason } = use
  throw stopReason ?? new LeaseLostError(lockName, fencingToken, 'it was released before the function began')
}

function wrapped<T>(events: Emitter, { lease }: LeaseUse, callback: () => Promise<T>): () => Promise<T> {
  let run = callback
  events.heard('running')?.({
    ...lease.eventBase,
    wrap(around) {
      const inner = run
      run = () => around(inner)
    },
  })
  return run
}

/** A proxy that was revoked is no lease, and neither is a lease of another copy of this package. */
function isUse(lease: Lease): lease is LeaseUse {
  try {
    return lease instanceof LeaseUse
  } catch {
    return false
  }
}

/** Checks every argument before anything is sent. */
export function claimRequestFrom(
  lockName: string,
  options: LockOptions,
  heartbeatByDefault: boolean,
  share: RequestedShare = EXCLUSIVE,
  defaults: LockDefaults = {},
): ClaimRequest {
  checkLockName(lockName)
  const {
    timeoutSeconds = defaults.timeoutSeconds ?? 30,
    metadata = defaults.metadata,
    signal = defaults.signal,
    heartbeat = defaults.heartbeat ?? heartbeatByDefault,
    minHoldSeconds = defaults.minHoldSeconds ?? 0,
    maxHoldSeconds = defaults.maxHoldSeconds,
  } = checkOptions(options, share.limit === undefined ? LOCK_OPTIONS : PERMIT_OPTIONS)
  return {
    lockName,
    mode: share.mode,
    limit: share.limit,
    permits: share.permits,
    ttlMs: ttlMsFrom('timeoutSeconds', timeoutSeconds),
    patienceMs: patienceMsFrom(options, defaults),
    metadata: metadata === undefined ? undefined : checkMetadata(metadata),
    signal: signal === undefined ? undefined : checkSignal('signal', signal),
    heartbeat: checkBoolean('heartbeat', heartbeat),
    minHoldMs: waitMsFrom('minHoldSeconds', minHoldSeconds),
    maxHoldMs: maxHoldSeconds === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('maxHoldSeconds', maxHoldSeconds),
  }
}

/** What a call says about waiting overrides the defaults, and a waiting time implies that it waits. */
function patienceMsFrom(options: LockOptions, defaults: LockDefaults): number {
  const { blockingTimeoutSeconds = defaults.blockingTimeoutSeconds ?? 10 } = options
  const saysHowLong = options.blockingTimeoutSeconds !== undefined
  const waitsByDefault = saysHowLong || (defaults.blocking ?? defaults.blockingTimeoutSeconds !== undefined)
  const { blocking = waitsByDefault } = options
  const waitMs = waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds)
  return checkBoolean('blocking', blocking) ? waitMs : 0
}

/** Finds mistakes when the instance is made, not at each call. */
export function checkDefaults(defaults: LockDefaults): LockDefaults {
  claimRequestFrom('defaults', checkOptions(defaults, DEFAULTS, 'defaults'), false)
  return { ...defaults }
}

/** A refusal names the holder if the store knows it. */
export const answerOf = (lockName: string, outcome: LeaseUse | Refused): LockResult =>
  outcome instanceof LeaseUse ? { acquired: true, lock: outcome } : refusalOf(lockName, outcome)

/** Throws `NotAcquiredError` on contention. */
export function leaseOf(lockName: string, outcome: LeaseUse | Refused): LeaseUse {
  if (outcome instanceof LeaseUse) return outcome
  const { error, holder } = refusalOf(lockName, outcome)
  throw new NotAcquiredError(lockName, error, holder)
}

function refusalOf(lockName: string, { refusal, waitedMs }: Refused): LockResult & { acquired: false } {
  const waited = waitedMs >= 1 ? ` (waited ${(waitedMs / 1_000).toFixed(1)} s)` : ''
  // Read once: a driver may parse it only now.
  const seen = refusal.holder
  if (seen === undefined) return { acquired: false, error: `"${lockName}" is held by another claim${waited}` }
  const holder = checkedLease(seen)
  return {
    acquired: false,
    error: `"${lockName}" is held by ${holderText(holder)}${waited}`,
    holder: lockInfoFrom(holder),
  }
}

/** Describes the holder. It is unknown since when another client holds its lock. */
export function holderText({ holderId, acquiredAtMs, expiresAtMs }: LeaseRecord): string {
  if (acquiredAtMs > 0) return `${holderId} since ${new Date(acquiredAtMs).toISOString()}`
  const end = expiresAtMs === undefined ? 'no expiry' : `expires: ${new Date(expiresAtMs).toISOString()}`
  return `${holderId} (since: unknown, ${end})`
}

/** Throws the `LeaseLostError` if the lease was lost, or the function was asked to stop. */
export function throwIfLost(use: LeaseUse): void {
  // Reading `held` notices an expired lease. Its signal would, too, but most signals are never made.
  const error = use.held ? undefined : use.stopReason
  if (error !== undefined) throw error
}

/** Makes a call, and lets the core ask whether something waits for its result. */
export function observed<T>(call: (isAwaited: () => boolean) => Promise<T>): Promise<T> {
  const seen: Seen = { isAwaited: false }
  return ObservedPromise.of(
    call(() => seen.isAwaited),
    seen,
  )
}

interface Seen {
  isAwaited: boolean
}

/**
 * A promise that notes when something begins to wait for it, or for a promise that was derived from it. Handlers of
 * `catch` and `finally` alone do not wait for it.
 */
class ObservedPromise<T> extends Promise<T> {
  #seen: Seen | undefined

  static of<T>(work: Promise<T>, seen: Seen): ObservedPromise<T> {
    const promise = new ObservedPromise<T>((resolve) => resolve(work))
    promise.#seen = seen
    return promise
  }

  // biome-ignore lint/suspicious/noThenProperty: this is how `await` subscribes to a promise of a derived class.
  override then<Value = T, Reason = never>(
    onFulfilled?: ((value: T) => Value | PromiseLike<Value>) | null,
    onRejected?: ((reason: unknown) => Reason | PromiseLike<Reason>) | null,
  ): Promise<Value | Reason> {
    if (this.#seen !== undefined && typeof onFulfilled === 'function') this.#seen.isAwaited = true
    const derived = super.then(onFulfilled, onRejected)
    if (derived instanceof ObservedPromise) derived.#seen = this.#seen
    return derived
  }

  override finally(onFinally?: (() => void) | null): Promise<T> {
    const { isAwaited = false } = this.#seen ?? {}
    // It calls `then`.
    const derived = super.finally(onFinally)
    if (this.#seen !== undefined) this.#seen.isAwaited = isAwaited
    return derived
  }
}
