import type { StoreOpener } from '../../connect.ts'
import { checkBoolean, checkLockName, checkOneOf, ttlMsFrom } from '../../core/arguments.ts'
import { AbortedError } from '../../core/errors.ts'
import { readHandOver } from '../../core/lease/hand-over.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import { type AnswerOptions, answerSignal, type Lease } from '../../core/lease/lease.ts'
import type { LockInfo } from '../../core/lock-info.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { unlessAborted } from '../../core/time/abort.ts'
import { Instance } from '../instance.ts'
import { INSTANCE_OPTIONS, type InstanceOptions } from '../instance-options.ts'
import { Primitive } from '../primitive.ts'
import { Claims, type DefaultsOption, type LockOptions, type LockResult } from './claims.ts'
import { type ForceReleaseOptions, forceRelease } from './force-release.ts'
import { inspectLock, isLocked, type LockInspection } from './inspect.ts'
import { EXCLUSIVE } from './reentry.ts'
import { withLocks } from './several-locks.ts'

export interface DistributedLockOptions extends InstanceOptions, DefaultsOption {
  /**
   * What happens when this instance asks for a lock that it already holds. `'refuse'`: it is refused, or waits, like
   * any other claim. `'extend'`: its lease is extended, and the call gets `acquired: true`.
   *
   * @default 'refuse'
   */
  reacquire?: 'refuse' | 'extend'
}

export interface RestoreOptions {
  /**
   * Renews the lease until it is released.
   *
   * @default false
   */
  heartbeat?: boolean
  /**
   * The lease's time to live from now on.
   *
   * @default the time to live that it had before
   */
  timeoutSeconds?: number
}

const RESTORE_OPTIONS = optionNames<RestoreOptions>({ heartbeat: true, timeoutSeconds: true })
const OPTIONS = optionNames<DistributedLockOptions>({ ...INSTANCE_OPTIONS, reacquire: true, defaults: true })
const FORCE_OPTIONS = optionNames<ForceReleaseOptions>({ by: true, endSession: true })

/**
 * Makes sure that only one process, and only one task of it, does a job at a time.
 *
 * Share one instance in a process. Its tasks exclude each other as they exclude other processes. Nothing waits unless
 * you ask for it with `blocking` or `blockingTimeoutSeconds`. It takes only drivers, for small bundles; the class of
 * the same name in `holdfast` opens any store by its URL.
 *
 * @example
 * ```ts
 * const lock = new DistributedLock({ driver: redisDriver({ client: new Redis() }) })
 * await lock.withLock('order:123', async (lease) => {
 *   await ship(123, { fencingToken: lease.fencingToken })
 * })
 * ```
 */
export class DistributedLock extends Primitive {
  readonly #instance: Instance
  readonly #claims: Claims

  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(options?: DistributedLockOptions)
  /** @internal */
  constructor(options: DistributedLockOptions | undefined, opener: StoreOpener)
  constructor(options: DistributedLockOptions = {}, opener?: StoreOpener) {
    const instance = new Instance('DistributedLock', options, opener, OPTIONS)
    super(instance)
    this.#instance = instance
    const { reacquire = 'refuse' } = options
    const extendsOwn = checkOneOf('reacquire', reacquire, ['refuse', 'extend']) === 'extend'
    this.#claims = new Claims(instance, options, extendsOwn)
  }

  /**
   * Asks for the lock. Contention is a value: `acquired: false`, with the holder if the store knows it. Unless it
   * resolves with a lease, nothing is left behind in the store.
   *
   * The lease is not renewed unless `heartbeat` is true. Release or extend it yourself.
   *
   * @throws `StoreError` if it is unknown whether the lock is held
   * @throws `AbortedError`, `DeadlockError`, `InvalidArgumentError`, `OverloadError`, `ClosedError`
   * @throws what `connect` throws, for example `MissingClientError`, if this call opens the store
   */
  acquire(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    return this.#claims.acquire(lockName, EXCLUSIVE, options)
  }

  /**
   * Releases this instance's lease on the name. True if it was still held. False if it was not held or had expired.
   *
   * Inside `withLock` it ends the innermost entry. From outside, the function that runs there loses its lock: the
   * `signal` of its lease aborts, and `withLock` rejects with `LeaseLostError`. Aborting `options.signal` ends the wait
   * for the answer, never the release itself.
   *
   * @throws `StoreError` if the store did not answer. The release is then sent again in the background
   * @throws `AbortedError`, `InvalidArgumentError`, `ClosedError`
   */
  async release(lockName: string, options?: AnswerOptions): Promise<boolean> {
    checkLockName(lockName)
    const signal = answerSignal(options)
    this.#instance.assertNotEnded()
    const { reentry } = this.#claims
    const inner = reentry.innermost(lockName)
    const lease = inner?.lease ?? this.#meant(lockName)
    if (lease === undefined) return false
    if (inner !== undefined && !inner.isEntered) return inner.release(options)
    const reason = 'it was released by another task'
    const ended = inner === undefined ? lease.endAll(reason, () => false) : lease.revoke(inner, reason)
    return unlessAborted(ended, signal, `waiting for the release of "${lockName}"`)
  }

  /** The lease that the name means to a caller without a use of it. */
  #meant(lockName: string): HeldLease | undefined {
    const newest = this.#instance.holder?.leases.on(lockName)
    return newest !== undefined && this.#claims.reentry.means(newest) ? newest : undefined
  }

  /**
   * Sets this instance's lease on the name to end `seconds` from now. False if it does not hold the name.
   *
   * @throws `StoreError`, `AbortedError` if it is unknown whether the lease was extended
   * @throws `InvalidArgumentError`, `ClosedError`
   */
  async extend(lockName: string, seconds: number, options?: AnswerOptions): Promise<boolean> {
    checkLockName(lockName)
    const ttlMs = ttlMsFrom('seconds', seconds)
    const signal = answerSignal(options)
    this.#instance.assertNotEnded()
    const inner = this.#claims.reentry.innermost(lockName)
    if (inner !== undefined) return inner.extend(seconds, options)
    const lease = this.#meant(lockName)
    if (lease === undefined) return false
    const what = `extending the lease on "${lockName}"`
    if (signal?.aborted) throw new AbortedError(what, signal.reason)
    return unlessAborted(lease.extend(ttlMs), signal, what)
  }

  /**
   * Continues a lease that another process handed over with `lease.serialize()`: renews it, and resolves with a lease
   * that has the same fencing token and the `holderId` of the first holder. It is not renewed again unless `heartbeat`
   * is true. What is left of `minHoldSeconds` and `maxHoldSeconds` still applies.
   *
   * Restore a text only once. Two processes that restore the same text both hold the lock, with the same token.
   *
   * @throws `LeaseLostError` if the store no longer has the lease
   * @throws `StoreError` if that is unknown. This instance can then restore the text again
   * @throws `InvalidArgumentError` for any other text. The error does not contain the text
   * @throws `UnsupportedError` for a driver whose leases last as long as a connection
   * @throws `ClosedError`
   */
  async restore(text: string, options: RestoreOptions = {}): Promise<Lease> {
    const { heartbeat = false, timeoutSeconds } = checkOptions(options, RESTORE_OPTIONS)
    checkBoolean('heartbeat', heartbeat)
    const ttlMs = timeoutSeconds === undefined ? undefined : ttlMsFrom('timeoutSeconds', timeoutSeconds)
    const handedOver = readHandOver(text)
    this.#instance.assertOpen()
    return this.#claims.restore(handedOver, { heartbeat, ...(ttlMs !== undefined && { ttlMs }) })
  }

  /**
   * Runs `fn` while holding the lock, and releases it. A heartbeat renews the lease. Resolves with what `fn` returned.
   * Inside `fn`, the same name is entered again without waiting. An error that `fn` throws is passed on.
   *
   * @throws `NotAcquiredError` if the lock was not acquired in time
   * @throws `LeaseLostError` if `fn` succeeded but the lease was lost before it ended: its last steps may have run at
   * the same time as another holder's. Also if the instance was closed meanwhile, and `fn` was asked to stop
   * @throws what `acquire` throws
   */
  withLock<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    return this.#claims.with(lockName, EXCLUSIVE, fn, options)
  }

  /**
   * Acquires all of the names or none of them, and runs `fn` while holding them. `fn` receives their leases in the
   * order of the names. A name that is passed twice is acquired once. At most 100 names.
   *
   * All names are claimed in one round trip; with a driver that has `groups`, in one step, so that no other client sees
   * some of them taken. If one of them is held, nothing is kept. With `blocking`, the names are then taken one after
   * the other in the order of their UTF-8 bytes, within one `blockingTimeoutSeconds` for all, while those already held
   * are renewed. So two calls never wait for each other, in any order of names. Names that the running function already
   * holds are entered again. `reacquire` does not apply.
   *
   * @throws what `withLock` throws; `LeaseLostError` also if a lease was lost while waiting for others, before `fn` ran
   */
  withLocks<T>(
    lockNames: readonly string[],
    fn: (leases: Lease[]) => Promise<T> | T,
    options: LockOptions = {},
  ): Promise<T> {
    return withLocks(this.#claims, lockNames, fn, options)
  }

  /**
   * As `acquire`, with a heartbeat by default, and throws `NotAcquiredError` on contention:
   * `await using lease = await lock.hold('name')`.
   *
   * @throws `NotAcquiredError`, and what `acquire` throws
   */
  hold(lockName: string, options: LockOptions = {}): Promise<Lease> {
    return this.#claims.hold(lockName, EXCLUSIVE, options)
  }

  /**
   * Releases everything that this instance holds. Functions that run under a lease lose it, as with `release`.
   *
   * @throws `StoreError` if the store did not answer one of the releases
   */
  async releaseAll(): Promise<void> {
    const { reentry } = this.#claims
    const leases = this.#instance.holder?.leases.all() ?? []
    const ends = await Promise.allSettled(
      leases.map((lease) => lease.endAll('all locks were released', (use) => reentry.isOwn(use))),
    )
    for (const end of ends) if (end.status === 'rejected') throw end.reason
  }

  /**
   * Ends the leases on the name of any holder. Use it for a holder that is known to be dead, or for a lease that a
   * wrong clock has made absurdly long. Resolves with the leases that it ended: none if nothing was held, or if they
   * ended by themselves meanwhile. A newer holder keeps the lock. The next waiter is granted the lock. (A lock of
   * another client on Redis has no token to compare; without a prefix it is not ended.)
   *
   * `by` says who does it. It is in the metadata (`forcedBy`) of the lease that replaces the others for a moment, and
   * in the event `forceReleased`; PostgreSQL keeps a record of it. A holder learns of the loss at its next renewal, at
   * the latest after 5 s if it has a heartbeat. Until then only a fencing token can reject its writes.
   *
   * Advisory locks of PostgreSQL: the holder itself lets go of the lock, when it sees that a role that could end its
   * connection wants it to. `endSession` is for a holder that does not.
   *
   * @throws `UnsupportedError` for a driver that cannot end the lease of another client
   * @throws `StoreError`, `InvalidArgumentError`, `ClosedError`
   */
  async forceRelease(lockName: string, options: ForceReleaseOptions): Promise<LockInfo[]> {
    checkLockName(lockName)
    const { by, endSession = false } = checkOptions(options, FORCE_OPTIONS)
    checkLockName(by, 'by')
    checkBoolean('endSession', endSession)
    this.#instance.assertOpen()
    return forceRelease(await this.#instance.open(), lockName, { by, endSession })
  }

  /**
   * Shows the holders of the lock and its waiters, of every process and primitive. It writes nothing. Of a name with
   * very many leases and waiters it shows about the first 10,000, and `complete` is false. The answer may be out of
   * date when you read it: to decide whether to do something, acquire the lock.
   *
   * @throws `StoreError`, `InvalidArgumentError`, `ClosedError`
   */
  async inspect(lockName: string): Promise<LockInspection> {
    checkLockName(lockName)
    this.#instance.assertNotEnded()
    return inspectLock(await this.#instance.open(), lockName)
  }

  /**
   * Whether the store has a lease on the name, of any holder: another process, another task, this instance itself, a
   * reader or a permit. It writes nothing. The answer may be out of date when it arrives: to decide whether to do
   * something, acquire the lock.
   *
   * @throws `StoreError` if the store could not be asked. It never resolves with `false` for that
   * @throws `InvalidArgumentError`, `ClosedError`
   */
  async isLocked(lockName: string): Promise<boolean> {
    checkLockName(lockName)
    this.#instance.assertNotEnded()
    return isLocked(await this.#instance.open(), lockName)
  }
}
