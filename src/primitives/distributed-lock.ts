import { hostname } from 'node:os'
import { checkUrl, chooseUrl, connect } from '../connect.ts'
import { checkFunction, checkOneOf, ttlMsFrom } from '../core/arguments.ts'
import { type Clock, systemClock } from '../core/clock.ts'
import type { Driver } from '../core/driver.ts'
import { AbortedError, ClosedError, InvalidArgumentError, LeaseLostError, NotAcquiredError } from '../core/errors.ts'
import { Emitter, type LockEvent, type LockListener } from '../core/events.ts'
import { type ClaimRequest, type ClaimResult, Holder, type HolderOptions } from '../core/holder.ts'
import { type HeldLease, type Lease, type LockInfo, lockInfoFrom } from '../core/lease.ts'
import { CALL_TIMEOUT_MS, STALLED_AFTER_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { checkHolderId, checkLockName } from '../core/names.ts'
import { type Random, systemRandom } from '../core/random.ts'
import { claimRequestFrom, type LockOptions } from './lock-options.ts'
import { Reentry } from './reentry.ts'

export interface DistributedLockOptions {
  /** A driver made by the caller, who also closes it. */
  driver?: Driver
  /** Which store: `memory:`, … The instance opens it with its first use and closes it. `HOLDFAST_URL` if neither is said. */
  url?: string
  /** Who holds: shown to others. Host, process and a random part if not said. */
  holderId?: string
  /** What asking again for a lock means that this very instance holds: no, as for anybody (the default), or a longer lease. */
  reacquire?: 'refuse' | 'extend'
  /** How long a call to the store may take before it counts as unanswered: 5. */
  callTimeoutSeconds?: number
  /** How long a waiter that died can delay those behind it: 10. */
  waiterTtlSeconds?: number
  /**
   * Renews from a worker thread with a connection of its own, so that a blocked event loop does not lose a lease. It covers a main
   * thread that shows no life for at most `stalledAfterSeconds` (30): one that hangs for ever loses its locks. For
   * drivers that can be opened in a thread; `UnsupportedError` otherwise.
   */
  heartbeatThread?: boolean | { stalledAfterSeconds?: number }
  /** For tests: time and randomness. */
  clock?: Clock
  random?: Random
}

export type LockResult = { acquired: true; lock: Lease } | { acquired: false; error: string; holder?: LockInfo }

/**
 * One lock API over the store that a team already runs. An instance is cheap to use and meant to be shared: the tasks of a process exclude
 * each other through it as they exclude other processes.
 */
export class DistributedLock implements AsyncDisposable {
  readonly holderId: string
  readonly #settings: Omit<HolderOptions, 'driver'>
  readonly #driver: Driver | undefined
  readonly #url: string
  readonly #extends: boolean
  readonly #events = new Emitter()
  readonly #reentry = new Reentry()
  readonly #leases = new Map<string, HeldLease>()
  /** Only for `reacquire: 'extend'`: when one of the claims under way is granted, the others extend its lease instead of waiting for it. */
  readonly #claiming = new Map<string, Set<AbortController>>()
  #holder: Holder | undefined
  #opening: Promise<Holder> | undefined
  #closing: Promise<void> | undefined

  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options: DistributedLockOptions = {}) {
    if (typeof options !== 'object' || options === null) throw new InvalidArgumentError('options', options, 'an object')
    const { driver, url, reacquire = 'refuse' } = options
    if (driver !== undefined) checkDriver(driver)
    if (driver !== undefined && url !== undefined)
      throw new InvalidArgumentError('url', url, 'left out when a driver is passed')
    this.#settings = settingsFrom(options, this.#events)
    this.holderId = this.#settings.holderId
    this.#extends = checkOneOf('reacquire', reacquire, ['refuse', 'extend']) === 'extend'
    this.#driver = driver
    this.#url = chooseUrl(url)
    if (driver === undefined) checkUrl(this.#url)
    else this.#holder = new Holder({ ...this.#settings, driver })
  }

  /**
   * Asks for the lock. Contention is an answer: `acquired: false`, with who holds it where the store tells. Everything else throws:
   * `StoreError` (not known whether it is held), `AbortedError`, `InvalidArgumentError`, `ClosedError`. Whenever the
   * answer is not a lease, nothing is left behind in the store.
   *
   * The lease is not renewed unless `heartbeat` says so: it is the caller's to release and to extend.
   */
  acquire(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    return this.#acquire(lockName, options, false)
  }

  /**
   * Gives back what this instance holds on the name. True if it was still held. False if it was not, or ran out before.
   * Inside `withLock` it ends the innermost entry.
   */
  async release(lockName: string): Promise<boolean> {
    checkLockName(lockName)
    this.#assertOpen()
    return (await this.#leaseOn(lockName)?.release()) ?? false
  }

  /** New end = now + `additionalSeconds`. False if this instance does not hold the name any more. */
  async extend(lockName: string, additionalSeconds: number): Promise<boolean> {
    checkLockName(lockName)
    ttlMsFrom('additionalSeconds', additionalSeconds)
    this.#assertOpen()
    return (await this.#leaseOn(lockName)?.extend(additionalSeconds)) ?? false
  }

  /**
   * Runs `fn` while holding the lock, renewed by a heartbeat, and gives it back. Resolves with what `fn` returned.
   *
   * Rejects with `NotAcquiredError` if the lock was not got in time, with `fn`'s own error if it threw, and with `LeaseLostError`
   * if `fn` went well but the lease was lost before it ended: its last steps may have run beside another holder's. Inside `fn`, the same name
   * is entered again at once.
   */
  async withLock<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    checkFunction('fn', fn)
    await using lease = await this.hold(lockName, options)
    const result = await this.#reentry.run(lease, async () => fn(lease))
    const lost = lossOf(lease)
    if (lost !== undefined) throw lost
    return result
  }

  /** As `acquire`, with a heartbeat, and throws `NotAcquiredError` instead of answering: `await using lease = await lock.hold('name')`. */
  async hold(lockName: string, options: LockOptions = {}): Promise<Lease> {
    const result = await this.#acquire(lockName, options, true)
    if (result.acquired) return result.lock
    throw new NotAcquiredError(lockName, result.error, result.holder)
  }

  /** Releases everything that this instance holds. Throws `StoreError` if the store did not answer for one of them. */
  async releaseAll(): Promise<void> {
    const ends = await Promise.allSettled([...this.#leases.values()].map((lease) => lease.release()))
    for (const end of ends) if (end.status === 'rejected') throw end.reason
  }

  /** Gives up what waits, releases what is held, and closes the store if this instance opened it. Later calls throw `ClosedError`. */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  get closed(): boolean {
    return this.#closing !== undefined
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /** Returns what ends the listening. The same events are on the diagnostics channels `holdfast:<event>`. */
  on<E extends LockEvent>(event: E, listener: LockListener<E>): () => void {
    return this.#events.on(event, listener)
  }

  async #acquire(lockName: string, options: LockOptions, heartbeatByDefault: boolean): Promise<LockResult> {
    const request = claimRequestFrom(lockName, options, heartbeatByDefault)
    this.#assertOpen()
    if (options.signal?.aborted) throw new AbortedError(`acquiring "${lockName}"`, options.signal.reason)
    const entered = this.#reentry.enter(lockName)
    if (entered !== undefined) return { acquired: true, lock: entered }
    const holder = this.#holder ?? (await this.#open())
    if (this.#extends) return this.#acquireOrExtend(holder, request)
    return this.#claim(holder, request)
  }

  async #acquireOrExtend(holder: Holder, request: ClaimRequest): Promise<LockResult> {
    const { lockName, ttlMs, signal } = request
    for (;;) {
      const own = this.#leases.get(lockName)
      // It only ever becomes longer: another task of this instance relies on what it was given.
      const isLonger = own !== undefined && own.remainingSeconds * 1_000 >= ttlMs
      if (own !== undefined && (isLonger || (await own.extend(ttlMs / 1_000)))) {
        if (request.heartbeat) own.keepAlive()
        return { acquired: true, lock: own }
      }
      const overtaken = new AbortController()
      const claims = this.#claiming.get(lockName) ?? new Set()
      this.#claiming.set(lockName, claims.add(overtaken))
      try {
        const either = signal === undefined ? overtaken.signal : AbortSignal.any([signal, overtaken.signal])
        const result = await this.#claim(holder, { ...request, signal: either })
        if (result.acquired || !this.#leases.has(lockName)) return result
      } catch (error) {
        if (!overtaken.signal.aborted || signal?.aborted) throw error
      } finally {
        claims.delete(overtaken)
        if (claims.size === 0) this.#claiming.delete(lockName)
      }
    }
  }

  async #claim(holder: Holder, request: ClaimRequest): Promise<LockResult> {
    const result = await holder.acquire({ ...request, onEnd: this.#forget })
    if (!result.granted) return refusalOf(request, result)
    this.#leases.set(request.lockName, result.lease)
    for (const overtaken of this.#claiming.get(request.lockName) ?? []) overtaken.abort()
    return { acquired: true, lock: result.lease }
  }

  readonly #forget = (lease: HeldLease): void => {
    if (this.#leases.get(lease.lockName) === lease) this.#leases.delete(lease.lockName)
  }

  #leaseOn(lockName: string): Lease | undefined {
    return this.#reentry.innermost(lockName) ?? this.#leases.get(lockName)
  }

  #open(): Promise<Holder> {
    this.#opening ??= connect(this.#url).then(
      async (driver) => {
        try {
          this.#holder = new Holder({ ...this.#settings, driver })
          return this.#holder
        } catch (error) {
          await driver.close()
          throw error
        }
      },
      (error: unknown) => {
        // The next call tries anew: a store that was down at the first use need not be down for ever.
        this.#opening = undefined
        throw error
      },
    )
    return this.#opening
  }

  #assertOpen(): void {
    if (this.#closing !== undefined) throw new ClosedError('this DistributedLock is closed')
  }

  async #close(): Promise<void> {
    const holder = this.#holder ?? (await this.#opening?.catch(() => undefined))
    if (holder === undefined) return
    await holder.close()
    if (this.#driver === undefined) await holder.link.driver.close()
  }
}

/** One for the process, on the store that `HOLDFAST_URL` names. A new one after that was closed. */
export function getDistributedLock(): DistributedLock {
  if (shared === undefined || shared.closed) shared = new DistributedLock()
  return shared
}

let shared: DistributedLock | undefined

/** The usual slip is a driver that is still being opened. */
function checkDriver(driver: unknown): void {
  const has = (method: string): boolean => typeof (driver as Record<string, unknown> | null)?.[method] === 'function'
  if (!['acquire', 'renew', 'release', 'inspect', 'close'].every(has)) {
    throw new InvalidArgumentError('driver', driver, 'a driver (one that is opened asynchronously has to be awaited)')
  }
}

function settingsFrom(options: DistributedLockOptions, events: Emitter): Omit<HolderOptions, 'driver'> {
  const { clock = systemClock, random = systemRandom, heartbeatThread = false } = options
  const { holderId = `${hostname()}:${process.pid}:${random.id()}` } = options
  const { callTimeoutSeconds = CALL_TIMEOUT_MS / 1_000, waiterTtlSeconds = WAITER_TTL_MS / 1_000 } = options
  checkHolderId(holderId)
  const callTimeoutMs = ttlMsFrom('callTimeoutSeconds', callTimeoutSeconds)
  const waiterTtlMs = ttlMsFrom('waiterTtlSeconds', waiterTtlSeconds)
  const settings = { clock, random, holderId, callTimeoutMs, waiterTtlMs, events }
  if (typeof heartbeatThread !== 'boolean' && (typeof heartbeatThread !== 'object' || heartbeatThread === null)) {
    throw new InvalidArgumentError('heartbeatThread', heartbeatThread, 'true, false or an object')
  }
  if (heartbeatThread === false) return settings
  const { stalledAfterSeconds = STALLED_AFTER_MS / 1_000 } = heartbeatThread === true ? {} : heartbeatThread
  const stalledAfterMs = ttlMsFrom('heartbeatThread.stalledAfterSeconds', stalledAfterSeconds)
  return { ...settings, thread: { callTimeoutMs, stalledAfterMs } }
}

function refusalOf({ lockName }: ClaimRequest, { refusal, waitedMs }: ClaimResult & { granted: false }): LockResult {
  const waited = waitedMs >= 1 ? ` (waited ${(waitedMs / 1_000).toFixed(1)} s)` : ''
  if (refusal?.holder === undefined)
    return { acquired: false, error: `"${lockName}" is held by another claim${waited}` }
  const holder = lockInfoFrom(refusal.holder)
  return {
    acquired: false,
    error: `"${lockName}" is held by ${holder.holderId} since ${holder.acquiredAt.toISOString()}${waited}`,
    holder,
  }
}

function lossOf(lease: Lease): LeaseLostError | undefined {
  const { reason } = lease.signal
  return reason instanceof LeaseLostError ? reason : undefined
}
