import { checkSignal, ttlMsFrom } from '../arguments.ts'
import { Chain } from '../claim/chain.ts'
import type { LeaseRef } from '../driver.ts'
import { AbortedError, HoldfastError, LeaseLostError, NotHeldError, UnsupportedError } from '../errors.ts'
import type { Emitter } from '../events.ts'
import type { LockInfo } from '../lock-info.ts'
import { checkOptions, optionNames } from '../options.ts'
import { outsideLocks } from '../reentry-context.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import { unlessAborted } from '../time/abort.ts'
import { type Clock, type Instant, isPast } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler } from '../time/scheduler.ts'
import { turnsOf } from '../time/turns.ts'
import type { Granted } from './granted.ts'
import { writeHandOver } from './hand-over.ts'
import {
  type Extent,
  type Heartbeat,
  NOT_IN_STORE,
  NOT_RENEWED,
  type Renewable,
  type Renewer,
  type RenewerOptions,
} from './renewer.ts'

/** A granted claim. It ends by release, by expiry or by loss, and never comes back. */
export interface Lease extends LockInfo, AsyncDisposable {
  /** Aborts, with a `LeaseLostError` as its reason, when the lease ends before it is released, no later than the deadline. */
  readonly signal: AbortSignal
  /**
   * Whether the lease can be relied on now. Read off the clocks at the moment of asking, so it is right in the first statement
   * after a stall, when no timer has run yet.
   */
  readonly held: boolean
  /** For how long it can be relied on from now, if no renewal comes through. 0 when it is not held. */
  readonly remainingSeconds: number
  /** Throws `LeaseLostError` if the lease was lost, `NotHeldError` if it was released. */
  assertHeld(): void
  /**
   * Gives the lock back. True if it was still held. False if the lease had ended before; nobody else's lease is touched.
   * Throws `StoreError` if the store did not answer: the release is then sent again in the background, and expiry stands behind it. An abort of `signal` ends the
   * waiting for the answer with `AbortedError`, never the release itself.
   */
  release(options?: AnswerOptions): Promise<boolean>
  /**
   * Sets the lease to end `seconds` from now. False if it had already ended: it is not taken again. Throws `StoreError`
   * if the store did not answer; the lease then goes on until the earlier of the two ends, or with its heartbeat. An abort of `signal` ends the waiting for the answer with `AbortedError`;
   * whether the lease was extended is not known then.
   */
  extend(seconds: number, options?: AnswerOptions): Promise<boolean>
  /**
   * Hands the lease over: resolves with a text from which `DistributedLock.restore` makes a lease in another process, with the same fencing token. From the call on
   * it is not held here any more: it is neither renewed nor released by this process. It ends with its time to live unless it is restored before.
   *
   * The text is a secret. Whoever has it can extend and release the lease. It is meant to be restored once: two processes that restore it both hold the lock.
   *
   * @throws `LeaseLostError` or `NotHeldError` if it is not held; `UnsupportedError` inside a `with…`, whose end gives the lock back, for a lease that was entered
   * again, for a shared one, and where a lease lasts as long as its session
   */
  serialize(): Promise<string>
}

export interface AnswerOptions {
  /** Ends the waiting for the store's answer. */
  signal?: AbortSignal
}

const ANSWER_OPTIONS = optionNames<AnswerOptions>({ signal: true })

/** Throws `InvalidArgumentError`. */
export function answerSignal(options: AnswerOptions | undefined): AbortSignal | undefined {
  if (options === undefined) return undefined
  const { signal } = checkOptions(options, ANSWER_OPTIONS)
  return signal === undefined ? undefined : checkSignal('signal', signal)
}

/** What a lease needs of the instance that holds it. */
export interface LeaseContext {
  readonly clock: Clock
  readonly random: Random
  readonly store: StoreClient
  readonly scheduler: Scheduler
  readonly events: Emitter
  readonly heartbeat: Heartbeat
  readonly inFlight: InFlight
}

export interface LeaseOptions extends RenewerOptions {
  readonly minHoldMs: number
  /** The callback that it is taken inside of. */
  readonly chain?: Chain | undefined
  /** Its own callback, where it shares that with leases that are taken together with it. */
  readonly sharedChain?: Chain | undefined
  /** To be told at once, where the driver can, if the store ends the lease by itself. Costs a subscription while it is held. */
  readonly watchesLoss?: boolean | undefined
}

/** One lease of an instance, and its place in the instance's agenda. */
export class HeldLease implements Lease, Renewable {
  readonly claim: TrackedClaim
  readonly fencingToken: number
  declare readonly metadata?: Record<string, unknown>
  /** How many functions run under it, and rely on it until they have settled. */
  users = 0
  readonly #acquiredAtMs: number
  /** What the store's clock showed at least when the request was sent that the lease is trusted from. */
  readonly #storeAtMs: number
  readonly #context: LeaseContext
  readonly #options: LeaseOptions
  readonly #onEnd: (lease: HeldLease) => void
  readonly #grantedMs: number
  /** On the monotonic clock: when the grant's own time ends, counted from its request, and when its answer had come. */
  readonly #firstEndMs: number
  readonly #answeredMs: number
  readonly #renewer: Renewer
  #ended: 'released' | 'handed over' | LeaseLostError | undefined
  #abort: AbortController | undefined
  #stopWatching: (() => void) | undefined
  #quiet: Promise<unknown> | undefined
  /** Extensions under way, for a hand-over to wait for. Made with the first of them. */
  #extensions: Set<Promise<boolean>> | undefined
  /** The last message that it was lost: the reason, if the store confirms it. */
  #rumour: Error | undefined
  /** Why whoever works under it has been asked to stop, although it is still held. */
  #warning: LeaseLostError | undefined
  #chain: Chain | undefined

  /** `onEnd` is called once, when the lease has ended by release, loss or hand-over. */
  constructor(
    context: LeaseContext,
    claim: TrackedClaim,
    { grant, sent, answered, unansweredMs, storeAtMs = grant.acquiredAtMs }: Granted,
    options: LeaseOptions,
    onEnd: (lease: HeldLease) => void,
  ) {
    this.#context = context
    this.claim = claim
    this.fencingToken = grant.fencingToken
    this.#acquiredAtMs = grant.acquiredAtMs
    this.#storeAtMs = storeAtMs
    if (claim.metadata !== undefined) this.metadata = claim.metadata
    this.#grantedMs = grant.ttlMs
    this.#firstEndMs = sent.monotonicMs + grant.ttlMs
    this.#answeredMs = answered.monotonicMs
    this.#options = options
    this.#onEnd = onEnd
    if (options.watchesLoss || context.store.driver.capabilities.expiry === 'session') {
      this.#stopWatching = context.store.wakeUps.watchLoss(claim.claimId, (cause) => this.#toldOfLoss(cause))
    }
    const start = { sent, answered, grantedMs: grant.ttlMs }
    const known = unansweredMs === undefined ? start : { ...start, unansweredMs }
    this.#renewer = context.heartbeat.keep(this, known, options)
  }

  get ref(): LeaseRef & { readonly fencingToken: number } {
    return { lockName: this.lockName, claimId: this.claim.claimId, fencingToken: this.fencingToken }
  }

  /** Made when first asked for: most leases have nothing taken under them. */
  get chain(): Chain {
    this.#chain ??= this.#options.sharedChain ?? new Chain(this.claim.claimId, this.#context.random)
    return this.#chain
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

  /** The store's clock, read through this process's own monotonic one: a little early rather than late. */
  get expiresAt(): Date {
    const { endsAtMs } = this.#renewer
    const isFirstEnd = Math.abs(endsAtMs - this.#firstEndMs) < 0.01
    // When the grant arrived, the store's clock showed `acquiredAt` or more.
    const agoMs = isFirstEnd ? this.#firstEndMs - this.#grantedMs : this.#answeredMs
    return new Date(this.#storeAtMs + endsAtMs - agoMs)
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

  /** Made when first asked for: most leases end well, and nobody looks. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController()
    void this.held // what notices a loss that no timer has told of yet
    if (this.lossError !== undefined) this.#abort.abort(this.lossError)
    return this.#abort.signal
  }

  assertHeld(): void {
    if (this.held) return
    throw this.lossError ?? new NotHeldError(this.lockName, this.#ended === 'handed over' ? this.#ended : undefined)
  }

  /** Why whoever works under it has to stop, or had to. */
  get lossError(): LeaseLostError | undefined {
    return this.#ended instanceof LeaseLostError ? this.#ended : this.#warning
  }

  async extend(seconds: number, options?: AnswerOptions): Promise<boolean> {
    const signal = answerSignal(options)
    const what = `extending the lease on "${this.lockName}"`
    if (signal?.aborted) throw new AbortedError(what, signal.reason)
    return unlessAborted(this.#extend(seconds, 'exactly'), signal, what)
  }

  /** As `extend`, for one of several who rely on the lease: it never makes it shorter. */
  lengthen(seconds: number): Promise<boolean> {
    // The store is not asked where the lease is long enough, and gives the event loop no turn then.
    return turnsOf(this.#context.clock).settle(this.#extend(seconds, 'at least'))
  }

  async #extend(seconds: number, how: Extent): Promise<boolean> {
    const ttlMs = ttlMsFrom('seconds', seconds)
    if (!this.held) return false
    const renewal = this.#context.inFlight.track(this.#renewer.renew(ttlMs, how))
    this.#extensions ??= new Set()
    const extensions = this.#extensions.add(renewal)
    try {
      return (await renewal) && this.held
    } finally {
      extensions.delete(renewal)
    }
  }

  release(options?: AnswerOptions): Promise<boolean> {
    if (options === undefined) return this.#release(this.#options.minHoldMs, 'released')
    return this.#releaseUnlessAborted(options)
  }

  /** The release is sent also if the signal was aborted before. */
  async #releaseUnlessAborted(options: AnswerOptions): Promise<boolean> {
    const signal = answerSignal(options)
    return unlessAborted(this.release(), signal, `waiting for the release of "${this.lockName}"`)
  }

  async serialize(): Promise<string> {
    const now = this.#context.clock.now()
    this.assertHeld()
    const reason = this.#whyNotHandedOver()
    if (reason !== undefined) {
      throw new UnsupportedError(`the lease on "${this.lockName}" cannot be handed over: ${reason}`)
    }
    // From here on nobody here may rely on it. Two who both believe that they hold it are what a lock is against.
    this.#end('handed over')
    // A renewal of ours that arrived after the first one of the other process would set another end than that relies on.
    await this.#context.inFlight.track(Promise.allSettled([this.#quiet, ...(this.#extensions ?? [])]))
    this.#context.events.emit('handedOver', () => this.eventBase)
    return this.#handOver(now)
  }

  #whyNotHandedOver(): string | undefined {
    if (this.#context.store.driver.capabilities.expiry === 'session') {
      return 'in this store a lease lasts as long as the connection that took it, and no other process can have that'
    }
    if (this.claim.mode === 'shared') return 'only an exclusive lease can be'
    if (this.users > 0) return 'a function runs under it, whose end gives the lock back. Use `acquire` or `hold`'
    return undefined
  }

  #handOver(now: Instant): string {
    const { claim, fencingToken, holderId, lockName, metadata } = this
    const { minHoldMs, maxHoldMs } = this.#options
    const { unansweredMs } = this.#renewer
    const heldMs = now.monotonicMs - this.#answeredMs
    const minLeftMs = minHoldMs - heldMs
    return writeHandOver({
      lockName,
      claimId: claim.claimId,
      fencingToken,
      holderId,
      acquiredAtMs: this.#acquiredAtMs,
      storeAtMs: this.#storeAtMs + heldMs,
      ttlMs: claim.ttlMs,
      ...(metadata && { metadata }),
      ...(Number.isFinite(unansweredMs) && { unansweredMs }),
      ...(minLeftMs > 0 && { minHoldMs: minLeftMs }),
      ...(Number.isFinite(maxHoldMs) && { maxHoldMs: Math.max(0, maxHoldMs - heldMs) }),
    })
  }

  /** Gives it back although somebody may still work under it: for them it is lost, and they are told. True if it was still held. */
  revoke(reason: string, cause?: Error): Promise<boolean> {
    return this.#release(this.#options.minHoldMs, this.#lossError(reason, cause))
  }

  /** Aborts the signal of whoever works under it, while it is still held and renewed: they have time to stop before it is given back. */
  askToStop(reason: string): void {
    if (this.#ended !== undefined || this.#warning !== undefined) return
    this.#warning = this.#lossError(reason)
    outsideLocks(() => this.#abort?.abort(this.#warning))
  }

  /** Gives back what nobody has used: without `minHoldSeconds`, and never throws. */
  async discard(): Promise<void> {
    await this.#release(0, 'released').catch(ignoreOurs)
  }

  #release(minHoldMs: number, how: 'released' | LeaseLostError): Promise<boolean> {
    const now = this.#context.clock.now()
    if (!this.#heldAt(now)) return Promise.resolve(false)
    const heldMs = now.monotonicMs - this.#answeredMs
    const tooEarlyMs = Math.ceil(minHoldMs - heldMs)
    const { deadline } = this.#renewer
    // From here on nobody may rely on it, whatever becomes of the call.
    this.#end(how)
    if (how !== 'released') outsideLocks(() => this.#abort?.abort(how))
    if (tooEarlyMs > 0) return this.#context.inFlight.track(this.#giveBackIn(tooEarlyMs, heldMs, deadline))
    // Not so above: a late answer to the claim's own request must not free what is kept for minHoldSeconds.
    this.claim.abandoned = true
    return this.#giveBackNow(heldMs, deadline)
  }

  /** Renews it from now on, although it was not asked for at first. */
  keepAlive(): void {
    if (this.held) this.#renewer.repeat()
  }

  /** For `await using`. Never throws: it would hide the error of the block that it ends. `held` tells of a loss, events of a failed release. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(ignoreOurs)
  }

  /** What a log or an answer should show of it. */
  toJSON(): LockInfo {
    const { lockName, holderId, acquiredAt, expiresAt, metadata, fencingToken } = this
    return { lockName, holderId, acquiredAt, expiresAt, ...(metadata && { metadata }), fencingToken }
  }

  /** The lease has ended without being given back. */
  lose(reason: string, cause?: unknown): void {
    if (this.#ended !== undefined) return
    const error = this.#lossError(reason, cause)
    this.#end(error)
    const { store } = this.#context
    this.claim.abandoned = true
    // The store may still have it, for the margin's length or for ever (a session): nobody here relies on it any more.
    void this.#context.inFlight.track(store.releaseUntilAnswered(this.ref, () => undefined))
    // The last that is told of it: whether that release arrives makes no difference to anyone.
    this.#tellLost(error)
  }

  /**
   * The release has found that the store no longer had the lease. If the answer came before the lease's own end, the store had ended it early, and whoever
   * worked under it may have worked beside another. A later answer proves nothing: the release may have arrived after that end, and the work was over by then.
   */
  #notInStore(heldMs: number, deadline: Instant, answered: Instant): void {
    if (isPast(deadline, answered)) {
      this.#tellReleased(heldMs)
      return
    }
    const error = this.#lossError('the store no longer had it when it was released')
    this.#ended = error
    this.#tellLost(error)
  }

  #lossError(reason: string, cause?: unknown): LeaseLostError {
    const rumour = reason === NOT_IN_STORE ? this.#rumour : undefined
    const known = cause ?? rumour
    const options = known === undefined ? undefined : { cause: known }
    return new LeaseLostError(this.claim.lockName, this.fencingToken, rumour?.message ?? reason, options)
  }

  #tellLost(error: LeaseLostError): void {
    this.#context.events.emit('lost', () => ({ ...this.eventBase, error }))
    outsideLocks(() => this.#abort?.abort(error))
  }

  /**
   * A session's end is known in this process. Of anything else a message tells, which may be forged or old: the store is
   * asked, and the lease is lost if the store says so.
   */
  #toldOfLoss(cause: Error): void {
    if (this.#context.store.driver.capabilities.expiry === 'session') {
      this.lose(cause.message, cause)
      return
    }
    this.#rumour = cause
    this.#renewer.check()
  }

  get eventBase() {
    const { lockName, holderId, claimId } = this.claim
    return { lockName, holderId, claimId, fencingToken: this.fencingToken }
  }

  #giveBackNow(heldMs: number, deadline: Instant): Promise<boolean> {
    const { store, inFlight } = this.#context
    inFlight.begin()
    return new Promise((resolve, reject) => {
      store.release(this.ref, {
        answered: (wasHeld, _sent, answered) => {
          if (wasHeld) this.#tellReleased(heldMs)
          else this.#notInStore(heldMs, deadline, answered)
          resolve(wasHeld)
          inFlight.end()
        },
        failed: (error) => {
          void inFlight.track(store.releaseUntilAnswered(this.ref, (again) => this.#tellReleaseFailed(again)))
          this.#tellReleaseFailed(error)
          reject(error)
          inFlight.end()
        },
      })
    })
  }

  /** The store itself ends it then, even if this process is gone by that time. If that fails, it ends with its time to live. */
  async #giveBackIn(delayMs: number, heldMs: number, deadline: Instant): Promise<boolean> {
    const { store, clock } = this.#context
    // A renewal of the heartbeat's that is still under way would set another end.
    await this.#quiet
    try {
      const answer = await store.renew({ ...this.ref, ttlMs: delayMs })
      if (answer === 'lost') {
        this.#notInStore(heldMs, deadline, clock.now())
        return false
      }
      if (answer === 'held') store.releaseLater(this.ref, delayMs, (error) => this.#tellReleaseFailed(error))
      this.#tellReleased(heldMs)
      return true
    } catch (error) {
      this.#tellReleaseFailed(error)
      throw error
    }
  }

  #tellReleased(heldMs: number): void {
    this.#context.events.emit('released', () => ({ ...this.eventBase, heldMs }))
  }

  #tellReleaseFailed(error: unknown): void {
    this.#context.events.emit('releaseFailed', () => ({ ...this.eventBase, error }))
  }

  #end(how: 'released' | 'handed over' | LeaseLostError): void {
    this.#ended = how
    this.#stopWatching?.()
    this.#quiet = this.#renewer.end()
    this.#onEnd(this)
  }
}

/** Events have told of it. */
export function ignoreOurs(error: unknown): void {
  if (!(error instanceof HoldfastError)) throw error
}
