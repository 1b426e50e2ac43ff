import { checkWhole } from '../../core/arguments.ts'
import type { LockEvent, LockListener } from '../../core/events.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { MAX_PERMITS } from '../../core/limits.ts'
import { optionNames } from '../../core/options.ts'
import { everything } from '../everything.ts'
import { type CloseOptions, INSTANCE_OPTIONS, Instance, type InstanceOptions } from '../instance.ts'
import { Claims } from './claims.ts'
import type { DefaultsOption, LockShare, PermitOptions } from './options.ts'
import type { LockResult } from './result.ts'

export interface SemaphoreOptions extends InstanceOptions, DefaultsOption {
  /** How many permits of a name may be out at once, over all processes. A whole number from 1 to 1,000,000. */
  limit: number
}

const OPTIONS = optionNames<SemaphoreOptions>({ ...INSTANCE_OPTIONS, limit: true, defaults: true })

/**
 * A limited number of holders at once. Every lease is so many permits, with a time to live of its own: those of a process that died come back when that
 * is over, and what was not taken cannot be given back.
 *
 * The limit is stored with each claim and judges that claim alone: a claim is granted when the permits that are out and its own are within its own
 * limit. So the limit can be changed while old and new instances run beside each other.
 *
 * Needs a driver with limits (`limit` in its capabilities); others refuse with an `UnsupportedError` that says why.
 */
export class Semaphore implements AsyncDisposable {
  readonly limit: number
  readonly #instance: Instance
  readonly #claims: Claims

  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options: SemaphoreOptions) {
    this.#instance = new Instance('Semaphore', options, everything, OPTIONS)
    this.limit = checkWhole('limit', options.limit, 1, MAX_PERMITS)
    this.#claims = new Claims(this.#instance, options)
  }

  get holderId(): string {
    return this.#instance.holderId
  }

  /**
   * Asks for permits. Contention is an answer: `acquired: false`, with one of those who hold permits where the store tells. Everything else throws:
   * `StoreError` (not known whether they were granted), `AbortedError`, `InvalidArgumentError`, `ClosedError`, `UnsupportedError`, `DeadlockError`.
   * Whenever the answer is not a lease, nothing is left behind in the store.
   *
   * The lease is not renewed unless `heartbeat` says so: it is the caller's to release and to extend.
   */
  async acquire(lockName: string, options: PermitOptions = {}): Promise<LockResult> {
    return this.#claims.acquire(lockName, this.#share(options), options)
  }

  /** As `acquire`, with a heartbeat, and throws `NotAcquiredError` instead of answering: `await using lease = await semaphore.hold('name')`. */
  async hold(lockName: string, options: PermitOptions = {}): Promise<Lease> {
    return this.#claims.hold(lockName, this.#share(options), options)
  }

  /**
   * Runs `fn` while holding permits, renewed by a heartbeat, and gives them back. Resolves with what `fn` returned.
   *
   * Rejects with `NotAcquiredError` if they were not got in time, with `fn`'s own error if it threw, and with `LeaseLostError` if `fn` went well
   * but the lease was lost before it ended: one more than the limit may have run meanwhile. Permits are counted, so the same name inside `fn` takes
   * further ones; to wait for more than there could ever be, beside those that `fn` holds, is a `DeadlockError` at once.
   */
  async withPermits<T>(
    lockName: string,
    fn: (lease: Lease) => Promise<T> | T,
    options: PermitOptions = {},
  ): Promise<T> {
    return this.#claims.with(lockName, this.#share(options), fn, options)
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

  #share(options: PermitOptions): LockShare {
    // Everything else about the options is checked with the claim.
    const { permits = 1 } = options ?? {}
    return { mode: 'shared', limit: this.limit, permits: checkWhole('permits', permits, 1, this.limit) }
  }
}
