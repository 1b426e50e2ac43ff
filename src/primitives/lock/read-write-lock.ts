import { storeOpener } from '../../connect.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { optionNames } from '../../core/options.ts'
import { Instance } from '../instance.ts'
import { INSTANCE_OPTIONS, type InstanceOptions } from '../instance-options.ts'
import { Primitive } from '../primitive.ts'
import { Claims, type DefaultsOption, type LockOptions, type LockResult } from './claims.ts'
import { EXCLUSIVE, type RequestedShare } from './reentry.ts'

export interface ReadWriteLockOptions extends InstanceOptions, DefaultsOption {}

const OPTIONS = optionNames<ReadWriteLockOptions>({ ...INSTANCE_OPTIONS, defaults: true })

/**
 * Many readers or one writer at a time. A writer makes the same claim as a `DistributedLock` on this name, so the two
 * exclude each other.
 *
 * With a driver that has a queue (`queue` in its capabilities), a writer waits only for the readers before it: later
 * readers queue behind it. Without a queue, readers that keep coming can keep a writer waiting.
 *
 * Needs a driver with shared mode (`shared` in its capabilities). Others throw an `UnsupportedError` with the reason.
 *
 * @example
 * ```ts
 * const lock = new ReadWriteLock({ url: 'redis://localhost:6379' })
 * const price = await lock.withRead('prices', () => lookUp('apple'))
 * await lock.withWrite('prices', () => importPrices(), { blocking: true })
 * ```
 */
export class ReadWriteLock extends Primitive {
  readonly #claims: Claims

  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(options: ReadWriteLockOptions = {}) {
    const instance = new Instance('ReadWriteLock', options, storeOpener, OPTIONS)
    super(instance)
    this.#claims = new Claims(instance, options)
  }

  /**
   * Asks to read. Contention is a value: `acquired: false`, with the holder if the store knows it. Unless it resolves
   * with a lease, nothing is left behind in the store.
   *
   * The lease is not renewed unless `heartbeat` is true. Release or extend it yourself.
   *
   * @throws `StoreError` if it is unknown whether the lock is held
   * @throws `UnsupportedError` for a driver without shared mode
   * @throws `AbortedError`, `DeadlockError`, `InvalidArgumentError`, `OverloadError`, `ClosedError`
   */
  acquireRead(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    return this.#claims.acquire(lockName, SHARED, options)
  }

  /**
   * Asks to write. Otherwise as `acquireRead`.
   *
   * @throws what `acquireRead` throws
   */
  acquireWrite(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    return this.#claims.acquire(lockName, EXCLUSIVE, options)
  }

  /**
   * As `acquireRead`, with a heartbeat by default, and throws `NotAcquiredError` on contention.
   *
   * @throws `NotAcquiredError`, and what `acquireRead` throws
   */
  holdRead(lockName: string, options: LockOptions = {}): Promise<Lease> {
    return this.#claims.hold(lockName, SHARED, options)
  }

  /**
   * As `acquireWrite`, with a heartbeat by default, and throws `NotAcquiredError` on contention.
   *
   * @throws `NotAcquiredError`, and what `acquireWrite` throws
   */
  holdWrite(lockName: string, options: LockOptions = {}): Promise<Lease> {
    return this.#claims.hold(lockName, EXCLUSIVE, options)
  }

  /**
   * Runs `fn` as a reader. A heartbeat renews the lease. Resolves with what `fn` returned. An error that `fn` throws is
   * passed on.
   *
   * Inside `fn`, reading the same name is entered again without waiting. Waiting to write it throws a `DeadlockError`
   * at once: a writer waits for every reader, including this one.
   *
   * @throws `NotAcquiredError` if the lock was not acquired in time
   * @throws `LeaseLostError` if `fn` succeeded but the lease was lost before it ended. A writer may have begun
   * meanwhile
   * @throws what `acquireRead` throws
   */
  withRead<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    return this.#claims.with(lockName, SHARED, fn, options)
  }

  /**
   * Runs `fn` as the writer. Otherwise as `withRead`. Inside `fn`, reading and writing the same name are entered again
   * without waiting.
   *
   * @throws what `withRead` throws
   */
  withWrite<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    return this.#claims.with(lockName, EXCLUSIVE, fn, options)
  }
}

const SHARED: RequestedShare = { mode: 'shared' }
