import { checkFunction } from '../core/arguments.ts'
import { AbortedError } from '../core/errors.ts'
import type { ClaimRequest, ClaimResult, Holder } from '../core/holder.ts'
import type { HeldLease, Lease } from '../core/lease.ts'
import type { Instance } from './instance.ts'
import { claimRequestFrom, type LockOptions, type Share } from './lock-options.ts'
import { answerOf, type LockResult, leaseOf, throwIfLost } from './lock-result.ts'
import { Reentry } from './reentry.ts'

/** What locks, read-write locks and semaphores have in common: the three ways to ask, and what is entered again. */
export class Claims {
  readonly reentry = new Reentry()
  readonly #instance: Instance
  readonly #hooks: ClaimHooks

  constructor(instance: Instance, hooks: ClaimHooks = {}) {
    this.#instance = instance
    this.#hooks = hooks
  }

  /** Contention is an answer; there is no heartbeat if nothing is said. */
  acquire(lockName: string, share: Share, options: LockOptions): Promise<LockResult> {
    return this.#acquire(lockName, share, options, false)
  }

  /** Contention is a `NotAcquiredError`; there is a heartbeat if nothing is said. */
  async hold(lockName: string, share: Share, options: LockOptions): Promise<Lease> {
    return leaseOf(lockName, await this.#acquire(lockName, share, options, true))
  }

  /** As `hold`, for as long as a function runs. Throws `LeaseLostError` if it went well and the lease did not. */
  async with<T>(lockName: string, share: Share, fn: LeaseFunction<T>, options: LockOptions): Promise<T> {
    checkFunction('fn', fn)
    await using lease = await this.hold(lockName, share, options)
    const result = await this.reentry.run(lease, share, async () => fn(lease))
    throwIfLost(lease)
    return result
  }

  async #acquire(lockName: string, share: Share, options: LockOptions, heartbeat: boolean): Promise<LockResult> {
    const request = claimRequestFrom(lockName, options, heartbeat, share)
    this.#instance.assertOpen()
    if (options.signal?.aborted) throw new AbortedError(`acquiring "${lockName}"`, options.signal.reason)
    const entered = this.reentry.enter(lockName, share)
    if (entered !== undefined) return { acquired: true, lock: entered }
    const holder = this.#instance.holder ?? (await this.#instance.open())
    const { send, taken } = this.#hooks
    const result = await (send === undefined ? holder.acquire(request) : send(holder, request))
    if (result.granted) taken?.(result.lease)
    return answerOf(lockName, result)
  }
}

/** For a primitive that has something to do before the store is asked, or when it has granted. */
export interface ClaimHooks {
  readonly send?: (holder: Holder, request: ClaimRequest) => Promise<ClaimResult>
  readonly taken?: (lease: HeldLease) => void
}

export type LeaseFunction<T> = (lease: Lease) => Promise<T> | T
