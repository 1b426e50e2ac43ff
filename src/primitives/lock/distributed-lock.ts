import { checkBoolean, checkOneOf, ttlMsFrom } from '../../core/arguments.ts'
import type { LockEvent, LockListener } from '../../core/events.ts'
import { readHandOver } from '../../core/lease/hand-over.ts'
import { HeldLease } from '../../core/lease/held-lease.ts'
import { type AnswerOptions, answerSignal, type Lease } from '../../core/lease/lease.ts'
import type { LockInfo } from '../../core/lock-info.ts'
import { checkLockName } from '../../core/names.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { unlessAborted } from '../../core/time/abort.ts'
import { type CloseOptions, type Extras, INSTANCE_OPTIONS, Instance, type InstanceOptions } from '../instance.ts'
import { Claims } from './claims.ts'
import { forceRelease } from './force-release.ts'
import { inspectLock, isLocked, type LockInspection } from './inspect.ts'
import { type DefaultsOption, EXCLUSIVE, type LockOptions } from './options.ts'
import { Reacquire } from './reacquire.ts'
import type { LockResult } from './result.ts'
import { withLocks } from './several-locks.ts'

export interface DistributedLockOptions extends InstanceOptions, DefaultsOption {
  /** What asking again for a lock means that this very instance holds: no, as for anybody (the default), or a longer lease. */
  reacquire?: 'refuse' | 'extend'
}

export interface RestoreOptions {
  /** Renews the lease until it is released. False if not said. */
  heartbeat?: boolean
  /** The lease's time to live from now on. As it was before if not said. */
  timeoutSeconds?: number
}

const RESTORE_OPTIONS = optionNames<RestoreOptions>({ heartbeat: true, timeoutSeconds: true })
const OPTIONS = optionNames<DistributedLockOptions>({ ...INSTANCE_OPTIONS, reacquire: true, defaults: true })
const FORCE_OPTIONS = optionNames<{ by: string }>({ by: true })

/**
 * One lock API over the store that a team already runs. An instance is cheap to use and meant to be shared: the tasks of a process exclude
 * each other through it as they exclude other processes.
 */
export class DistributedLock implements AsyncDisposable {
  readonly #instance: Instance
  readonly #claims: Claims
  readonly #leases = new Map<string, HeldLease>()
  readonly #reacquire: Reacquire | undefined

  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options?: DistributedLockOptions)
  /** @internal */
  constructor(options: DistributedLockOptions | undefined, extras: Extras)
  constructor(options: DistributedLockOptions = {}, extras?: Extras) {
    this.#instance = new Instance('DistributedLock', options, extras, OPTIONS)
    const { reacquire = 'refuse' } = options
    if (checkOneOf('reacquire', reacquire, ['refuse', 'extend']) === 'extend') {
      this.#reacquire = new Reacquire({
        own: (lockName) => this.#leases.get(lockName),
        claim: (holder, request) => this.#claims.claim(holder, request),
      })
    }
    this.#claims = new Claims(this.#instance, options, {
      taken: this.#taken,
      ended: this.#forget,
      instead: this.#reacquire && ((holder, request) => this.#reacquire?.acquire(holder, request)),
    })
  }

  get holderId(): string {
    return this.#instance.holderId
  }

  /**
   * Asks for the lock. Contention is an answer: `acquired: false`, with who holds it where the store tells. Everything else throws:
   * `StoreError` (not known whether it is held), `AbortedError`, `DeadlockError`, `InvalidArgumentError`, `ClosedError`. Whenever the
   * answer is not a lease, nothing is left behind in the store.
   *
   * The lease is not renewed unless `heartbeat` says so: it is the caller's to release and to extend.
   */
  acquire(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    return this.#claims.acquire(lockName, EXCLUSIVE, options)
  }

  /**
   * Gives back what this instance holds on the name. True if it was still held. False if it was not, or ran out before.
   * Inside `withLock` it ends the innermost entry. From outside, the function that runs there loses its lock: its lease's `signal` aborts, and `withLock`
   * rejects with `LeaseLostError`. An abort of `signal` ends the waiting for the answer, never the release itself.
   */
  async release(lockName: string, options?: AnswerOptions): Promise<boolean> {
    checkLockName(lockName)
    const signal = answerSignal(options)
    this.#instance.assertNotEnded()
    const inner = this.#claims.reentry.innermost(lockName)
    const lease = inner ?? this.#leases.get(lockName)
    if (lease === undefined) return false
    if (!(lease instanceof HeldLease)) return lease.release(options)
    const ended = this.#claims.end(lease, 'it was released by another task')
    return unlessAborted(ended, signal, `waiting for the release of "${lockName}"`)
  }

  /** New end = now + `additionalSeconds`. False if this instance does not hold the name any more. `signal` as in `Lease.extend`. */
  async extend(lockName: string, additionalSeconds: number, options?: AnswerOptions): Promise<boolean> {
    checkLockName(lockName)
    ttlMsFrom('additionalSeconds', additionalSeconds)
    answerSignal(options)
    this.#instance.assertNotEnded()
    const lease = this.#claims.reentry.innermost(lockName) ?? this.#leases.get(lockName)
    return (await lease?.extend(additionalSeconds, options)) ?? false
  }

  /**
   * Goes on with a lease that another process has handed over with `lease.serialize()`: renews it, and resolves with a lease that has the same fencing token. Like one
   * of `acquire` it has no heartbeat unless `heartbeat` says so. Its `holderId` stays the first holder's, here and in the store. What is left of `minHoldSeconds` and
   * `maxHoldSeconds` still holds.
   *
   * Restore a text once: two processes that restore the same text both hold the lock, with the same token.
   *
   * @throws `LeaseLostError` if the store no longer has the lease; `StoreError` if it is not known, and then this instance can restore the text again;
   * `InvalidArgumentError` for any other text, which the error does not show; `UnsupportedError` where a lease lasts as long as its session; `ClosedError`
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
   * Runs `fn` while holding the lock, renewed by a heartbeat, and gives it back. Resolves with what `fn` returned.
   *
   * Rejects with `NotAcquiredError` if the lock was not got in time, with `fn`'s own error if it threw, and with `LeaseLostError`
   * if `fn` went well but the lease was lost before it ended: its last steps may have run beside another holder's. Inside `fn`, the same name
   * is entered again at once.
   */
  withLock<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    return this.#claims.with(lockName, EXCLUSIVE, fn, options)
  }

  /**
   * Runs `fn` while holding every one of the names, all or nothing. It is handed their leases in the order of the names; a name that is given twice is taken once.
   *
   * All are asked for in one round trip, and in one step where the driver has `groups`: no other client sees a part of them taken. If one of them is
   * held, nothing is kept. With `blocking` they are then taken one after the other in the order of their UTF-8 bytes,
   * waiting within the one `blockingTimeoutSeconds`, while what is already held is renewed: two calls never wait for each other, in whatever order they name
   * their locks. Names that the running function holds already are entered again. `reacquire` is not looked at.
   *
   * Throws what `withLock` throws, `LeaseLostError` also if a lease was lost while others were waited for; `fn` has not run then. At most 100 names.
   */
  withLocks<T>(
    lockNames: readonly string[],
    fn: (leases: Lease[]) => Promise<T> | T,
    options: LockOptions = {},
  ): Promise<T> {
    return withLocks(this.#claims, lockNames, fn, options)
  }

  /** As `acquire`, with a heartbeat, and throws `NotAcquiredError` instead of answering: `await using lease = await lock.hold('name')`. */
  hold(lockName: string, options: LockOptions = {}): Promise<Lease> {
    return this.#claims.hold(lockName, EXCLUSIVE, options)
  }

  /**
   * Releases everything that this instance holds. Functions that run under a lease lose it, as with `release`. Throws `StoreError` if the store did not answer for
   * one of them.
   */
  async releaseAll(): Promise<void> {
    const leases = [...(this.#instance.holder?.leases ?? [])]
    const ends = await Promise.allSettled(leases.map((lease) => this.#claims.end(lease, 'all locks were released')))
    for (const end of ends) if (end.status === 'rejected') throw end.reason
  }

  /**
   * Ends what is held on the name, whoever holds it: for a holder that is known to be dead, or a lease that a wrong clock has made absurdly long. Resolves with what it
   * ended; empty if nothing was held, or if that ended by itself meanwhile: a newer holder keeps the lock. The next waiter is granted the lock. (A lock of another
   * client on Redis has no token to compare; without a prefix it is not ended.)
   *
   * `by` says who does it. It stands in the metadata (`forcedBy`) of the lease that replaces the others for a moment, and in the event `stolen`; PostgreSQL keeps it on
   * record. Whoever held it learns of the loss at once in this process, else with its next renewal at the latest. What it writes until then only a
   * fencing token can refuse.
   *
   * Throws `InvalidArgumentError`, `StoreError`, `ClosedError`, and `UnsupportedError` where the driver cannot take a lock from its holder.
   */
  async forceRelease(lockName: string, options: { by: string }): Promise<LockInfo[]> {
    checkLockName(lockName)
    checkOptions(options, FORCE_OPTIONS)
    checkLockName(options.by, 'by')
    this.#instance.assertOpen()
    return forceRelease(this.#instance.holder ?? (await this.#instance.open()), lockName, options.by)
  }

  /**
   * Shows who holds the lock and who waits for it, whichever process or primitive that is. It writes nothing. Of a name with very many leases and waiters it shows
   * about the first 10,000, and `complete` is false. What it shows may have changed by the time it is read: to decide whether to do something, acquire the lock.
   *
   * @throws `StoreError`, `InvalidArgumentError`, `ClosedError`
   */
  async inspect(lockName: string): Promise<LockInspection> {
    checkLockName(lockName)
    this.#instance.assertNotEnded()
    return inspectLock(this.#instance.holder ?? (await this.#instance.open()), lockName)
  }

  /**
   * Whether the store has a lease on the name, of any holder: another process, another task, this instance itself, a reader or a permit. It writes nothing. An answer is
   * never a promise: the lock may be taken or free by the time it arrives. To decide whether to do something, acquire the lock.
   *
   * @throws `StoreError` if the store could not be asked: it never answers `false` for that; `InvalidArgumentError`, `ClosedError`
   */
  async isLocked(lockName: string): Promise<boolean> {
    checkLockName(lockName)
    this.#instance.assertNotEnded()
    return isLocked(this.#instance.holder ?? (await this.#instance.open()), lockName)
  }

  /**
   * Opens the store if it is not open, and proves that it works: takes a lock whose name is new (`ping:` and a random part) and gives it back. So the server can be
   * reached, it is the right one, has the tables, and takes writes. It asks once, leaves nothing behind, and no event tells of it. For the start of a service, and for its
   * readiness probe.
   *
   * @throws `StoreError`; its `retryable` is false for a fault that trying again cannot mend, such as a wrong password, missing tables or a read-only replica
   */
  ping(): Promise<void> {
    return this.#instance.ping()
  }

  /**
   * Gives up what waits, lets running work end for `drainSeconds`, asks the rest of it to stop, releases what is held, and closes the store if this instance opened
   * it. Later calls throw `ClosedError`. Takes no longer than `drainSeconds` and `timeoutSeconds` together.
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

  /** Returns what ends the listening. The same events are on the diagnostics channels `holdfast:<event>`. */
  on<E extends LockEvent>(event: E, listener: LockListener<E>): () => void {
    return this.#instance.events.on(event, listener)
  }

  readonly #taken = (lease: HeldLease): void => {
    // A listener of `acquired` may have ended it, and nothing would forget it any more.
    if (!lease.held) return
    this.#leases.set(lease.lockName, lease)
    this.#reacquire?.taken(lease)
  }

  readonly #forget = (lease: HeldLease): void => {
    if (this.#leases.get(lease.lockName) === lease) this.#leases.delete(lease.lockName)
  }
}
