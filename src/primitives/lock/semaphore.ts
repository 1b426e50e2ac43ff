import { storeOpener } from '../../connect.ts'
import { checkWhole } from '../../core/arguments.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { MAX_PERMITS } from '../../core/limits.ts'
import { optionNames } from '../../core/options.ts'
import { Instance } from '../instance.ts'
import { INSTANCE_OPTIONS, type InstanceOptions } from '../instance-options.ts'
import { Primitive } from '../primitive.ts'
import { Claims, type DefaultsOption, type LockResult, type PermitOptions } from './claims.ts'
import type { RequestedShare } from './reentry.ts'

export interface SemaphoreOptions extends InstanceOptions, DefaultsOption {
  /** How many permits of a name may be held at once, over all processes. A whole number from 1 to 1,000,000. */
  limit: number
}

const OPTIONS = optionNames<SemaphoreOptions>({ ...INSTANCE_OPTIONS, limit: true, defaults: true })

/**
 * Limits the number of holders at a time. Each lease is one or more permits with a time to live. The permits of a
 * process that died come back when that time has passed. Only permits that were taken can be given back.
 *
 * The limit is stored with each claim and applies only to that claim: it is granted if the held permits and its own are
 * within its own limit. So you can change the limit while old and new instances run side by side.
 *
 * Needs a driver with limits (`limit` in its capabilities). Others throw an `UnsupportedError` with the reason.
 *
 * @example
 * ```ts
 * const exports = new Semaphore({ url: 'redis://localhost:6379', limit: 3 })
 * await exports.withPermits('exports', () => exportReport(), { blocking: true })
 * ```
 */
export class Semaphore extends Primitive {
  readonly limit: number
  readonly #claims: Claims

  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(options: SemaphoreOptions) {
    const instance = new Instance('Semaphore', options, storeOpener, OPTIONS)
    super(instance)
    this.limit = checkWhole('limit', options.limit, 1, MAX_PERMITS)
    this.#claims = new Claims(instance, options)
  }

  /**
   * Asks for permits. Contention is a value: `acquired: false`, with one of the holders if the store knows it. Unless
   * it resolves with a lease, nothing is left behind in the store.
   *
   * The lease is not renewed unless `heartbeat` is true. Release or extend it yourself.
   *
   * @throws `StoreError` if it is unknown whether the permits were granted
   * @throws `UnsupportedError` for a driver without limits
   * @throws `AbortedError`, `DeadlockError`, `InvalidArgumentError`, `OverloadError`, `ClosedError`
   */
  acquire(lockName: string, options: PermitOptions = {}): Promise<LockResult> {
    return this.#withShare(options, (share) => this.#claims.acquire(lockName, share, options))
  }

  /**
   * As `acquire`, with a heartbeat by default, and throws `NotAcquiredError` on contention:
   * `await using lease = await semaphore.hold('name')`.
   *
   * @throws `NotAcquiredError`, and what `acquire` throws
   */
  hold(lockName: string, options: PermitOptions = {}): Promise<Lease> {
    return this.#withShare(options, (share) => this.#claims.hold(lockName, share, options))
  }

  /**
   * Runs `fn` while holding permits, and releases them. A heartbeat renews the lease. Resolves with what `fn` returned.
   * An error that `fn` throws is passed on.
   *
   * Permits are counted: the same name inside `fn` takes further permits. Waiting for more than the limit allows beside
   * those that `fn` holds throws a `DeadlockError` at once.
   *
   * @throws `NotAcquiredError` if the permits were not acquired in time
   * @throws `LeaseLostError` if `fn` succeeded but the lease was lost before it ended. More holders than the limit may
   * have run meanwhile
   * @throws what `acquire` throws
   */
  withPermits<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options: PermitOptions = {}): Promise<T> {
    return this.#withShare(options, (share) => this.#claims.with(lockName, share, fn, options))
  }

  /** Returns the promise of the call itself, which knows whether something waits for it. */
  #withShare<T>(options: PermitOptions, call: (share: RequestedShare) => Promise<T>): Promise<T> {
    try {
      // All other options are checked with the claim.
      const { permits = 1 } = options ?? {}
      return call({ mode: 'shared', limit: this.limit, permits: checkWhole('permits', permits, 1, this.limit) })
    } catch (error) {
      return Promise.reject(error)
    }
  }
}
