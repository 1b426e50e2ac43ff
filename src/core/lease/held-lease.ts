import type { Grant, LeaseRef } from '../driver.ts'
import { LeaseLostError } from '../errors.ts'
import type { Emitter, LeaseEvent } from '../events.ts'
import { type Few, listOf, sizeOf, withOne, withoutOne } from '../few.ts'
import { MIN_HINT_PAUSE_MS } from '../limits.ts'
import { MAX_TIME_MS } from '../lock-info.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import type { Reported } from '../store/waiters.ts'
import { settlesWithin } from '../time/abort.ts'
import { type Clock, type Instant, isPast, type Timer } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import { turnsOf } from '../time/turns.ts'
import { Chain } from './chain.ts'
import { assertCanHandOver, writeHandOver } from './hand-over.ts'
import { LeaseUse, type UsedLease } from './lease-use.ts'
import {
  type Heartbeat,
  type Loss,
  MAX_ANSWER_MS,
  NOT_IN_STORE,
  type Renewable,
  type Renewer,
  type RenewerOptions,
  type RenewerStart,
  type RenewMode,
} from './renewer.ts'

/** What a lease needs from the instance that holds it. */
export interface LeaseContext {
  readonly clock: Clock
  readonly random: Random
  readonly store: StoreClient
  readonly events: Emitter
  readonly inFlight: InFlight
  readonly heartbeat: Heartbeat
  /** Called once for each lease, when it has ended by release, loss or hand-over. */
  leaseEnded(lease: HeldLease): void
}

export interface LeaseOptions extends RenewerOptions {
  readonly minHoldMs: number
  /** The callback inside which the lease is acquired. */
  readonly chain?: Chain | undefined
  /** The callback of this lease, if it shares the callback with leases that are acquired together with it. */
  readonly sharedChain?: Chain | undefined
  /** Keeps a subscription to the store, so that a forced end of the lease is known at once. */
  readonly listensForLoss?: boolean | undefined
}

/** When a lease began, as this process knows it. */
export interface LeaseStart extends RenewerStart {
  /**
   * Only for a restored lease: a lower bound of the store's clock when its renewal was sent. Any other lease has the
   * store's clock at its grant, `acquiredAtMs`: a lower bound when the answer arrived.
   */
  readonly storeAtMs?: number
}

/**
 * One lease of an instance. It is held until its last use has ended, or until it is ended under its uses.
 *
 * It counts its uses. A use begins with a grant, a re-entry, an extended re-acquisition or a restored lease, and it
 * ends once. The last use releases the lease. If the lease ends under its uses, each of them is notified. The end of
 * every use confirms that the lease was still held.
 *
 * - `leave`: a use ends by itself, or by its caller. The last one releases the lease, any other asks the store
 * - `revoke`: as `leave`, but the function that runs under the use is notified
 * - `endAll`: the lease is released under all of its uses
 * - `lose`: the lease has ended without a release
 * - `askToStop`: nothing ends yet, but signals abort
 */
export class HeldLease implements UsedLease, Renewable, Reported {
  readonly claim: TrackedClaim
  /** Its neighbours among the leases of its instance, which sets them. */
  before: HeldLease | undefined
  after: HeldLease | undefined
  readonly #context: LeaseContext
  readonly #grant: Grant
  readonly #start: LeaseStart
  readonly #minHoldMs: number
  readonly #maxHoldMs: number
  readonly #renewer: Renewer
  /** The uses that have not ended. */
  #uses: Few<LeaseUse>
  /** How many of them have a heartbeat. It ends with the last of these. */
  #heartbeats: number
  /** The error: it was lost. */
  #state: 'held' | 'ended' | LeaseLostError = 'held'
  /** The release in the store, once it was sent. */
  #releasing: Promise<boolean> | undefined
  /** The release waits for the answers to all renewals before it is sent, for `minHoldSeconds`. */
  #postponed: Release | undefined
  /** It was lost because its deadline passed. */
  #hasExpired = false
  /** Settles when no renewal of the lease, which has ended, is in flight. */
  #lastRenewals: Promise<unknown> | undefined
  readonly #stopListening: (() => void) | undefined
  /** What the last message about a loss said. It is the reason for the loss if the store confirms it. */
  #unconfirmedLoss: Error | undefined
  #hintedAtMs = Number.NEGATIVE_INFINITY
  #hintTimer: Timer | undefined
  #stopRequest: LeaseLostError | undefined
  #chain: Chain | undefined
  /** Extensions of this step of the event loop, by what they ask for. They share one renewal. */
  #extensions: { [Mode in RenewMode]?: Extension } | undefined

  constructor(context: LeaseContext, claim: TrackedClaim, grant: Grant, start: LeaseStart, options: LeaseOptions) {
    this.#context = context
    this.claim = claim
    this.#grant = grant
    this.#start = start
    // Not the options themselves: they are the whole request.
    this.#minHoldMs = options.minHoldMs
    this.#maxHoldMs = options.maxHoldMs
    this.#heartbeats = options.heartbeat ? 1 : 0
    this.#chain = options.sharedChain
    const { waiters } = context.store
    // Where a lease ends with its session, the driver knows it from its own connection.
    if (this.#endsWithSession || options.listensForLoss) this.#stopListening = waiters.listenForLoss(context.events)
    this.#renewer = context.heartbeat.createRenewer(this, start, options)
  }

  get fencingToken(): number {
    return this.#grant.fencingToken
  }

  get ref(): Required<LeaseRef> {
    return { lockName: this.lockName, claimId: this.claim.claimId, fencingToken: this.fencingToken }
  }

  get eventBase(): LeaseEvent {
    const { lockName, holderId, claimId } = this.claim
    return { lockName, holderId, claimId, fencingToken: this.fencingToken }
  }

  /** Created at the first access: most leases have no claim made under them. */
  get chain(): Chain {
    this.#chain ??= new Chain(this.claim.claimId, this.#context.random)
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
    return new Date(this.#grant.acquiredAtMs)
  }

  /** In the store's time, derived from this process's monotonic clock. It may be a little early, never late. */
  get expiresAt(): Date {
    const { endsAtMs } = this.#renewer
    const { sent, answered, grantedMs } = this.#start
    const isFirstEnd = Math.abs(endsAtMs - sent.monotonicMs - grantedMs) < 0.01
    // When the grant arrived, the store's clock showed `acquiredAt` or later.
    const referenceMs = (isFirstEnd ? sent : answered).monotonicMs
    return new Date(Math.min(this.#storeAtMs + endsAtMs - referenceMs, MAX_TIME_MS))
  }

  /** See `LeaseStart.storeAtMs`. */
  get #storeAtMs(): number {
    return this.#start.storeAtMs ?? this.#grant.acquiredAtMs
  }

  get held(): boolean {
    return this.#state === 'held' && this.#heldAt(this.#context.clock.now())
  }

  #heldAt(now: Instant): boolean {
    if (this.#state !== 'held') return false
    if (!isPast(this.#renewer.deadline, now)) return true
    this.lose(this.#renewer.loss)
    return false
  }

  get remainingSeconds(): number {
    if (!this.held) return 0
    const { monotonicMs, wallMs } = this.#context.clock.now()
    const { deadline } = this.#renewer
    return Math.max(0, Math.min(deadline.monotonicMs - monotonicMs, deadline.wallMs - wallMs)) / 1_000
  }

  get #error(): LeaseLostError | undefined {
    return typeof this.#state === 'object' ? this.#state : undefined
  }

  get stopRequest(): LeaseLostError | undefined {
    return this.#stopRequest
  }

  use(around?: LeaseUse): LeaseUse {
    const use = new LeaseUse(this, around)
    use.hasHeartbeat = this.#uses === undefined && this.#heartbeats > 0
    this.#uses = withOne(this.#uses, use)
    return use
  }

  leave(use: LeaseUse, minHoldMs = this.#minHoldMs): Promise<boolean> {
    const inside = this.#remove(use)
    const answer = this.#uses === undefined ? this.#release(minHoldMs, [use]) : this.#confirmFor(use)
    if (inside.length > 0) tell(inside, this.#errorOf('the function around it has released it'))
    return answer
  }

  revoke(use: LeaseUse, reason: string): Promise<boolean> {
    if (!this.held) return Promise.resolve(false)
    const ended = [use, ...this.#remove(use)]
    const answer = this.#uses === undefined ? this.#release(this.#minHoldMs, NONE) : this.confirm()
    tell(ended, this.#errorOf(reason))
    return answer
  }

  /** Returns what was entered inside it. */
  #remove(use: LeaseUse): readonly LeaseUse[] {
    const inside = use.detach()
    this.#uses = withoutOne(this.#uses, use)
    for (const each of inside) this.#uses = withoutOne(this.#uses, each)
    if (!use.hasHeartbeat) return inside
    this.#heartbeats -= 1
    if (this.#heartbeats === 0 && this.#uses !== undefined) this.#renewer.stopHeartbeat()
    return inside
  }

  /** The use ended while the lease was held. If the lease expires since then, that is no loss to the use. */
  async #confirmFor(use: LeaseUse): Promise<boolean> {
    try {
      const isHeld = await this.confirm()
      if (!isHeld && !this.#hasExpired) tell([use], this.#error ?? this.#lost(NOT_IN_STORE).error)
      return isHeld
    } catch (error) {
      // A renewal may have found the loss meanwhile.
      if (this.#error !== undefined && !this.#hasExpired) tell([use], this.#error)
      throw error
    }
  }

  async confirm(): Promise<boolean> {
    const isAsked = this.held
    const isInStore = isAsked && (await this.#context.inFlight.track(this.#renewer.confirm()))
    if (isInStore === true) return true
    if (isAsked && isInStore === false && this.#postponed !== undefined && this.#error === undefined) {
      // The last use has ended it meanwhile, and its release follows this answer.
      this.#wasNotInStore(this.#postponed, this.#context.clock.now())
      return this.#error === undefined
    }
    if (this.#state === 'ended' && this.#releasing !== undefined) {
      // The last use released it meanwhile. That may have overtaken the question, and its answer decides.
      await this.#releasing
      return this.#error === undefined
    }
    // Undefined: the last use has handed the lease over before the store was asked.
    return isInStore === undefined && this.#state === 'ended'
  }

  extend(ttlMs: number, use?: LeaseUse): Promise<boolean> {
    const isOnly = use === undefined ? this.#isAlone : sizeOf(this.#uses) === 1
    return isOnly ? this.#renew(ttlMs, 'set') : this.lengthen(ttlMs)
  }

  /** A lease that nothing shares, and that no function runs under, belongs to every caller that knows its name. */
  get #isAlone(): boolean {
    return sizeOf(this.#uses) === 1 && listOf(this.#uses)[0]?.runsFunction === false
  }

  /** Like `extend`, but it never shortens the lease. */
  lengthen(ttlMs: number): Promise<boolean> {
    // If the lease is long enough, the store is not asked, so nothing else would give the event loop a turn.
    return turnsOf(this.#context.clock).settle(this.#renew(ttlMs, 'lengthen'))
  }

  /** Calls of one step share a renewal: without that, n tasks that join cost n². The last call sets the end. */
  #renew(ttlMs: number, mode: RenewMode): Promise<boolean> {
    if (!this.held) return Promise.resolve(false)
    const extensions = this.#extensions ?? {}
    this.#extensions = extensions
    const joined = extensions[mode]
    if (joined !== undefined) {
      joined.ttlMs = mode === 'set' ? ttlMs : Math.max(joined.ttlMs, ttlMs)
      return joined.work
    }
    const send = async (): Promise<boolean> => {
      delete extensions[mode]
      return this.held && (await this.#context.inFlight.track(this.#renewer.renew(extension.ttlMs, mode))) && this.held
    }
    const extension: Extension = { ttlMs, work: Promise.resolve().then(send) }
    extensions[mode] = extension
    return extension.work
  }

  /** Renews the lease regularly until the use ends, although it was acquired without a heartbeat. */
  startHeartbeat(use: LeaseUse): void {
    if (!use.held || use.hasHeartbeat) return
    use.hasHeartbeat = true
    this.#heartbeats += 1
    this.#renewer.startHeartbeat()
  }

  async handOver(use: LeaseUse): Promise<string> {
    const now = this.#context.clock.now()
    assertCanHandOver(this.#context.store.driver, this.claim, {
      isShared: sizeOf(this.#uses) > 1,
      runsFunction: use.runsFunction,
    })
    // From here on this process must not rely on the lease: two holders at once are what a lock must prevent.
    this.#end('ended')
    use.end('handed over')
    // A renewal of this process that arrives after the first one of the other process would set another end than the
    // one that the other process relies on.
    await this.#context.inFlight.track(this.#renewalsEnded())
    const heldMs = this.#heldMs(now)
    this.#context.events.heard('handedOver')?.({ ...this.eventBase, heldMs })
    return writeHandOver({
      claim: this.claim,
      fencingToken: this.fencingToken,
      acquiredAtMs: this.#grant.acquiredAtMs,
      storeAtMs: this.#storeAtMs,
      heldMs,
      unansweredMs: this.#renewer.unansweredMs,
      minHoldMs: this.#minHoldMs,
      maxHoldMs: this.#maxHoldMs,
    })
  }

  endAll(reason: string, isOwn: (use: LeaseUse) => boolean, cause?: Error): Promise<boolean> {
    if (!this.held) return Promise.resolve(false)
    const uses = listOf(this.#uses)
    const areOwn = cause === undefined && (this.#isAlone || uses.every(isOwn))
    const released = this.#release(this.#minHoldMs, areOwn ? uses : NONE)
    if (areOwn) {
      for (const use of uses) {
        use.releasing = released
        use.end('released')
      }
    } else tell(uses, this.#errorOf(reason, cause))
    return released
  }

  /** `uses`: those that ended with the release. They are notified if the store had ended the lease before. */
  #release(minHoldMs: number, uses: readonly LeaseUse[]): Promise<boolean> {
    const now = this.#context.clock.now()
    if (!this.#heldAt(now)) return Promise.resolve(false)
    const heldMs = this.#heldMs(now)
    const release: Release = { heldMs, deadline: this.#renewer.deadline, uses, isReported: false }
    const delayMs = Math.ceil(minHoldMs - heldMs)
    // From here on this process must not rely on the lease, even if the call fails.
    this.#end('ended')
    if (delayMs > 0) {
      this.#postponed = release
      this.#releasing = this.#context.inFlight.track(this.#releaseIn(delayMs, release))
    } else {
      // Not set above: a late answer to the claim's own request must not release what `minHoldSeconds` keeps.
      this.claim.abandoned = true
      this.#releasing = this.#releaseNow(release)
    }
    return this.#releasing
  }

  #releaseNow(release: Release): Promise<boolean> {
    const { store, inFlight } = this.#context
    inFlight.begin()
    return new Promise((resolve, reject) => {
      store.releases.add(this.ref, {
        answered: (wasHeld, _call, answered) => {
          if (wasHeld) this.#emitReleased(release)
          else this.#wasNotInStore(release, answered)
          resolve(wasHeld)
          inFlight.end()
        },
        failed: (error) => {
          void inFlight.track(store.releaseUntilAnswered(this.ref, (again) => this.#emitReleaseFailed(again)))
          this.#emitReleaseFailed(error)
          reject(error)
          inFlight.end()
        },
      })
    })
  }

  /**
   * Sets the lease to end after `delayMs`, for `minHoldSeconds`: the store then ends it even if this process no longer
   * exists. If that fails, the lease expires after its TTL, or this process ends it where it has none.
   */
  async #releaseIn(delayMs: number, release: Release): Promise<boolean> {
    const { store, clock } = this.#context
    // One that arrives later would set another end.
    await this.#renewalsEnded()
    try {
      const answer = await store.renewals.ask({ ...this.ref, ttlMs: delayMs })
      if (answer === 'lost') {
        this.#wasNotInStore(release, clock.now())
        return false
      }
      // A store without expiry cannot end the lease itself: this process does it.
      if (answer === 'held') store.releaseLater(this.ref, delayMs, (error) => this.#emitReleaseFailed(error))
      this.#emitReleased(release)
      return true
    } catch (error) {
      if (this.#endsWithSession) store.releaseLater(this.ref, delayMs, (again) => this.#emitReleaseFailed(again))
      this.#emitReleaseFailed(error)
      throw error
    }
  }

  /**
   * The store answered that it no longer had the lease. If the answer came before the lease's own end, the store had
   * ended the lease early, and another holder may have worked at the same time. A later answer proves nothing: the
   * release may have arrived after that end, when the work was already over.
   */
  #wasNotInStore(release: Release, answered: Instant): void {
    // A confirmation may have found it before the release.
    if (release.isReported) return
    release.isReported = true
    if (isPast(release.deadline, answered)) {
      this.#emitReleased(release)
      return
    }
    const error = this.#errorOf('the store no longer had it when it was released')
    this.#state = error
    tell(release.uses, error, () => this.#emitLost(error, this.#lost(NOT_IN_STORE).kind))
  }

  #emitReleased({ heldMs }: Release): void {
    this.#context.events.heard('released')?.({ ...this.eventBase, heldMs })
  }

  #emitReleaseFailed(error: unknown): void {
    this.#context.events.heard('releaseFailed')?.({ ...this.eventBase, error })
  }

  /** Aborts the signals while the lease is still held and renewed: functions have time to stop before its release. */
  askToStop(reason: string): void {
    if (this.#state !== 'held' || this.#stopRequest !== undefined) return
    const request = this.#errorOf(reason)
    this.#stopRequest = request
    for (const use of listOf(this.#uses)) use.abort(request)
  }

  /** The lease has ended without a release. */
  lose(loss: Loss): void {
    if (this.#state !== 'held') return
    const { kind, error } = this.#lost(loss)
    const uses = listOf(this.#uses)
    this.#hasExpired = kind === 'expired'
    this.#end(error)
    const { store, inFlight } = this.#context
    this.claim.abandoned = true
    // The store may still have the lease: for the length of the margin, or forever if it ends with a session. This
    // process no longer relies on it. No event reports whether this release arrives: that makes no difference any more.
    void inFlight.track(store.releaseUntilAnswered(this.ref, () => undefined))
    tell(uses, error, () => this.#emitLost(error, kind))
  }

  /**
   * A message may be forged or outdated: the store is asked, and the lease is lost only if the store confirms it. Where
   * a lease ends with its session, the driver has asked already.
   */
  lossReported(cause: Error): void {
    if (this.#endsWithSession) {
      this.lose({ kind: 'session', message: cause.message, cause })
      return
    }
    this.#unconfirmedLoss = cause
    // Any client may be able to send messages: a flood of them must not become a flood of renewals.
    if (this.#hintTimer !== undefined) return
    const { clock } = this.#context
    const restMs = this.#hintedAtMs + MIN_HINT_PAUSE_MS - clock.now().monotonicMs
    if (restMs <= 0) this.#askAfterHint()
    else this.#hintTimer = clock.setTimer(() => this.#askAfterHint(), restMs)
  }

  #askAfterHint(): void {
    this.#hintTimer = undefined
    this.#hintedAtMs = this.#context.clock.now().monotonicMs
    const hint = this.#unconfirmedLoss
    const refuted = (isHeld: boolean): void => {
      if (isHeld && this.#unconfirmedLoss === hint) this.#unconfirmedLoss = undefined
    }
    // An event has reported a failure.
    this.confirm().then(refuted, () => undefined)
  }

  get #endsWithSession(): boolean {
    return this.#context.store.driver.capabilities.expiry === 'session'
  }

  /** If the store has reported a forced release, and now confirms that the lease is gone, that is the reason. */
  #lost({ kind, message, cause }: Loss): { readonly kind: Loss['kind']; readonly error: LeaseLostError } {
    const hint = kind === 'missing' ? this.#unconfirmedLoss : undefined
    return hint === undefined
      ? { kind, error: this.#errorOf(message, cause) }
      : { kind: 'force-released', error: this.#errorOf(hint.message, hint) }
  }

  #errorOf(reason: string, cause?: unknown): LeaseLostError {
    const options = cause === undefined ? undefined : { cause }
    return new LeaseLostError(this.claim.lockName, this.fencingToken, reason, options)
  }

  #emitLost(error: LeaseLostError, reason: Loss['kind']): void {
    const { clock, events } = this.#context
    events.heard('lost')?.({ ...this.eventBase, heldMs: this.#heldMs(clock.now()), reason, error })
  }

  #heldMs(now: Instant): number {
    return now.monotonicMs - this.#start.answered.monotonicMs
  }

  /** No renewal of the lease, which has ended, is in flight any more. If their thread hangs, that stays unknown. */
  async #renewalsEnded(): Promise<void> {
    const { clock, store } = this.#context
    const renewals = this.#lastRenewals
    if (renewals !== undefined) await settlesWithin(clock, store.callTimeoutMs + MAX_ANSWER_MS, renewals)
  }

  /** No use begins after this. */
  #end(state: 'ended' | LeaseLostError): void {
    this.#state = state
    this.#uses = undefined
    this.#hintTimer?.cancel()
    this.#stopListening?.()
    this.#lastRenewals = this.#renewer.end()
    this.#context.leaseEnded(this)
  }
}

interface Extension {
  ttlMs: number
  readonly work: Promise<boolean>
}

/** A lease that this process no longer relies on, and that is to end in the store. */
interface Release {
  readonly heldMs: number
  /** Until when it could be relied on. */
  readonly deadline: Instant
  /** The uses that ended with the release. */
  readonly uses: readonly LeaseUse[]
  /** It is reported that the store no longer had it. */
  isReported: boolean
}

/** The event comes before the signals: an abort ends work, and a log should say why before that. */
function tell(uses: readonly LeaseUse[], error: LeaseLostError, emit?: () => void): void {
  for (const use of uses) use.lose(error)
  emit?.()
  for (const use of uses) use.abort(error)
}

const NONE: readonly LeaseUse[] = []
