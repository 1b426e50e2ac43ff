import { DeadlockWatch } from '../deadlock/watch.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Driver,
  ForceOptions,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  RateAnswer,
  RateRequest,
  Refusal,
} from '../driver.ts'
import { ClosedError, type HoldfastError, OverloadError, StoreError, UnsupportedError } from '../errors.ts'
import type { Emitter } from '../events.ts'
import type { Granted } from '../lease/granted.ts'
import type { HandOver } from '../lease/hand-over.ts'
import { HeldLease, type LeaseContext, type LeaseOptions } from '../lease/held-lease.ts'
import { createHeartbeat } from '../lease/local-renewer.ts'
import { LossWatch } from '../lease/loss-watch.ts'
import { type Heartbeat, type HeartbeatParts, NOT_IN_STORE } from '../lease/renewer.ts'
import { FORCE_TIMEOUT_MS, MAX_PENDING_CLAIMS, MAX_TTL_MS, PING_TTL_MS } from '../limits.ts'
import { LinkedSet } from '../linked-set.ts'
import type { Receiver } from '../store/batch.ts'
import { InFlight } from '../store/in-flight.ts'
import {
  closeStoreClient,
  failStoreClient,
  openStoreClient,
  type StealingLease,
  StoreClient,
  type TrackedClaim,
} from '../store/store-client.ts'
import { holderOf } from '../store-answers.ts'
import type { Clock } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import { Scheduler } from '../time/scheduler.ts'
import { settlesWithin, withTimeout } from '../time/timeout.ts'
import { unsupported } from '../unsupported.ts'
import type { Chain } from './chain.ts'
import { ClaimFactory, type ClaimRequest } from './claim-factory.ts'
import { type Outcome, PendingClaim, type WaitParts } from './pending-claim.ts'
import { ping } from './ping.ts'
import { LeaseRestorer, type RestoreRequest } from './restore.ts'
import { restoredTwice } from './restores-in-flight.ts'

export type { ClaimRequest } from './claim-factory.ts'
export type { RestoreRequest } from './restore.ts'

export interface HolderOptions {
  readonly driver: Driver
  readonly holderId: string
  readonly clock: Clock
  readonly random: Random
  readonly callTimeoutMs: number
  readonly waiterTtlMs: number
  readonly events: Emitter
  /** How long a nested claim waits before it looks for a deadlock. Absent: it never looks. */
  readonly deadlockAfterMs?: number | undefined
  /** Whether to listen for forced releases while a lease is held. By default it does. */
  readonly watchesForcedReleases?: boolean
  /** Creates a heartbeat in a worker thread. Absent: the heartbeat runs in this thread. */
  readonly thread?: CreateHeartbeat
}

export type CreateHeartbeat = (parts: HeartbeatParts) => Heartbeat

export type ClaimResult =
  | { readonly granted: true; readonly lease: HeldLease }
  | { readonly granted: false; readonly refusal: Refusal | undefined; readonly waitedMs: number }

/**
 * Makes the claims of one instance, keeps their leases, and releases all of them on close. Every primitive uses one.
 */
export class Holder {
  readonly holderId: string
  readonly events: Emitter
  readonly #store: StoreClient
  readonly #options: HolderOptions
  readonly #scheduler: Scheduler
  readonly #heartbeat: Heartbeat
  readonly #context: LeaseContext & WaitParts
  readonly #pending = new LinkedSet<PendingClaim>()
  readonly #leases = new Set<HeldLease>()
  readonly #claimFactory: ClaimFactory
  readonly #restorer: LeaseRestorer
  readonly #inFlight = new InFlight()
  /** Leases that have not ended. */
  readonly #held = new InFlight()
  /** Functions that run under a lease. */
  readonly #running = new InFlight()
  readonly #deadlocks: DeadlockWatch | undefined
  readonly #lossWatch: LossWatch
  readonly #onListenFailed: (error: unknown) => void
  #closing: Promise<void> | undefined

  constructor(options: HolderOptions) {
    const { driver, clock, random, callTimeoutMs, events, thread } = options
    if (thread !== undefined && driver.reopen === undefined) {
      throw new UnsupportedError(`the ${driver.name} driver cannot be opened in a worker thread`)
    }
    this.#options = options
    this.holderId = options.holderId
    this.events = events
    this.#claimFactory = new ClaimFactory(options)
    this.#scheduler = new Scheduler(clock, random)
    this.#store = openStoreClient(driver, { clock, random, callTimeoutMs })
    this.#onListenFailed = (error) => events.emit('listenFailed', () => ({ error }))
    this.#store.wakeUps.onFailed.add(this.#onListenFailed)
    this.#store.lossHints.onFailed.add(this.#onListenFailed)
    this.#lossWatch = new LossWatch({
      scheduler: this.#scheduler,
      hints: this.#store.lossHints,
      leases: this.#leases,
      listens: options.watchesForcedReleases ?? true,
    })
    this.#store.onStolen.add(this.#onStolen)
    const parts = { clock, random, store: this.#store, scheduler: this.#scheduler, events, inFlight: this.#inFlight }
    this.#heartbeat = (thread ?? createHeartbeat)(parts)
    const { deadlockAfterMs } = options
    if (deadlockAfterMs !== undefined && showsWaiters(driver)) {
      const store = new StoreClient(driver, { clock, random, callTimeoutMs })
      this.#deadlocks = new DeadlockWatch({ ...parts, store }, deadlockAfterMs)
    }
    const ended = (lease: HeldLease): void => {
      if (this.#leases.delete(lease)) this.#held.end()
    }
    this.#context = { ...parts, heartbeat: this.#heartbeat, ended }
    this.#restorer = new LeaseRestorer({ ...parts, assertOpen: () => this.#assertOpen() })
  }

  get clock(): Clock {
    return this.#options.clock
  }

  get leases(): ReadonlySet<HeldLease> {
    return this.#leases
  }

  get capabilities(): Capabilities {
    return this.#store.driver.capabilities
  }

  /** For error messages. */
  get driverName(): string {
    return this.#store.driver.name
  }

  /** The longest time to live that the driver accepts. */
  get longestTtlMs(): number {
    return this.#store.driver.longestTtlMs ?? MAX_TTL_MS
  }

  /** Throws `UnsupportedError` if the driver cannot do this. */
  assertSupports(what: 'shared' | 'limit' | 'steal' | 'force'): void {
    if (!this.capabilities[what]) throw unsupported(this.#store.driver, what)
  }

  /**
   * Makes a claim, and resolves when it is granted or refused. Contention is a result, not an error. If no lease is
   * granted, the claim is withdrawn from the store.
   *
   * @throws `AbortedError`, `StoreError`, `ClosedError`, `OverloadError`, `DeadlockError`, `UnsupportedError`
   */
  acquire(request: ClaimRequest, onEnd?: (lease: HeldLease) => void): Promise<ClaimResult> {
    return new Promise((resolve, reject) => {
      this.claim(request, onEnd, (result) => {
        if (result instanceof Error) reject(result)
        else resolve(result)
      })
    })
  }

  /** As `acquire`, for a caller that has a promise of its own. What is wrong with the request is thrown. */
  claim(
    request: ClaimRequest,
    onEnd: ((lease: HeldLease) => void) | undefined,
    settle: (result: ClaimResult | HoldfastError) => void,
  ): void {
    this.#assertOpen()
    this.#assertSupported(request)
    this.assertRoom(1)
    const nested = isNested(request)
    const pending: PendingClaim = new PendingClaim(
      this.#context,
      this.#claimFactory.create(request),
      request,
      (end) => {
        this.#pending.delete(pending)
        if (nested) this.#deadlocks?.forget(pending)
        const result = end instanceof Error ? end : this.#resultOf(pending, end, request, onEnd)
        if (result instanceof Error) this.#emitFailed(pending, result)
        settle(result)
      },
    )
    this.#pending.add(pending)
    if (nested && request.waitMs > 0) this.#deadlocks?.watch(pending)
    // Nearly every claim passes here without a listener.
    if (this.events.hears('requested')) this.#emitRequested(pending, request)
    pending.start()
  }

  #emitRequested({ claim: { lockName, holderId, claimId } }: PendingClaim, { waitMs }: ClaimRequest): void {
    this.events.emit('requested', () => ({ lockName, holderId, claimId, waits: waitMs > 0 }))
  }

  #emitFailed(pending: PendingClaim, error: HoldfastError): void {
    const { lockName, holderId, claimId } = pending.claim
    this.events.emit('acquireFailed', () => ({ lockName, holderId, claimId, waitedMs: pending.waitedMs, error }))
  }

  /**
   * Checks that this many more claims are allowed. A group checks first, because it must not be requested in part.
   *
   * @throws `OverloadError`
   */
  assertRoom(claims: number): void {
    if (Math.max(this.#pending.size, this.#inFlight.count) + claims <= MAX_PENDING_CLAIMS) return
    throw new OverloadError(`an instance can have at most ${MAX_PENDING_CLAIMS} claims in flight or waiting`)
  }

  /**
   * Continues a lease that another process has handed over. See `LeaseRestorer.restore`.
   *
   * @throws `InvalidArgumentError` if this instance already holds the lease
   */
  async restore(handedOver: HandOver, request: RestoreRequest, onEnd?: (lease: HeldLease) => void): Promise<HeldLease> {
    this.#assertOpen()
    for (const { claim } of this.#leases) if (claim.claimId === handedOver.claimId) throw restoredTwice()
    return this.#restorer.restore(handedOver, request, (claim, granted, options) => {
      const lease = this.#hold(claim, granted, options, onEnd)
      this.events.emit('restored', () => lease.eventBase)
      return lease
    })
  }

  /** Forms a claim for `ask`: for a lease that has to outlive this process. All others use `acquire`. */
  createClaim(request: ClaimRequest): TrackedClaim {
    return this.#claimFactory.create(request)
  }

  /**
   * Sends a claim once. This holder neither renews nor releases the lease. After an error it is unknown whether the
   * store granted it: send the same claim again, which gets the same lease. It works while the holder is being closed,
   * for functions that are still running.
   */
  ask(claim: TrackedClaim): Promise<AcquireAnswer> {
    return new Promise((answered, failed) => this.#store.acquire(claim, { answered, failed }))
  }

  /** Ends a lease that this holder does not keep. True if the store had it. */
  release(lease: LeaseRef): Promise<boolean> {
    return new Promise((answered, failed) => this.#store.release(lease, { answered, failed }))
  }

  /**
   * Ends leases of other holders, with a driver that cannot steal. See `Driver.forceRelease`.
   *
   * @throws what the driver throws
   */
  async forceRelease(leases: readonly LeaseRecord[], options: ForceOptions): Promise<readonly (boolean | Error)[]> {
    this.#assertOpen()
    const { driver, lossHints } = this.#store
    if (driver.forceRelease === undefined) throw unsupported(driver, 'force')
    const late = (): StoreError => new StoreError(`the ${driver.name} store did not answer a forced release in time`)
    const answers = await this.#inFlight.track(
      withTimeout(this.clock, FORCE_TIMEOUT_MS, driver.forceRelease(leases, options), late),
    )
    // A holder in this process learns of it without a message of the store.
    const cause = new StoreError(`it was ended by ${options.by}`)
    const metadata = { forcedBy: options.by }
    leases.forEach(({ lockName, claimId, fencingToken }, at) => {
      if (answers[at] !== true) return
      this.events.emit('stolen', () => ({ lockName, holderId: this.holderId, claimId, fencingToken, metadata }))
      lossHints.add(claimId, cause)
    })
    return answers
  }

  /** Renews a lease of this holder. True if the store still has it. If not, the lease is lost. */
  async confirm(lease: HeldLease): Promise<boolean> {
    const answer = await this.#store.renew({ ...lease.ref, ttlMs: lease.ttlMs })
    if (answer === 'lost') lease.lose(NOT_IN_STORE)
    return answer !== 'lost'
  }

  inspect(query: InspectQuery): Promise<InspectPage> {
    this.#assertOpen()
    return this.#store.inspect(query)
  }

  /**
   * Acquires and releases a lock whose name is random: proof that the store is reachable, has what the driver needs and
   * accepts writes. Sends one request of each kind. Emits no event.
   *
   * @throws what the store reports, and `ClosedError`
   */
  async ping(): Promise<void> {
    this.#assertOpen()
    const ttlMs = Math.min(PING_TTL_MS, this.longestTtlMs)
    const lease = { heartbeat: false, minHoldMs: 0, maxHoldMs: ttlMs }
    const lockName = `ping:${this.#options.random.id()}`
    const claim = this.#claimFactory.create({ lockName, mode: 'exclusive', ttlMs, waitMs: 0, ...lease })
    await this.#inFlight.track(ping(this.#store, claim, this.#inFlight))
  }

  consume(request: RateRequest, receiver: Receiver<RateAnswer>): void {
    this.#assertOpen()
    this.#store.consume(request, receiver)
  }

  /** Tracks a function that runs under a lease of this holder. `drain` and `close` wait for it. */
  running<T>(work: Promise<T>): Promise<T> {
    return this.#running.track(work)
  }

  /**
   * Waits at most `drainMs` until every lease has ended and every running function has settled. Ends waiting claims
   * with `ClosedError`, except those made inside the callback of a lease. The caller must not start new work meanwhile.
   */
  async drain(drainMs: number): Promise<void> {
    this.#endPending((claim) => !claim.isInCallback)
    await settlesWithin(this.clock, drainMs, Promise.all([this.#held.idle(), this.#running.idle()]))
  }

  /**
   * Ends every pending claim, asks running functions to stop and waits at most `settleMs` for them, then releases every
   * lease. Resolves when no request is in flight any more.
   */
  close(settleMs = 0): Promise<void> {
    this.#closing ??= this.#close(settleMs)
    return this.#closing
  }

  /** For a `close` that takes too long: fails every request that the store has not answered, so that it can finish. */
  forceClose(): void {
    const error = new ClosedError('the instance was closed before the store had answered')
    failStoreClient(this.#store, error)
    this.#deadlocks?.failAll(error)
  }

  async #close(settleMs: number): Promise<void> {
    this.#endPending(() => true)
    if (this.#running.count > 0) {
      for (const lease of [...this.#leases]) lease.askToStop('its instance is being closed')
      await settlesWithin(this.clock, settleMs, this.#running.idle())
    }
    const cause = new ClosedError('the instance was closed')
    await Promise.allSettled([...this.#leases].map((lease) => lease.revoke('its instance was closed', cause)))
    await this.#inFlight.idle()
    await this.#heartbeat.close()
    this.#lossWatch.close()
    this.#store.wakeUps.onFailed.delete(this.#onListenFailed)
    this.#store.lossHints.onFailed.delete(this.#onListenFailed)
    this.#store.onStolen.delete(this.#onStolen)
    this.#scheduler.close()
    await this.#deadlocks?.close()
    await closeStoreClient(this.#store)
  }

  #endPending(matches: (claim: PendingClaim) => boolean): void {
    for (const pending of this.#pending.all()) {
      if (matches(pending)) pending.giveUp(new ClosedError('the instance was closed while the claim waited'))
    }
  }

  #resultOf(
    pending: PendingClaim,
    outcome: Outcome,
    request: ClaimRequest,
    onEnd: ((lease: HeldLease) => void) | undefined,
  ): ClaimResult | ClosedError {
    const { claim } = pending
    const { lockName, holderId, claimId } = claim
    if (!outcome.granted) {
      const { waitedMs } = pending
      this.events.emit('refused', () => {
        const holder = holderOf(outcome.refusal)
        return { lockName, holderId, claimId, waitedMs, ...(holder && { holder }) }
      })
      // A claim that does not wait reports 0: the round trip to the store is not waiting.
      return { granted: false, refusal: outcome.refusal, waitedMs: request.waitMs > 0 ? waitedMs : 0 }
    }
    if (this.#closing !== undefined) {
      const onFailure = (error: unknown): void =>
        this.events.emit('releaseFailed', () => ({ lockName, holderId, claimId, error }))
      void this.#inFlight.track(this.#store.withdraw(claim, onFailure))
      return new ClosedError('the instance was closed while the claim was granted')
    }
    const lease = this.#hold(claim, outcome, request, onEnd)
    this.events.emit('acquired', () => ({ ...lease.eventBase, waitedMs: pending.waitedMs }))
    if (claim.steal === true) this.#emitStolen(lease)
    return { granted: true, lease }
  }

  #hold(
    claim: TrackedClaim,
    granted: Granted,
    options: LeaseOptions,
    onEnd: ((lease: HeldLease) => void) | undefined,
  ): HeldLease {
    const lease = new HeldLease(this.#context, claim, granted, options, onEnd)
    this.#leases.add(lease)
    this.#held.begin()
    this.#lossWatch.begin(lease)
    return lease
  }

  /**
   * Earlier holders in this process lose their leases at once. Those in other processes learn of it from the store:
   * from a message, or from the answer to their next renewal.
   */
  #emitStolen(lease: HeldLease): void {
    const { metadata } = lease
    this.events.emit('stolen', () => ({ ...lease.eventBase, ...(metadata && { metadata }) }))
    for (const listener of this.#store.onStolen) listener(lease)
  }

  readonly #onStolen = (stealing: StealingLease): void => {
    for (const lease of [...this.#leases]) {
      const isOlder = lease.lockName === stealing.lockName && lease.fencingToken < stealing.fencingToken
      if (isOlder) lease.lose(`it was stolen by ${stealing.holderId}`, undefined, 'stolen')
    }
  }

  /** For leases that are acquired together, outside of any callback. */
  newChain(): Chain {
    return this.#claimFactory.newChain()
  }

  #assertOpen(): void {
    if (this.#closing !== undefined) throw new ClosedError('the instance is closed')
  }

  #assertSupported({ mode, limit, steal }: ClaimRequest): void {
    if (mode === 'shared') this.assertSupports('shared')
    if (limit !== undefined) this.assertSupports('limit')
    if (steal) this.assertSupports('steal')
  }
}

/**
 * Whether the store shows who waits: its own queue, or the sessions that a database server reports. Without that, no
 * deadlock can be found.
 */
const showsWaiters = ({ capabilities: { queue, expiry } }: Driver): boolean => queue || expiry === 'session'

/** Whether locks may be held while the claim waits. No other claim can be part of a deadlock. */
const isNested = ({ chain, sharedChain }: ClaimRequest): boolean => chain !== undefined || sharedChain !== undefined
