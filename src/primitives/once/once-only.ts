import { checkFunction, checkJson, checkSignal, ttlMsFrom, waitMsFrom } from '../../core/arguments.ts'
import type { ClaimRequest, ClaimResult, Holder } from '../../core/claim/holder.ts'
import type { AcquireAnswer, LeaseRecord, Metadata } from '../../core/driver.ts'
import {
  AbortedError,
  InvalidArgumentError,
  ResultNotKeptError,
  StoreError,
  UnsupportedError,
} from '../../core/errors.ts'
import type { LockEvent, LockListener } from '../../core/events.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { NOT_IN_STORE } from '../../core/lease/renewer.ts'
import { MAX_NAME_LENGTH, MAX_WAIT_MS } from '../../core/limits.ts'
import { checkText } from '../../core/names.ts'
import { checkOptions, type OptionNames, optionNames } from '../../core/options.ts'
import type { StoreClient } from '../../core/store/store-client.ts'
import { eitherSignal } from '../../core/time/abort.ts'
import { backoffMs } from '../../core/time/backoff.ts'
import { systemClock } from '../../core/time/clock.ts'
import { pause } from '../../core/time/pause.ts'
import { systemRandom } from '../../core/time/random.ts'
import { everything } from '../everything.ts'
import { type CloseOptions, Instance, type InstanceOptions } from '../instance.ts'
import { EXCLUSIVE } from '../lock/options.ts'
import { Reentry } from '../lock/reentry.ts'
import { answerOf, leaseOf, throwIfLost } from '../lock/result.ts'
import { tickOf } from './tick.ts'

export interface OnceOptions {
  /**
   * For how long a run counts, from its end. From 0.05 to one year; the store keeps its result for so long. On `redlock` at
   * most its `longestTtlSeconds`: otherwise the call rejects with `InvalidArgumentError`, and the job is not run.
   */
  forSeconds: number
  /** The run's lease: how long after a crash somebody else takes over. 30 if not said; a heartbeat renews it. */
  timeoutSeconds?: number
  /** How long to wait for a run that is under way elsewhere. Without end if not said; 0 does not wait. */
  blockingTimeoutSeconds?: number
  /** Gives up waiting. It does not end a run that has begun. */
  signal?: AbortSignal
}

export interface TickOptions extends Partial<OnceOptions> {
  /** The schedule's period, for schedulers that do not tell which tick it is. */
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

/** What a run is given: its fencing token, and whether it may still go on. */
export type OnceRun = Pick<Lease, 'fencingToken' | 'signal' | 'held' | 'remainingSeconds' | 'assertHeld'>

/**
 * Runs a job at most once for each key in a period, over all instances, and keeps its result for whoever asks later. On every driver whose leases end by time.
 *
 * Exactly once takes the effect's own help: a process that dies between the effect and the keeping of the result leaves a job that looks undone, and
 * it is run again, with a higher fencing token. An effect that is recorded under the key, in one step with its check of the token, is then made once.
 */
export class OnceOnly implements AsyncDisposable {
  readonly #instance: Instance
  readonly #clock
  readonly #random
  readonly #reentry = new Reentry()
  readonly #waiting = new Map<string, Set<WaitingCall>>()

  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options: InstanceOptions = {}) {
    this.#instance = new Instance('OnceOnly', options, everything)
    this.#clock = options.clock ?? systemClock
    this.#random = options.random ?? systemRandom
  }

  get holderId(): string {
    return this.#instance.holderId
  }

  /**
   * Resolves with the result of the key's one run: `fn`'s, if it is run here, or the one that is kept. A run that is under way elsewhere is waited for.
   *
   * - `fn` rejects: so does this, with its own error. Nothing is kept, and the next caller runs it again; one that waits, at once.
   * - The process dies: after `timeoutSeconds` whoever waits or comes takes over, with a higher fencing token.
   * - The lease is lost before `fn` has ended: rejects with `LeaseLostError`, keeps nothing; another run may have begun.
   * - The result is `undefined` or JSON of at most 16,368 bytes. Anything else is not kept: the job counts as done, and this call and all later ones in the period
   *   reject with `ResultNotKeptError`.
   *
   * Rejects with `NotAcquiredError` when `blockingTimeoutSeconds` is over, with `AbortedError`, `ClosedError`, `InvalidArgumentError`; with `DeadlockError` when the run
   * that is waited for waits for this very caller, at once if it is the one that asks; with `StoreError` when the store does not answer (if it says that the job
   * ran, whether its result is kept is not known); and with `UnsupportedError` where leases do not end by time.
   */
  async once<T>(key: string, fn: (run: OnceRun) => Promise<T> | T, options: OnceOptions): Promise<T> {
    checkFunction('fn', fn)
    const { names, request, forMs } = requestFrom(key, options)
    const beganMs = this.#nowMs
    this.#instance.assertOpen()
    this.#reentry.assertOutside(request, 'a run has no result before it has ended')
    if (options.signal?.aborted) throw new AbortedError(`waiting for "${key}"`, options.signal.reason)
    const holder = this.#instance.holder ?? (await this.#instance.open())
    assertKeeping(holder, forMs)
    // Only to save the lease: whether it is done is settled under it.
    const early = await this.#look(holder, names.done).catch(unlessDown)
    if (early !== undefined) return this.#found(key, early)
    const result = await this.#turn(holder, { ...request, chain: this.#reentry.chain }, { key, beganMs })
    if ('metadata' in result) return resultOf(key, result.metadata)
    // Contention is an error here: this throws.
    if (!result.granted) return leaseOf(names.run, answerOf(names.run, result)) as never
    await using lease = result.lease
    const found = await this.#insist(lease, () => this.#look(holder, names.done))
    if (found !== undefined) return this.#found(key, found)
    // The lease may have ended during the look, by closing, by force or by time, and another run may be under way.
    lease.assertHeld()
    // Awaited here: at the end of this block the lease is given back.
    return await holder.running(this.#run({ holder, lease, key, done: names.done, forMs }, fn))
  }

  async #run<T>(turn: Turn, fn: (run: OnceRun) => Promise<T> | T): Promise<T> {
    const { holder, lease, key } = turn
    const own = await this.#reentry.run(lease, EXCLUSIVE, async () => fn(lease))
    await this.#assertStillHeld(holder, lease, key)
    return this.#keep(turn, own)
  }

  /**
   * Wraps a scheduled job, so that each tick of the schedule runs once over all instances that have the same schedule: hand what this returns to the
   * scheduler. The key is the name and the tick; the tick is what the scheduler passes (BullMQ, node-cron, croner, or a `Date`), else the present time,
   * rounded down to `everySeconds`. A tick is remembered for `forSeconds` (600): clocks may be as far apart as that. On `redlock` say a `forSeconds` that its
   * `longestTtlSeconds` allows. An instance that comes while it runs elsewhere waits, and takes over should that one die.
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
    checkText('name', name, MAX_KEY_LENGTH)
    requestFrom('name', { ...rest, forSeconds })
    return async (context) => {
      const tick = tickOf(context, this.#clock.now().wallMs, everyMs)
      return this.once(`${name}@${tick}`, (run) => fn(run, context), { ...rest, forSeconds })
    }
  }

  /** Lets a key run again before its period is over. True if a result was kept. A run that is under way goes on. */
  async forget(key: string): Promise<boolean> {
    const { done } = namesOf(key)
    const holder = this.#instance.holder ?? (await this.#instance.open())
    const lease = await kept(holder, done)
    if (lease === undefined) return false
    return new Promise((answered, failed) => holder.store.release(lease, { answered, failed }))
  }

  /** Opens the store and proves that it works, as `ping` of a `DistributedLock` does. */
  ping(): Promise<void> {
    return this.#instance.ping()
  }

  /**
   * Gives up what waits, lets runs that are under way end for `drainSeconds`, asks the rest of them to stop, and closes the store if this instance opened it. A
   * run that has ended nevertheless keeps its result; one that has not loses its lease. Results stay.
   */
  async close(options: CloseOptions = {}): Promise<void> {
    return this.#instance.close(options)
  }

  get closed(): boolean {
    return this.#instance.closed
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /** Returns what ends the listening. The same events as those of a lock: a run has a lease. */
  on<E extends LockEvent>(event: E, listener: LockListener<E>): () => void {
    return this.#instance.events.on(event, listener)
  }

  /** The lease, or the result that another call of this instance has found meanwhile. */
  async #turn(holder: Holder, request: ClaimRequest, { key, beganMs }: Called): Promise<ClaimResult | Found> {
    const calls = this.#waiting.get(key) ?? new Set()
    const call: WaitingCall = { beganMs, found: new AbortController(), result: undefined }
    this.#waiting.set(key, calls.add(call))
    using either = request.signal && eitherSignal(request.signal, call.found.signal)
    try {
      return await holder.acquire({ ...request, signal: either?.signal ?? call.found.signal })
    } catch (error) {
      if (call.result === undefined || request.signal?.aborted) throw error
      return call.result
    } finally {
      calls.delete(call)
      if (calls.size === 0) this.#waiting.delete(key)
    }
  }

  /**
   * All who wait for this key here are told: one after the other would each take the lease, only to find the same. Not
   * those who came after the store was asked: the answer may be late, and its period over when they came.
   */
  #found<T>(key: string, found: Found): T {
    for (const call of this.#waiting.get(key) ?? []) {
      if (call.beganMs > found.askedMs) continue
      call.result = found
      call.found.abort()
    }
    return resultOf(key, found.metadata)
  }

  async #look(holder: Holder, done: string): Promise<Found | undefined> {
    const askedMs = this.#nowMs
    const record = await kept(holder, done)
    return record && { metadata: record.metadata, askedMs }
  }

  get #nowMs(): number {
    return this.#clock.now().monotonicMs
  }

  /**
   * By the store's word. A lease that was ended by force is otherwise noticed only by the next heartbeat, and a result
   * would be kept while another run is under way.
   */
  async #assertStillHeld(holder: Holder, lease: HeldLease, key: string): Promise<void> {
    throwIfLost(lease)
    const renewal = { ...lease.ref, ttlMs: lease.ttlMs }
    const answer = await this.#insist(lease, () => holder.store.renew(renewal)).catch(notKnown(key))
    if (answer !== 'lost') return
    lease.lose(NOT_IN_STORE)
    throwIfLost(lease)
  }

  async #keep<T>({ holder, lease, key, done, forMs }: Turn, own: T): Promise<T> {
    const metadata = metadataOf(own)
    const claim = {
      lockName: done,
      claimId: `${lease.claim.claimId}.done`,
      holderId: this.holderId,
      mode: 'exclusive',
      permits: 1,
      ttlMs: forMs,
      metadata,
      waitMs: 0,
      abandoned: false,
    } as const
    const askedMs = this.#nowMs
    // Not through the holder: this lease is nobody's to renew or to give back, it has to outlive the process.
    const answer = await this.#insist(lease, () => ask(holder.store, claim)).catch(notKnown(key))
    // Refused: a run that took over from this one was quicker, and everybody else has its result.
    const theirs = answer.granted ? undefined : await this.#insist(lease, () => this.#look(holder, done))
    if (theirs !== undefined) return this.#found(key, theirs)
    this.#found(key, { metadata, askedMs })
    return own
  }

  /** Asks until the store answers, for as long as the run's lease lasts. */
  async #insist<T>(lease: HeldLease, ask: () => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await ask()
      } catch (error) {
        if (!isDown(error)) throw error
        await pause(this.#clock, backoffMs(RETRY, tries, this.#random), lease.signal)
        if (!lease.held) throw error
      }
    }
  }
}

interface Called {
  readonly key: string
  /** On the monotonic clock, as `askedMs`. */
  readonly beganMs: number
}

interface Found {
  readonly metadata: Metadata | undefined
  /** When the store was asked for it, or to keep it: it was there at some moment after that. */
  readonly askedMs: number
}

/** A call that waits for its turn to run. */
interface WaitingCall extends Pick<Called, 'beganMs'> {
  readonly found: AbortController
  result: Found | undefined
}

/** What a call has got when it is its turn to run. */
interface Turn {
  readonly holder: Holder
  readonly lease: HeldLease
  readonly key: string
  readonly done: string
  readonly forMs: number
}

function requestFrom(key: string, options: OnceOptions) {
  const names = namesOf(key)
  checkOptions(options, ONCE_OPTIONS)
  const { forSeconds, timeoutSeconds = 30, blockingTimeoutSeconds, signal } = options
  const endless = blockingTimeoutSeconds === undefined
  const request: ClaimRequest = {
    lockName: names.run,
    mode: 'exclusive',
    ttlMs: ttlMsFrom('timeoutSeconds', timeoutSeconds),
    waitMs: endless ? MAX_WAIT_MS : waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds),
    signal: signal === undefined ? undefined : checkSignal('signal', signal),
    heartbeat: true,
    minHoldMs: 0,
    maxHoldMs: Number.POSITIVE_INFINITY,
  }
  return { names, request, forMs: ttlMsFrom('forSeconds', forSeconds) }
}

/** Both have the same beginning and an end of their own, so no key's run is another key's result. */
function namesOf(key: string): { run: string; done: string } {
  checkText('key', key, MAX_KEY_LENGTH)
  return { run: `once:${key}:run`, done: `once:${key}:done` }
}

const MAX_KEY_LENGTH = MAX_NAME_LENGTH - 'once:'.length - ':done'.length

/** Before the job runs: a result that cannot be kept would let every instance run it again. */
function assertKeeping({ store: { driver } }: Holder, forMs: number): void {
  const { expiry, metadata } = driver.capabilities
  if (expiry === 'session') {
    throw new UnsupportedError(
      `the ${driver.name} driver's leases last as long as a connection, so a result could not outlive the process that made it`,
    )
  }
  if (!metadata)
    throw new UnsupportedError(`the ${driver.name} driver keeps nothing beside a lock, so no results either`)
  const { longestTtlMs = Number.POSITIVE_INFINITY } = driver
  if (forMs <= longestTtlMs) return
  const rule = `at most ${longestTtlMs / 1_000}, the longest that the ${driver.name} driver keeps anything`
  throw new InvalidArgumentError('forSeconds', forMs / 1_000, rule)
}

async function kept(holder: Holder, done: string): Promise<LeaseRecord | undefined> {
  const [lease] = (await holder.inspect({ lockName: done })).leases
  return lease
}

const ask = (store: StoreClient, claim: Parameters<StoreClient['acquire']>[0]): Promise<AcquireAnswer> =>
  new Promise((answered, failed) => store.acquire(claim, { answered, failed }))

function metadataOf(result: unknown): Metadata {
  if (result === undefined) return {}
  try {
    return { result: checkJson('result', result) }
  } catch (error) {
    if (!(error instanceof InvalidArgumentError)) throw error
    return { notKept: error.message.slice(0, 1_000) }
  }
}

/** The type is the caller's word that a key always means the same job. */
function resultOf<T>(key: string, metadata: Metadata | undefined): T {
  if (metadata?.['notKept'] !== undefined) throw new ResultNotKeptError(key, String(metadata['notKept']))
  // A copy: what one caller does to its result is not what another one gets.
  return structuredClone(metadata?.['result']) as T
}

const notKnown =
  (key: string) =>
  (cause: unknown): never => {
    throw new StoreError(`the job "${key}" ran, but whether its result is kept is not known`, { cause })
  }

const isDown = (error: unknown): boolean => error instanceof StoreError && error.retryable

function unlessDown(error: unknown): undefined {
  if (!isDown(error)) throw error
}

const TICK_SECONDS = 600
const RETRY = { firstMs: 50, maxMs: 1_000 }
