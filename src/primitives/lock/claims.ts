import { checkFunction } from '../../core/arguments.ts'
import type { Chain } from '../../core/claim/chain.ts'
import type { ClaimRequest, ClaimResult, Holder, RestoreRequest } from '../../core/claim/holder.ts'
import { AbortedError, InvalidArgumentError, LeaseLostError } from '../../core/errors.ts'
import type { Emitter } from '../../core/events.ts'
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
  type RequestedShare,
} from './options.ts'
import { Reentry } from './reentry.ts'
import { answerOf, type LockResult, leaseOf, underLeases } from './result.ts'

/** What locks, read-write locks and semaphores have in common: the three ways to claim, and re-entry. */
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

  /** Returns contention as a value. Without a heartbeat by default. */
  acquire(lockName: string, share: RequestedShare, options: LockOptions): Promise<LockResult> {
    return this.#acquire(lockName, share, options, false)
  }

  /** Throws `NotAcquiredError` on contention. With a heartbeat by default. */
  async hold(lockName: string, share: RequestedShare, options: LockOptions): Promise<Lease> {
    return leaseOf(lockName, await this.#acquire(lockName, share, options, true))
  }

  /** Holds the lock while `fn` runs. Throws `LeaseLostError` if `fn` succeeded but the lease was lost. */
  async with<T>(lockName: string, share: RequestedShare, fn: LeaseFunction<T>, options: LockOptions): Promise<T> {
    checkFunction('fn', fn)
    const request = this.request(lockName, share, options, true)
    const entered = this.reentry.enter(request, share)
    if (entered !== undefined) return this.#withEntered(entered, share, fn)
    return this.#under(leaseOf(lockName, await this.#ask(request)), share, fn)
  }

  /** Keeps the lease in the same step: one step later the callback that holds it may have ended. */
  async #withEntered<T>(lease: Lease, share: RequestedShare, fn: LeaseFunction<T>): Promise<T> {
    using _ = this.reentry.keep([lease])
    // A function never runs before the call that it was passed to has returned.
    await this.settle(Promise.resolve())
    return await this.#under(lease, share, fn)
  }

  #under<T>(lease: Lease, share: RequestedShare, fn: LeaseFunction<T>): Promise<T> {
    return this.running([lease], () => this.enter(lease, share, async () => fn(lease)))
  }

  /** Runs a callback of a lease, inside what listeners of `running` put around it. */
  enter<T>(lease: Lease, share: RequestedShare, callback: () => Promise<T>): Promise<T> {
    const { events } = this.#instance
    const isHeard = events.hears('running') && lease instanceof HeldLease
    return this.reentry.run(lease, share, isHeard ? wrapped(events, lease, callback) : callback)
  }

  /** Runs a function under leases of this instance and releases them. Until it has settled, they are in use. */
  running<T>(leases: readonly Lease[], run: () => Promise<T>): Promise<T> {
    const held = leases.map(beneath).filter((lease) => lease instanceof HeldLease)
    for (const lease of held) lease.users += 1
    const used = (): void => {
      for (const lease of held) lease.users -= 1
    }
    const work = underLeases(leases, async () => {
      try {
        // Since the grant, the lease may have expired or been released by `releaseAll`.
        for (const lease of leases) assertBegun(lease)
        return await run()
      } finally {
        used()
      }
    })
    return this.#instance.holder?.running(work) ?? work
  }

  /**
   * Releases a lease on a caller's request, by its name or with all others. Other functions that run under it lose
   * their lock and are notified; the calling function and those around it are not.
   */
  end(lease: HeldLease, why: string): Promise<boolean> {
    return lease.users === this.reentry.depthOn(lease) ? lease.release() : lease.revoke(why)
  }

  /** Checks everything. Throws `InvalidArgumentError`, `ClosedError`, `AbortedError`. */
  request(lockName: string, share: RequestedShare, options: LockOptions, heartbeatByDefault: boolean): ClaimRequest {
    const request = claimRequestFrom(lockName, options, heartbeatByDefault, share, this.#defaults)
    const chain = this.#chain(options.under)
    // Work that has begun may need more locks to finish.
    if (chain === undefined) this.#instance.assertOpen()
    else this.#instance.assertNotEnded()
    const { signal } = request
    if (signal?.aborted) throw new AbortedError(`acquiring "${lockName}"`, signal.reason)
    return chain === undefined ? request : { ...request, chain }
  }

  open(): Promise<Holder> {
    return this.#instance.open()
  }

  /** Asks the store, even if this instance already holds the lock. */
  async claim(holder: Holder, request: ClaimRequest): Promise<ClaimResult> {
    return this.#noted(await holder.acquire(request, this.#hooks.ended))
  }

  /** As `Holder.restore`. */
  async restore(handedOver: HandOver, options: RestoreRequest): Promise<HeldLease> {
    const lease = await (await this.open()).restore(handedOver, options, this.#hooks.ended)
    this.#hooks.taken?.(lease)
    return lease
  }

  /** For answers that do not come from the store: a loop of such calls must give the event loop its turns. */
  settle<T>(result: Promise<T>): Promise<T> {
    return this.#turns.settle(result)
  }

  /** One promise for the usual case: with 64 claims at once, each further one is 3 % of the time. */
  #acquire(lockName: string, share: RequestedShare, options: LockOptions, heartbeat: boolean): Promise<LockResult> {
    return new Promise((resolve, reject) => {
      const request = this.request(lockName, share, options, heartbeat)
      const entered = this.reentry.enter(request, share)
      const { holder } = this.#instance
      if (entered !== undefined) {
        resolve(this.settle(Promise.resolve({ acquired: true, lock: entered })))
      } else if (holder === undefined || this.#hooks.instead !== undefined) {
        resolve(this.#ask(request))
      } else {
        holder.claim(request, this.#hooks.ended, (result) => {
          try {
            if (result instanceof Error) reject(result)
            else resolve(answerOf(lockName, this.#noted(result)))
          } catch (error) {
            // A driver may parse the holder only now.
            reject(error)
          }
        })
      }
    })
  }

  async #ask(request: ClaimRequest): Promise<LockResult> {
    const { holder } = this.#instance
    if (holder === undefined || this.#hooks.instead !== undefined) {
      return await this.settle(this.#acquireInSteps(request))
    }
    return answerOf(request.lockName, this.#noted(await holder.acquire(request, this.#hooks.ended)))
  }

  /** For a store that is not open yet, and for `instead`. */
  async #acquireInSteps(request: ClaimRequest): Promise<LockResult> {
    const holder = await this.open()
    const claim = (asked: ClaimRequest): Promise<ClaimResult> => this.claim(holder, asked)
    const { instead } = this.#hooks
    return instead === undefined ? answerOf(request.lockName, await claim(request)) : instead(holder, request, claim)
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

/** For a primitive that keeps its leases by name, or that does something else instead of asking the store. */
export interface ClaimHooks {
  /** A lease was granted or restored. */
  readonly taken?: (lease: HeldLease) => void
  /** A lease has ended by release, loss or hand-over. */
  readonly ended?: (lease: HeldLease) => void
  /** Called instead of asking the store. `claim` asks the store. */
  readonly instead?: (holder: Holder, request: ClaimRequest, claim: ClaimFunction) => Promise<LockResult>
}

export type ClaimFunction = (request: ClaimRequest) => Promise<ClaimResult>

export type LeaseFunction<T> = (lease: Lease) => Promise<T> | T

function wrapped<T>(events: Emitter, lease: HeldLease, callback: () => Promise<T>): () => Promise<T> {
  let run = callback
  events.emit('running', () => ({
    ...lease.eventBase,
    wrap(around) {
      const inner = run
      run = () => around(inner)
    },
  }))
  return run
}

function assertBegun(lease: Lease): void {
  if (lease.held) return
  throw (
    lossOf(lease) ?? new LeaseLostError(lease.lockName, lease.fencingToken, 'it was released before the function began')
  )
}
