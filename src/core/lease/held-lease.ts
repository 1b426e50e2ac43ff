import { ttlMsFrom } from '../arguments.ts'
import { Chain } from '../claim/chain.ts'
import type { LeaseRef } from '../driver.ts'
import { AbortedError, HoldfastError, LeaseLostError, NotHeldError } from '../errors.ts'
import type { LossReason } from '../events.ts'
import { type LockInfo, MAX_TIME_MS } from '../lock-info.ts'
import { outsideLocks } from '../reentry-context.ts'
import type { TrackedClaim } from '../store/store-client.ts'
import { unlessAborted } from '../time/abort.ts'
import { type Instant, isPast } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import { turnsOf } from '../time/turns.ts'
import type { Granted } from './granted.ts'
import { assertCanHandOver, writeHandOver } from './hand-over.ts'
import { type AnswerOptions, answerSignal, type Lease } from './lease.ts'
import { type Releasable, type ReleaseParts, releaseLater, releaseNow } from './release.ts'
import {
  type Heartbeat,
  NOT_IN_STORE,
  NOT_RENEWED,
  type Renewable,
  type Renewer,
  type RenewerOptions,
  type RenewMode,
} from './renewer.ts'

/** What a lease needs from the instance that holds it. */
export interface LeaseContext extends ReleaseParts {
  readonly random: Random
  readonly heartbeat: Heartbeat
  /** Called once for each lease, when it has ended by release, loss or hand-over. */
  readonly ended: (lease: HeldLease) => void
}

export interface LeaseOptions extends RenewerOptions {
  readonly minHoldMs: number
  /** The callback inside which the lease is acquired. */
  readonly chain?: Chain | undefined
  /** The callback of this lease, if it shares the callback with leases that are acquired together with it. */
  readonly sharedChain?: Chain | undefined
  /** Listens for the forced end of the lease from its first moment, not only when it is older than a second. */
  readonly watchesLoss?: boolean | undefined
}

/** One lease of an instance. */
export class HeldLease implements Lease, Renewable, Releasable {
  readonly claim: TrackedClaim
  readonly fencingToken: number
  declare readonly metadata?: Record<string, unknown>
  /** How many functions run under the lease and rely on it until they have settled. */
  users = 0
  readonly #acquiredAtMs: number
  readonly #handedOverAtMs: number | undefined
  readonly #context: LeaseContext
  readonly #onEnd: ((lease: HeldLease) => void) | undefined
  readonly #grantedMs: number
  readonly #minHoldMs: number
  readonly #maxHoldMs: number
  /** When the request was sent, and when its answer arrived. All leases of a list share these objects. */
  readonly #sent: Instant
  readonly #answered: Instant
  readonly #renewer: Renewer
  #ended: 'released' | 'handed over' | LeaseLostError | undefined
  #abort: AbortController | undefined
  #stopWatching: (() => void) | undefined
  /** Settles when the heartbeat, which has ended, has no renewal in flight. */
  #lastRenewals: Promise<unknown> | undefined
  /** Extensions in flight, which a hand-over waits for. Created with the first of them. */
  #extensions: Set<Promise<boolean>> | undefined
  /** What the last message about a loss said. It is the reason for the loss if the store confirms it. */
  #unconfirmedLoss: Error | undefined
  /** Why the functions that run under the lease were asked to stop while it is still held. */
  #stopRequest: LeaseLostError | undefined
  #chain: Chain | undefined

  /** `onEnd` is called after `ended` of the context. */
  constructor(
    context: LeaseContext,
    claim: TrackedClaim,
    { grant, sent, answered, unansweredMs, storeAtMs }: Granted,
    options: LeaseOptions,
    onEnd?: (lease: HeldLease) => void,
  ) {
    this.#context = context
    this.claim = claim
    this.fencingToken = grant.fencingToken
    this.#acquiredAtMs = grant.acquiredAtMs
    this.#handedOverAtMs = storeAtMs
    if (claim.metadata !== undefined) this.metadata = claim.metadata
    this.#grantedMs = grant.ttlMs
    // Not the options themselves: they are the whole request.
    this.#minHoldMs = options.minHoldMs
    this.#maxHoldMs = options.maxHoldMs
    this.#chain = options.sharedChain
    this.#sent = sent
    this.#answered = answered
    this.#onEnd = onEnd
    const { wakeUps, lossHints } = context.store
    if (this.#endsWithSession) {
      // The driver knows it from its own connection.
      const lost = (cause: Error): void => this.lose(cause.message, cause, 'session')
      this.#stopWatching = wakeUps.watchSession(claim.claimId, lost)
    } else if (options.watchesLoss) {
      this.#stopWatching = lossHints.watch()
    }
    const start = { sent, answered, grantedMs: grant.ttlMs }
    const known = unansweredMs === undefined ? start : { ...start, unansweredMs }
    this.#renewer = context.heartbeat.createRenewer(this, known, options)
  }

  get ref(): LeaseRef & { readonly fencingToken: number } {
    return { lockName: this.lockName, claimId: this.claim.claimId, fencingToken: this.fencingToken }
  }

  /** Created at the first access: most leases have no claim made under them. */
  get chain(): Chain {
    this.#chain ??= new Chain(this.claim.claimId, this.#context.random)
    return this.#chain
  }

  get eventBase() {
    const { lockName, holderId, claimId } = this.claim
    return { lockName, holderId, claimId, fencingToken: this.fencingToken }
  }

  get ttlMs(): number {
    return this.claim.ttlMs
  }

  get lockName(): string {
    return this.claim.lockName
  }

  get holderId(): string {
    return this.claim.holderId
  }

  get acquiredAt(): Date {
    return new Date(this.#acquiredAtMs)
  }

  /** In the store's time, derived from this process's monotonic clock. It may be a little early, never late. */
  get expiresAt(): Date {
    const { endsAtMs } = this.#renewer
    const isFirstEnd = Math.abs(endsAtMs - this.#sent.monotonicMs - this.#grantedMs) < 0.01
    // When the grant arrived, the store's clock showed `acquiredAt` or later.
    const referenceMs = (isFirstEnd ? this.#sent : this.#answered).monotonicMs
    return new Date(Math.min(this.#storeAtMs + endsAtMs - referenceMs, MAX_TIME_MS))
  }

  /** A lower bound of the store's clock at the moment from which the lease is trusted: when its request was sent. */
  get #storeAtMs(): number {
    return this.#handedOverAtMs ?? this.#acquiredAtMs
  }

  /** Since when this process holds it, on the monotonic clock. */
  get heldSinceMs(): number {
    return this.#answered.monotonicMs
  }

  get released(): boolean {
    return this.#ended === 'released'
  }

  get held(): boolean {
    return this.#ended === undefined && this.#heldAt(this.#context.clock.now())
  }

  #heldAt(now: Instant): boolean {
    if (this.#ended !== undefined) return false
    if (!isPast(this.#renewer.deadline, now)) return true
    this.lose(NOT_RENEWED)
    return false
  }

  get remainingSeconds(): number {
    if (!this.held) return 0
    const { monotonicMs, wallMs } = this.#context.clock.now()
    const { deadline } = this.#renewer
    return Math.max(0, Math.min(deadline.monotonicMs - monotonicMs, deadline.wallMs - wallMs)) / 1_000
  }

  /** Created at the first access: most leases are not lost, and their signal is not used. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController()
    void this.held // notices a loss that no timer has reported yet
    if (this.lossError !== undefined) this.#abort.abort(this.lossError)
    return this.#abort.signal
  }

  assertHeld(): void {
    if (this.held) return
    throw this.lossError ?? new NotHeldError(this.lockName, this.#ended === 'handed over' ? this.#ended : undefined)
  }

  /** Why functions that run under the lease have to stop, or had to. */
  get lossError(): LeaseLostError | undefined {
    return this.#ended instanceof LeaseLostError ? this.#ended : this.#stopRequest
  }

  async extend(seconds: number, options?: AnswerOptions): Promise<boolean> {
    const signal = answerSignal(options)
    const what = `extending the lease on "${this.lockName}"`
    if (signal?.aborted) throw new AbortedError(what, signal.reason)
    return unlessAborted(this.#extend(seconds, 'set'), signal, what)
  }

  /** Like `extend`, for one of several users of the lease: it never shortens the lease. */
  lengthen(seconds: number): Promise<boolean> {
    // If the lease is long enough, the store is not asked, so nothing else would give the event loop a turn.
    return turnsOf(this.#context.clock).settle(this.#extend(seconds, 'lengthen'))
  }

  async #extend(seconds: number, mode: RenewMode): Promise<boolean> {
    const ttlMs = ttlMsFrom('seconds', seconds)
    if (!this.held) return false
    const renewal = this.#context.inFlight.track(this.#renewer.renew(ttlMs, mode))
    this.#extensions ??= new Set()
    const extensions = this.#extensions.add(renewal)
    try {
      return (await renewal) && this.held
    } finally {
      extensions.delete(renewal)
    }
  }

  /** Renews the lease regularly from now on, although it was acquired without a heartbeat. */
  startHeartbeat(): void {
    if (this.held) this.#renewer.startHeartbeat()
  }

  async serialize(): Promise<string> {
    const now = this.#context.clock.now()
    this.assertHeld()
    assertCanHandOver(this.#context.store.driver, this.claim, this.users)
    // From here on this process must not rely on the lease: two holders at once are what a lock must prevent.
    this.#end('handed over')
    // A renewal of this process that arrives after the first one of the other process would set another end than the
    // one that the other process relies on.
    await this.#context.inFlight.track(Promise.allSettled([this.#lastRenewals, ...(this.#extensions ?? [])]))
    const heldMs = now.monotonicMs - this.#answered.monotonicMs
    this.#context.events.emit('handedOver', () => ({ ...this.eventBase, heldMs }))
    return writeHandOver({
      claim: this.claim,
      fencingToken: this.fencingToken,
      acquiredAtMs: this.#acquiredAtMs,
      storeAtMs: this.#storeAtMs,
      heldMs,
      unansweredMs: this.#renewer.unansweredMs,
      minHoldMs: this.#minHoldMs,
      maxHoldMs: this.#maxHoldMs,
    })
  }

  release(options?: AnswerOptions): Promise<boolean> {
    if (options === undefined) return this.#release(this.#minHoldMs, 'released')
    return this.#releaseUnlessAborted(options)
  }

  /** Sends the release even if the signal is already aborted. */
  async #releaseUnlessAborted(options: AnswerOptions): Promise<boolean> {
    const signal = answerSignal(options)
    return unlessAborted(this.release(), signal, `waiting for the release of "${this.lockName}"`)
  }

  /**
   * Releases the lease although functions may still run under it: for them it is lost, and their signal aborts.
   *
   * @returns whether the lease was still held
   */
  revoke(reason: string, cause?: Error): Promise<boolean> {
    return this.#release(this.#minHoldMs, this.#lossError(reason, cause))
  }

  /** Releases a lease that was never used: without `minHoldSeconds`, and without an error. */
  async discard(): Promise<void> {
    await this.#release(0, 'released').catch(ignoreHoldfastError)
  }

  /** Releases the lease for `await using`. An error here would hide an error of the block that ends. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(ignoreHoldfastError)
  }

  #release(minHoldMs: number, how: 'released' | LeaseLostError): Promise<boolean> {
    const now = this.#context.clock.now()
    if (!this.#heldAt(now)) return Promise.resolve(false)
    const heldMs = now.monotonicMs - this.#answered.monotonicMs
    const held = { heldMs, deadline: this.#renewer.deadline }
    const delayMs = Math.ceil(minHoldMs - heldMs)
    // From here on this process must not rely on the lease, even if the call fails.
    this.#end(how)
    if (how !== 'released') outsideLocks(() => this.#abort?.abort(how))
    if (delayMs > 0) {
      const renewals = this.#lastRenewals
      return this.#context.inFlight.track(releaseLater(this.#context, this, held, { delayMs, renewals }))
    }
    // Not set above: a late answer to the claim's own request must not release what `minHoldSeconds` keeps.
    this.claim.abandoned = true
    return releaseNow(this.#context, this, held)
  }

  /** Aborts `signal` while the lease is still held and renewed: functions have time to stop before it is released. */
  askToStop(reason: string): void {
    if (this.#ended !== undefined || this.#stopRequest !== undefined) return
    this.#stopRequest = this.#lossError(reason)
    outsideLocks(() => this.#abort?.abort(this.#stopRequest))
  }

  /** The lease has ended without a release. `kind` is needed for reasons that are not those of `renewer.ts`. */
  lose(reason: string, cause?: unknown, kind: LossReason = this.#kindOf(reason)): void {
    if (this.#ended !== undefined) return
    const error = this.#lossError(reason, cause)
    this.#end(error)
    const { store, inFlight } = this.#context
    this.claim.abandoned = true
    // The store may still have the lease: for the length of the margin, or forever if it ends with a session. This
    // process no longer relies on it. No event reports whether this release arrives: that makes no difference any more.
    void inFlight.track(store.releaseUntilAnswered(this.ref, () => undefined))
    this.#reportLoss(error, kind)
  }

  lostBeforeRelease(): void {
    const error = this.#lossError('the store no longer had it when it was released')
    this.#ended = error
    this.#reportLoss(error, this.#kindOf(NOT_IN_STORE))
  }

  #kindOf(reason: string): LossReason {
    if (reason === NOT_RENEWED) return 'expired'
    if (reason !== NOT_IN_STORE) return 'failed'
    // The store has reported that the lease was stolen, and now confirmed that it is gone.
    return this.#unconfirmedLoss === undefined ? 'missing' : 'stolen'
  }

  #lossError(reason: string, cause?: unknown): LeaseLostError {
    const confirmed = reason === NOT_IN_STORE ? this.#unconfirmedLoss : undefined
    const known = cause ?? confirmed
    const options = known === undefined ? undefined : { cause: known }
    return new LeaseLostError(this.claim.lockName, this.fencingToken, confirmed?.message ?? reason, options)
  }

  #reportLoss(error: LeaseLostError, reason: LossReason): void {
    this.#context.events.emit('lost', () => {
      const heldMs = this.#context.clock.now().monotonicMs - this.#answered.monotonicMs
      return { ...this.eventBase, heldMs, reason, error }
    })
    outsideLocks(() => this.#abort?.abort(error))
  }

  /**
   * The lease may have been ended by force. A message may be forged or outdated: the store is asked, and the lease is
   * lost only if the store confirms it. Where a lease ends with its session, the driver has asked already.
   */
  lossReported(cause: Error): void {
    if (this.#endsWithSession) {
      this.lose(cause.message, cause, 'stolen')
      return
    }
    this.#unconfirmedLoss = cause
    this.#renewer.check()
  }

  get #endsWithSession(): boolean {
    return this.#context.store.driver.capabilities.expiry === 'session'
  }

  #end(how: 'released' | 'handed over' | LeaseLostError): void {
    this.#ended = how
    this.#stopWatching?.()
    this.#lastRenewals = this.#renewer.end()
    this.#context.ended(this)
    this.#onEnd?.(this)
  }

  /** What a log or a response shows of the lease. */
  toJSON(): LockInfo {
    const { lockName, holderId, acquiredAt, expiresAt, metadata, fencingToken } = this
    return { lockName, holderId, acquiredAt, expiresAt, ...(metadata && { metadata }), fencingToken }
  }
}

/** Ignores an error that an event has already reported. */
export function ignoreHoldfastError(error: unknown): void {
  if (!(error instanceof HoldfastError)) throw error
}
