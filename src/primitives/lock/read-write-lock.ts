import type { LockEvent, LockListener } from '../../core/events.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { optionNames } from '../../core/options.ts'
import { everything } from '../everything.ts'
import { type CloseOptions, INSTANCE_OPTIONS, Instance, type InstanceOptions } from '../instance.ts'
import { Claims } from './claims.ts'
import { type DefaultsOption, EXCLUSIVE, type LockOptions, type LockShare } from './options.ts'
import type { LockResult } from './result.ts'

export interface ReadWriteLockOptions extends InstanceOptions, DefaultsOption {}

const OPTIONS = optionNames<ReadWriteLockOptions>({ ...INSTANCE_OPTIONS, defaults: true })

/**
 * Many readers or one writer. A writer is the same claim as that of a `DistributedLock` on this name: the two exclude each other.
 *
 * Where the driver serves first come, first served, a writer waits only for those who were there before it: readers that come later stand behind
 * it. Elsewhere (`queue` in the driver's capabilities) readers that keep coming can keep a writer waiting.
 */
export class ReadWriteLock implements AsyncDisposable {
  readonly #instance: Instance
  readonly #claims: Claims

  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options: ReadWriteLockOptions = {}) {
    this.#instance = new Instance('ReadWriteLock', options, everything, OPTIONS)
    this.#claims = new Claims(this.#instance, options)
  }

  get holderId(): string {
    return this.#instance.holderId
  }

  /**
   * Asks to read. Contention is an answer: `acquired: false`, with who holds it where the store tells. Everything else throws: `StoreError`
   * (not known whether it is held), `AbortedError`, `InvalidArgumentError`, `ClosedError`, `DeadlockError`, and `UnsupportedError`
   * on a driver without shared mode. Whenever the answer is not a lease, nothing is left behind in the store.
   *
   * The lease is not renewed unless `heartbeat` says so: it is the caller's to release and to extend.
   */
  acquireRead(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    return this.#claims.acquire(lockName, SHARED, options)
  }

  /** Asks to write; otherwise as `acquireRead`. */
  acquireWrite(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    return this.#claims.acquire(lockName, EXCLUSIVE, options)
  }

  /** As `acquireRead`, with a heartbeat, and throws `NotAcquiredError` instead of answering. */
  holdRead(lockName: string, options: LockOptions = {}): Promise<Lease> {
    return this.#claims.hold(lockName, SHARED, options)
  }

  /** As `acquireWrite`, with a heartbeat, and throws `NotAcquiredError` instead of answering. */
  holdWrite(lockName: string, options: LockOptions = {}): Promise<Lease> {
    return this.#claims.hold(lockName, EXCLUSIVE, options)
  }

  /**
   * Runs `fn` as a reader, renewed by a heartbeat. Resolves with what `fn` returned.
   *
   * Rejects with `NotAcquiredError` if the lock was not got in time, with `fn`'s own error if it threw, and with `LeaseLostError` if `fn` went
   * well but the lease was lost before it ended: a writer may have begun meanwhile. Inside `fn`, reading the same name is entered again at once;
   * waiting to write it is a `DeadlockError` at once, because a writer waits for every reader, this one included.
   */
  withRead<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    return this.#claims.with(lockName, SHARED, fn, options)
  }

  /** Runs `fn` as the writer; otherwise as `withRead`. Inside `fn`, both reading and writing the same name are entered again at once. */
  withWrite<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    return this.#claims.with(lockName, EXCLUSIVE, fn, options)
  }

  /** Opens the store and proves that it works, as `ping` of a `DistributedLock` does. */
  ping(): Promise<void> {
    return this.#instance.ping()
  }

  /** As that of a `DistributedLock`. Later calls throw `ClosedError`. */
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
}

const SHARED: LockShare = { mode: 'shared' }
