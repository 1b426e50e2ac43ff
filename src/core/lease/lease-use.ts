import { ttlMsFrom } from '../arguments.ts'
import type { Claim } from '../driver.ts'
import { AbortedError, HoldfastError, type LeaseLostError, NotHeldError } from '../errors.ts'
import type { LeaseEvent } from '../events.ts'
import type { LockInfo } from '../lock-info.ts'
import { outsideLocks } from '../reentry-context.ts'
import { unlessAborted } from '../time/abort.ts'
import type { Chain } from './chain.ts'
import { type AnswerOptions, answerSignal, type Lease } from './lease.ts'

/** A lease, as its uses see it. */
export interface UsedLease extends Omit<LockInfo, 'metadata'> {
  readonly claim: Claim
  /** For claims that are made inside a callback of the lease. */
  readonly chain: Chain
  readonly eventBase: LeaseEvent
  readonly held: boolean
  readonly remainingSeconds: number
  /** Why the functions that run under the lease were asked to stop while it is still held. */
  readonly stopRequest: LeaseLostError | undefined
  /**
   * Begins a use. The caller has checked in the same step that the lease is held.
   *
   * @param around the use of the running function, for a re-entry
   */
  use(around?: LeaseUse): LeaseUse
  /**
   * A use has ended. The last one releases the lease; any other one confirms that it is still held. What was entered
   * inside it ends with it, and is notified.
   *
   * @returns whether the lease was held. If not, the use is notified
   * @throws `StoreError` if the store did not answer
   */
  leave(use: LeaseUse, minHoldMs?: number): Promise<boolean>
  /**
   * Ends a use and what was entered inside it, and notifies all of them. Other uses keep the lease.
   *
   * @returns whether the lease was held
   * @throws `StoreError` if the store did not answer
   */
  revoke(use: LeaseUse, reason: string): Promise<boolean>
  /**
   * Ends the lease under its uses, and notifies each of them. If all of them are the caller's, it is just released.
   *
   * @returns whether the lease was held
   * @throws `StoreError` if the store did not answer. The release is then sent again in the background
   */
  endAll(reason: string, isOwn: (use: LeaseUse) => boolean, cause?: Error): Promise<boolean>
  /**
   * Asks the store whether it still has the lease. If not, the lease is lost.
   *
   * @throws `StoreError` if that is unknown
   */
  confirm(): Promise<boolean>
  /**
   * Sets the lease to end `ttlMs` from now. It is never shortened under another use than the caller's. Without `use`,
   * the caller knows only the name of the lock.
   *
   * @returns false if the lease has ended
   * @throws `StoreError` if the result is unknown
   */
  extend(ttlMs: number, use?: LeaseUse): Promise<boolean>
  /** See `Lease.serialize`. The caller has checked that the use holds the lease. */
  handOver(use: LeaseUse): Promise<string>
}

/**
 * One use of a lease: what a caller gets. Its end ends this use and what was entered inside it; the last use releases
 * the lease. It never shortens the lease for other uses.
 */
export class LeaseUse implements Lease {
  readonly lease: UsedLease
  /** The use inside which it was entered. */
  readonly #around: LeaseUse | undefined
  /** The uses that were entered inside it and have not ended. */
  #inside: Set<LeaseUse> | undefined
  declare readonly metadata?: Record<string, unknown>
  /** Whether a function runs under it, or is about to, and ends it when it settles. */
  runsFunction = false
  /** Whether the lease is renewed for it. The lease sets it. */
  hasHeartbeat = false
  /** Called once, in the step in which the use ends: before a release is sent. */
  onEnd: (() => void) | undefined
  /** The answer to the release that has ended it. Who disposes of the use waits for it. */
  releasing: Promise<boolean> | undefined
  #chain: Chain | undefined
  #state: 'held' | 'released' | 'handed over' | LeaseLostError = 'held'
  #abort: AbortController | undefined

  constructor(lease: UsedLease, around: LeaseUse | undefined) {
    this.lease = lease
    this.#around = around
    if (around !== undefined) {
      around.#inside ??= new Set()
      around.#inside.add(this)
    }
    const { metadata } = lease.claim
    if (metadata !== undefined) this.metadata = metadata
  }

  /** For claims that are made in a callback of this use. */
  get chain(): Chain {
    return this.#chain ?? this.#around?.chain ?? this.lease.chain
  }

  /**
   * Its callbacks are not inside those in which the lease was acquired. A claim in them does not wait for what those
   * hold.
   */
  leaveChain(own: Chain): void {
    this.#chain = own
  }

  /** Whether another use was entered inside this one and has not ended. */
  get isEntered(): boolean {
    return this.#inside !== undefined && this.#inside.size > 0
  }

  /** Leaves the use around it. Returns what was entered inside it. */
  detach(): readonly LeaseUse[] {
    const around = this.#around
    if (around !== undefined) around.#inside?.delete(this)
    if (this.#inside === undefined) return NONE
    const inside = [...this.#inside]
    this.#inside = undefined
    return inside.flatMap((use) => [use, ...use.detach()])
  }

  get lockName(): string {
    return this.lease.lockName
  }

  get holderId(): string {
    return this.lease.holderId
  }

  get acquiredAt(): Date {
    return this.lease.acquiredAt
  }

  get expiresAt(): Date {
    return this.lease.expiresAt
  }

  get fencingToken(): number {
    return this.lease.fencingToken
  }

  get held(): boolean {
    // A loss that is noticed now changes the state.
    return this.#state === 'held' && this.lease.held
  }

  get remainingSeconds(): number {
    return this.#state === 'held' ? this.lease.remainingSeconds : 0
  }

  /** Created at the first access: most leases are not lost, and their signal is not used. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController()
    void this.held // notices a loss that no timer has reported yet
    if (this.stopReason !== undefined) this.#abort.abort(this.stopReason)
    return this.#abort.signal
  }

  /** Why a function that runs under it has to stop: the lease was lost, or its instance is being closed. */
  get stopReason(): LeaseLostError | undefined {
    return typeof this.#state === 'object' ? this.#state : this.lease.stopRequest
  }

  assertHeld(): void {
    if (this.held) return
    if (typeof this.#state === 'object') throw this.#state
    throw new NotHeldError(this.lockName, this.#state === 'handed over' ? this.#state : undefined)
  }

  async extend(seconds: number, options?: AnswerOptions): Promise<boolean> {
    const signal = answerSignal(options)
    const what = `extending the lease on "${this.lockName}"`
    if (signal?.aborted) throw new AbortedError(what, signal.reason)
    const ttlMs = ttlMsFrom('seconds', seconds)
    return this.held ? unlessAborted(this.lease.extend(ttlMs, this), signal, what) : false
  }

  release(options?: AnswerOptions): Promise<boolean> {
    return options === undefined ? this.#release() : this.#releaseUnlessAborted(options)
  }

  #release(minHoldMs?: number): Promise<boolean> {
    if (!this.held) return Promise.resolve(false)
    this.end('released')
    this.releasing = this.lease.leave(this, minHoldMs)
    return this.releasing
  }

  /** Sends the release even if the signal is already aborted. */
  async #releaseUnlessAborted(options: AnswerOptions): Promise<boolean> {
    const signal = answerSignal(options)
    return unlessAborted(this.#release(), signal, `waiting for the release of "${this.lockName}"`)
  }

  async serialize(): Promise<string> {
    this.assertHeld()
    return this.lease.handOver(this)
  }

  /** Ends a use under which nothing was done: without `minHoldSeconds`, and without an error. */
  async discard(): Promise<void> {
    await this.#release(0).catch(ignoreHoldfastError)
  }

  /** Releases it for `await using`. An error here would hide an error of the block that ends. */
  async [Symbol.asyncDispose](): Promise<void> {
    await (this.releasing ?? this.#release()).catch(ignoreHoldfastError)
  }

  /** Ends it without asking the store. The lease decides what follows. */
  end(how: 'released' | 'handed over'): void {
    if (this.#state !== 'held') return
    this.#state = how
    this.onEnd?.()
  }

  /** The lease was lost: during the use, or, as its end found out, before it. `abort` follows. */
  lose(error: LeaseLostError): void {
    if (typeof this.#state === 'object') return
    const isFirst = this.#state === 'held'
    this.#state = error
    if (isFirst) this.onEnd?.()
  }

  /** Tells the function that runs under it to stop: the lease was lost, or is about to end. */
  abort(reason: LeaseLostError): void {
    outsideLocks(() => this.#abort?.abort(reason))
  }

  /** What a log or a response shows of the lease. */
  toJSON(): LockInfo {
    const { lockName, holderId, acquiredAt, expiresAt, metadata, fencingToken } = this
    return { lockName, holderId, acquiredAt, expiresAt, ...(metadata && { metadata }), fencingToken }
  }
}

/** Ignores an error that an event has already reported. */
function ignoreHoldfastError(error: unknown): void {
  if (!(error instanceof HoldfastError)) throw error
}

const NONE: readonly LeaseUse[] = []
