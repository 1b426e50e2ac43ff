import { checkFunction } from '../../core/arguments.ts'
import type { Chain } from '../../core/claim/chain.ts'
import type { ClaimRequest, ClaimResult, Holder, RestoreRequest } from '../../core/claim/holder.ts'
import { AbortedError, type HoldfastError, InvalidArgumentError, LeaseLostError } from '../../core/errors.ts'
import type { HandOver } from '../../core/lease/hand-over.ts'
import { HeldLease } from '../../core/lease/held-lease.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { type Turns, turnsOf } from '../../core/time/turns.ts'
import type { Instance } from '../instance.ts'
import { beneath, chainOf, lossOf } from './inner-lease.ts'
import {
  checkDefaults,
  claimRequestFrom,
  type DefaultsOption,
  type LockDefaults,
  type LockOptions,
  type LockShare,
} from './options.ts'
import { Reentry } from './reentry.ts'
import { answerOf, type LockResult, leaseOf, underLeases } from './result.ts'

/** What locks, read-write locks and semaphores have in common: the three ways to ask, and what is entered again. */
export class Claims {
  readonly reentry = new Reentry()
  readonly #instance: Instance
  readonly #hooks: ClaimHooks
  readonly #turns: Turns
  readonly #defaults: LockDefaults | undefined

  /** Throws `InvalidArgumentError`. */
  constructor(instance: Instance, { defaults }: DefaultsOption, hooks: ClaimHooks = {}) {
    this.#instance = instance
    this.#hooks = hooks
    this.#turns = turnsOf(instance.clock)
    this.#defaults = defaults === undefined ? undefined : checkDefaults(defaults)
  }

  /** Contention is an answer; there is no heartbeat if nothing is said. */
  acquire(lockName: string, share: LockShare, options: LockOptions): Promise<LockResult> {
    return this.#acquire(lockName, share, options, false)
  }

  /** Contention is a `NotAcquiredError`; there is a heartbeat if nothing is said. */
  async hold(lockName: string, share: LockShare, options: LockOptions): Promise<Lease> {
    return leaseOf(lockName, await this.#acquire(lockName, share, options, true))
  }

  /** As `hold`, for as long as a function runs. Throws `LeaseLostError` if it succeeded but the lease was lost. */
  async with<T>(lockName: string, share: LockShare, fn: LeaseFunction<T>, options: LockOptions): Promise<T> {
    checkFunction('fn', fn)
    const request = this.request(lockName, share, options, true)
    const entered = this.reentry.enter(request, share)
    if (entered !== undefined) return this.#withEntered(entered, share, fn)
    const result = await new Promise<LockResult>((resolve, reject) => this.#ask(request, resolve, reject))
    return this.#under(leaseOf(lockName, result), share, fn)
  }

  /** Not a step later: the callback that holds the lease may have ended by then. */
  async #withEntered<T>(lease: Lease, share: LockShare, fn: LeaseFunction<T>): Promise<T> {
    using _ = this.reentry.keep([lease])
    // Nobody's function runs before the call that it was given to has returned.
    await this.settle(Promise.resolve())
    return await this.#under(lease, share, fn)
  }

  #under<T>(lease: Lease, share: LockShare, fn: LeaseFunction<T>): Promise<T> {
    return this.running([lease], () => this.reentry.run(lease, share, async () => fn(lease)))
  }

  /** Runs a function under leases of this instance, which then are in use until it has settled, and gives them back. */
  running<T>(leases: readonly Lease[], run: () => Promise<T>): Promise<T> {
    const held = leases.map(beneath).filter((lease) => lease instanceof HeldLease)
    for (const lease of held) lease.users += 1
    const used = (): void => {
      for (const lease of held) lease.users -= 1
    }
    const work = underLeases(leases, async () => {
      try {
        // Between the grant and this the lease may have run out, or been released with all others.
        for (const lease of leases) assertBegun(lease)
        return await run()
      } finally {
        used()
      }
    })
    return this.#instance.holder?.running(work) ?? work
  }

  /**
   * Gives a lease back because somebody said so, by its name or with all others. Functions that run under it, other than the one that says so and those around it,
   * have lost their lock and are told.
   */
  end(lease: HeldLease, why: string): Promise<boolean> {
    return lease.users === this.reentry.depthOn(lease) ? lease.release() : lease.revoke(why)
  }

  /** Checks everything. Throws `InvalidArgumentError`, `ClosedError`, `AbortedError`. */
  request(lockName: string, share: LockShare, options: LockOptions, heartbeatByDefault: boolean): ClaimRequest {
    const request = claimRequestFrom(lockName, options, heartbeatByDefault, share, this.#defaults)
    const chain = this.#chain(options.under)
    // Work that has begun may need more locks to come to its end.
    if (chain === undefined) this.#instance.assertOpen()
    else this.#instance.assertNotEnded()
    const { signal } = request
    if (signal?.aborted) throw new AbortedError(`acquiring "${lockName}"`, signal.reason)
    return chain === undefined ? request : { ...request, chain }
  }

  async open(): Promise<Holder> {
    return this.#instance.holder ?? this.#instance.open()
  }

  /** Asks the store, whatever this instance holds already. */
  async claim(holder: Holder, request: ClaimRequest): Promise<ClaimResult> {
    return this.#noted(await holder.acquire(request, this.#hooks.ended))
  }

  /** As `Holder.restore`. */
  async restore(handedOver: HandOver, options: RestoreRequest): Promise<HeldLease> {
    const lease = await (await this.open()).restore(handedOver, options, this.#hooks.ended)
    this.#hooks.taken?.(lease)
    return lease
  }

  /** For what may be answered without the store: a loop of such calls must leave the event loop its turns. */
  settle<T>(result: Promise<T>): Promise<T> {
    return this.#turns.settle(result)
  }

  /** One promise from the caller to the store's answer: this is the way that every claim goes. */
  #acquire(lockName: string, share: LockShare, options: LockOptions, heartbeat: boolean): Promise<LockResult> {
    return new Promise((resolve, reject) => {
      const request = this.request(lockName, share, options, heartbeat)
      const entered = this.reentry.enter(request, share)
      if (entered !== undefined) resolve(this.settle(Promise.resolve({ acquired: true, lock: entered })))
      else this.#ask(request, resolve, reject)
    })
  }

  #ask(
    request: ClaimRequest,
    resolve: (result: LockResult | Promise<LockResult>) => void,
    reject: (error: HoldfastError) => void,
  ): void {
    const { holder } = this.#instance
    if (holder === undefined || this.#hooks.instead !== undefined) {
      resolve(this.settle(this.#acquireInSteps(request)))
      return
    }
    holder
      .acquire(request, this.#hooks.ended)
      .then((result) => resolve(answerOf(request.lockName, this.#noted(result))), reject)
  }

  /** Where the store is not open yet, or something else is done instead of asking it. */
  async #acquireInSteps(request: ClaimRequest): Promise<LockResult> {
    const holder = await this.open()
    return this.#hooks.instead?.(holder, request) ?? answerOf(request.lockName, await this.claim(holder, request))
  }

  #noted(result: ClaimResult): ClaimResult {
    if (result.granted) this.#hooks.taken?.(result.lease)
    return result
  }

  #chain(under: Lease | undefined): Chain | undefined {
    const chain = chainOf(under)
    if (under !== undefined && chain === undefined) throw new InvalidArgumentError('under', under, 'a lease')
    return under?.held ? chain : this.reentry.chain
  }
}

/** For a primitive that keeps leases by name, or does something else instead of asking the store. */
export interface ClaimHooks {
  readonly taken?: (lease: HeldLease) => void
  readonly ended?: (lease: HeldLease) => void
  readonly instead?: ((holder: Holder, request: ClaimRequest) => Promise<LockResult> | undefined) | undefined
}

export type LeaseFunction<T> = (lease: Lease) => Promise<T> | T

function assertBegun(lease: Lease): void {
  if (lease.held) return
  throw (
    lossOf(lease) ?? new LeaseLostError(lease.lockName, lease.fencingToken, 'it was released before the function began')
  )
}
