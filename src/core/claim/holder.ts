import { DeadlockWatch } from '../deadlock/watch.ts'
import type {
  AcquireAnswer,
  Driver,
  InspectPage,
  InspectQuery,
  Metadata,
  RateAnswer,
  RateRequest,
  Refusal,
} from '../driver.ts'
import { ClosedError, LeaseLostError, OverloadError, StoreError, UnsupportedError } from '../errors.ts'
import type { Emitter } from '../events.ts'
import { trustedUntil } from '../lease/deadline.ts'
import type { Granted } from '../lease/granted.ts'
import { type HandOver, Restores, restoredTwice } from '../lease/hand-over.ts'
import { HeldLease, type LeaseContext, type LeaseOptions } from '../lease/lease.ts'
import { createHeartbeat, type Heartbeat, type HeartbeatParts, NOT_IN_STORE } from '../lease/renewer.ts'
import { MAX_PENDING_CLAIMS, PING_TTL_MS } from '../limits.ts'
import type { Receiver } from '../store/batch.ts'
import { InFlight } from '../store/in-flight.ts'
import {
  closeStoreClient,
  giveUpStoreClient,
  openStoreClient,
  StoreClient,
  type Thief,
  type TrackedClaim,
} from '../store/store-client.ts'
import { type Clock, isPast } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import { Scheduler } from '../time/scheduler.ts'
import { settlesWithin } from '../time/timeout.ts'
import { unsupported } from '../unsupported.ts'
import { Chain, claimPart } from './chain.ts'
import { type ClaimWatcher, type Outcome, PendingClaim, type WaitParts } from './pending-claim.ts'

export interface HolderOptions {
  readonly driver: Driver
  readonly holderId: string
  readonly clock: Clock
  readonly random: Random
  readonly callTimeoutMs: number
  readonly waiterTtlMs: number
  readonly events: Emitter
  /** After how long a claim that waits in a chain looks for a deadlock. Absent: never. */
  readonly deadlockAfterMs?: number | undefined
  /** Makes a heartbeat that runs in a worker thread. Absent: it runs here. */
  readonly thread?: CreateHeartbeat
}

export type CreateHeartbeat = (parts: HeartbeatParts) => Heartbeat

/** A claim as a primitive makes it; the arguments have been checked. */
export interface ClaimRequest extends LeaseOptions {
  readonly lockName: string
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number | undefined
  readonly permits?: number | undefined
  readonly ttlMs: number
  readonly metadata?: Metadata | undefined
  /** How long to wait for it. 0: answer at once. */
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  /** Takes the lock from whoever holds it. */
  readonly steal?: true | undefined
  /** The largest fencing token that it may take it from. */
  readonly stealUpTo?: number | undefined
  /** Granted with all claims of the same group, which are made in the same step, or not at all. The driver has `groups`. */
  readonly group?: string | undefined
  readonly watcher?: ClaimWatcher | undefined
}

/** How a lease goes on that was handed over. */
export interface RestoreRequest {
  readonly heartbeat: boolean
  /** As before if not said. */
  readonly ttlMs?: number
}

export type ClaimResult =
  | { readonly granted: true; readonly lease: HeldLease }
  | { readonly granted: false; readonly refusal: Refusal | undefined; readonly waitedMs: number }

/** Who holds leases: what lies beneath every primitive. It makes claims, keeps what it is granted, and gives everything back. */
export class Holder {
  readonly holderId: string
  readonly events: Emitter
  readonly store: StoreClient
  readonly #options: HolderOptions
  readonly #scheduler: Scheduler
  readonly #heartbeat: Heartbeat
  readonly #context: LeaseContext & WaitParts
  readonly #pending = new Map<PendingClaim, ClaimRequest>()
  readonly #leases = new Set<HeldLease>()
  readonly #restores = new Restores()
  readonly #inFlight = new InFlight()
  /** Leases that have not ended, and functions that run under them. */
  readonly #held = new InFlight()
  readonly #running = new InFlight()
  readonly #deadlocks: DeadlockWatch | undefined
  readonly #claimPrefix: string
  readonly #onListenFailed: (error: unknown) => void
  #claims = 0
  #closing: Promise<void> | undefined

  constructor(options: HolderOptions) {
    const { driver, clock, random, callTimeoutMs, events, thread } = options
    if (thread !== undefined && driver.reopen === undefined) {
      throw new UnsupportedError(`the ${driver.name} driver cannot be opened in a worker thread`)
    }
    this.#options = options
    this.holderId = options.holderId
    this.events = events
    this.#claimPrefix = random.id().slice(0, PREFIX_LENGTH)
    this.#scheduler = new Scheduler(clock, random)
    this.store = openStoreClient(driver, { clock, random, callTimeoutMs })
    this.#onListenFailed = (error) => events.emit('listenFailed', () => ({ error }))
    this.store.wakeUps.onFailed.add(this.#onListenFailed)
    this.store.onStolen.add(this.#onStolen)
    const parts = { clock, random, store: this.store, scheduler: this.#scheduler, events, inFlight: this.#inFlight }
    this.#heartbeat = (thread ?? createHeartbeat)(parts)
    const { deadlockAfterMs } = options
    if (deadlockAfterMs !== undefined && showsWaiters(driver)) {
      const store = new StoreClient(driver, { clock, random, callTimeoutMs })
      this.#deadlocks = new DeadlockWatch({ ...parts, store }, deadlockAfterMs)
    }
    this.#context = { ...parts, heartbeat: this.#heartbeat }
  }

  get clock(): Clock {
    return this.#options.clock
  }

  get leases(): ReadonlySet<HeldLease> {
    return this.#leases
  }

  /**
   * Rejects with `AbortedError`, `StoreError`, `ClosedError`, `OverloadError`, `DeadlockError` or `UnsupportedError`. Whenever it does not end in a lease,
   * what the store may have kept of the claim is taken back.
   */
  acquire(request: ClaimRequest, onEnd?: (lease: HeldLease) => void): Promise<ClaimResult> {
    return new Promise((resolve, reject) => {
      this.#assertOpen()
      this.#assertSupported(request)
      this.assertRoom(1)
      const pending: PendingClaim = new PendingClaim(this.#context, this.#claim(request), request, (end) => {
        this.#pending.delete(pending)
        if (isNested(request)) this.#deadlocks?.forget(pending)
        const result = end instanceof Error ? end : this.#resultOf(pending, end, request, onEnd)
        if (result instanceof Error) reject(result)
        else resolve(result)
      })
      this.#pending.set(pending, request)
      if (isNested(request) && request.waitMs > 0) this.#deadlocks?.watch(pending)
      pending.start()
    })
  }

  /** Throws `OverloadError` if so many claims more are too many. For a group, which must not be asked for in part. */
  assertRoom(claims: number): void {
    if (Math.max(this.#pending.size, this.#inFlight.count) + claims <= MAX_PENDING_CLAIMS) return
    throw new OverloadError(`at most ${MAX_PENDING_CLAIMS} claims can be under way in one instance`)
  }

  /**
   * Goes on with a lease that another process has handed over, if the store still has it. Rejects with `LeaseLostError` if not, and with what `acquire` rejects with.
   * Then the lease stays as it is until its time is up: the text can be restored again.
   */
  async restore(handedOver: HandOver, options: RestoreRequest, onEnd?: (lease: HeldLease) => void): Promise<HeldLease> {
    this.#assertOpen()
    const { driver } = this.store
    if (driver.capabilities.expiry === 'session') {
      const reason = 'a lease lasts as long as the connection that took it'
      throw new UnsupportedError(`the ${driver.name} driver cannot restore a lease: ${reason}`)
    }
    const { claimId } = handedOver
    // Before anything is sent.
    for (const { claim } of this.#leases) if (claim.claimId === claimId) throw restoredTwice()
    this.#restores.begin(claimId)
    try {
      return await this.#restore(handedOver, options, onEnd)
    } finally {
      this.#restores.end(claimId)
    }
  }

  async #restore(
    handedOver: HandOver,
    options: RestoreRequest,
    onEnd: ((lease: HeldLease) => void) | undefined,
  ): Promise<HeldLease> {
    const { store, clock } = this
    const { lockName, claimId, fencingToken, holderId, metadata, acquiredAtMs, storeAtMs } = handedOver
    const { minHoldMs = 0, maxHoldMs = Number.POSITIVE_INFINITY } = handedOver
    const { heartbeat, ttlMs = handedOver.ttlMs } = options
    const sent = clock.now()
    const renewal = this.#inFlight.track(store.renew({ lockName, claimId, fencingToken, ttlMs }))
    const answer = await renewal.catch((error: unknown) => {
      this.#restores.unanswered(claimId, ttlMs)
      throw error
    })
    const answered = clock.now()
    this.#assertOpen()
    if (answer !== 'renewed') {
      this.#restores.forget(claimId)
      throw new LeaseLostError(lockName, fencingToken, NOT_IN_STORE)
    }
    // A renewal of the first holder or of an earlier restore whose answer never came may arrive after this one.
    const shortestMs = Math.min(
      handedOver.unansweredMs ?? Number.POSITIVE_INFINITY,
      this.#restores.unansweredMs(claimId),
    )
    const unansweredMs = Number.isFinite(shortestMs) ? shortestMs : undefined
    const grantedMs = Math.min(ttlMs, shortestMs)
    if (isPast(trustedUntil(sent, grantedMs), answered)) {
      throw new StoreError(`the answer to restoring "${lockName}" came after the lease could have ended`)
    }
    const plain = { mode: 'exclusive', permits: 1, waitMs: 0, over: false } as const
    const claim: TrackedClaim = { lockName, claimId, holderId, ttlMs, ...plain, ...(metadata && { metadata }) }
    const grant = { granted: true, fencingToken, ttlMs: grantedMs, acquiredAtMs } as const
    const outcome = { granted: true, grant, sent, answered, unansweredMs, storeAtMs } as const
    const lease = this.#hold(claim, outcome, { heartbeat, minHoldMs, maxHoldMs }, onEnd)
    this.#restores.forget(claimId)
    this.events.emit('restored', () => lease.eventBase)
    return lease
  }

  inspect(query: InspectQuery): Promise<InspectPage> {
    this.#assertOpen()
    return this.store.inspect(query)
  }

  /**
   * Takes a lock whose name is new and gives it back: proof that the store can be reached, has what the driver needs and takes writes. Asks once, and rejects with
   * what the store says. No event tells of it.
   */
  async ping(): Promise<void> {
    this.#assertOpen()
    const { driver } = this.store
    const ttlMs = Math.min(PING_TTL_MS, driver.longestTtlMs ?? PING_TTL_MS)
    const lease = { heartbeat: false, minHoldMs: 0, maxHoldMs: ttlMs }
    const lockName = `ping:${this.#options.random.id()}`
    const claim = this.#claim({ lockName, mode: 'exclusive', ttlMs, waitMs: 0, ...lease })
    await this.#inFlight.track(this.#ping(claim))
  }

  async #ping(claim: TrackedClaim): Promise<void> {
    const { store } = this
    try {
      const answer = await new Promise<AcquireAnswer>((answered, failed) => store.acquire(claim, { answered, failed }))
      if (!answer.granted) throw new StoreError(`the ${store.driver.name} store refused a lock that was free`)
      const ref = { lockName: claim.lockName, claimId: claim.claimId, fencingToken: answer.fencingToken }
      const wasHeld = await new Promise<boolean>((answered, failed) => store.release(ref, { answered, failed }))
      if (!wasHeld) throw new StoreError(`the ${store.driver.name} store did not keep a lock that it had granted`)
    } catch (error) {
      // What can never work has written nothing.
      const mayBeThere = !(error instanceof StoreError) || error.retryable
      if (mayBeThere) void this.#inFlight.track(store.withdraw(claim, () => undefined))
      throw error
    }
  }

  consume(request: RateRequest, receiver: Receiver<RateAnswer>): void {
    this.#assertOpen()
    this.store.consume(request, receiver)
  }

  consumeAtOnce(request: RateRequest): RateAnswer | Promise<RateAnswer> | undefined {
    this.#assertOpen()
    return this.store.consumeAtOnce(request)
  }

  /** Counts a function that runs under a lease of this holder, until it has settled: closing waits for it. */
  running<T>(work: Promise<T>): Promise<T> {
    return this.#running.track(work)
  }

  /**
   * Lets work that has begun come to its end, for so long at the most. What waits is given up, unless running work waits for it. It is for whoever calls this to
   * make no further claims on behalf of new work.
   */
  async drain(drainMs: number): Promise<void> {
    this.#giveUp(({ chain }) => chain === undefined)
    await settlesWithin(this.clock, drainMs, Promise.all([this.#held.idle(), this.#running.idle()]))
  }

  /**
   * Gives up every claim, asks running functions to stop, gives them `settleMs` for that, releases every lease, and resolves when nothing of it is under way any
   * more.
   */
  close(settleMs = 0): Promise<void> {
    this.#closing ??= this.#close(settleMs)
    return this.#closing
  }

  /** Closing has taken too long: what the store has not answered by now fails, so that closing comes to its end. */
  hurry(): void {
    const error = new ClosedError('the instance was closed before the store had answered')
    giveUpStoreClient(this.store, error)
    this.#deadlocks?.giveUp(error)
  }

  async #close(settleMs: number): Promise<void> {
    this.#giveUp(() => true)
    if (this.#running.count > 0) {
      for (const lease of [...this.#leases]) lease.askToStop('its instance is being closed')
      await settlesWithin(this.clock, settleMs, this.#running.idle())
    }
    const cause = new ClosedError('the instance was closed')
    await Promise.allSettled([...this.#leases].map((lease) => lease.revoke('its instance was closed', cause)))
    await this.#inFlight.idle()
    await this.#heartbeat.close()
    this.store.wakeUps.onFailed.delete(this.#onListenFailed)
    this.store.onStolen.delete(this.#onStolen)
    this.#scheduler.close()
    await this.#deadlocks?.close()
    await closeStoreClient(this.store)
  }

  #giveUp(isMeant: (request: ClaimRequest) => boolean): void {
    for (const [pending, request] of [...this.#pending]) {
      if (isMeant(request)) pending.giveUp(new ClosedError('the instance was closed while the claim waited'))
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
      this.events.emit('refused', () => ({ lockName, holderId, claimId, waitedMs }))
      // The way to the store is no waiting.
      return { granted: false, refusal: outcome.refusal, waitedMs: request.waitMs > 0 ? waitedMs : 0 }
    }
    if (this.#closing !== undefined) {
      const tell = (error: unknown): void =>
        this.events.emit('releaseFailed', () => ({ lockName, holderId, claimId, error }))
      void this.#inFlight.track(this.store.withdraw(claim, tell))
      return new ClosedError('the instance was closed while the claim was granted')
    }
    const lease = this.#hold(claim, outcome, request, onEnd)
    this.events.emit('acquired', () => ({ ...lease.eventBase, waitedMs: pending.waitedMs }))
    if (claim.steal === true) this.#tellStolen(lease)
    return { granted: true, lease }
  }

  #hold(
    claim: TrackedClaim,
    granted: Granted,
    options: LeaseOptions,
    onEnd: ((lease: HeldLease) => void) | undefined,
  ): HeldLease {
    const lease = new HeldLease(this.#context, claim, granted, options, (ended) => {
      if (this.#leases.delete(ended)) this.#held.end()
      onEnd?.(ended)
    })
    this.#leases.add(lease)
    this.#held.begin()
    return lease
  }

  /** Those of this process learn at once that the lock is no longer theirs; others by the store's word, or with their next renewal. */
  #tellStolen(lease: HeldLease): void {
    const { metadata } = lease
    this.events.emit('stolen', () => ({ ...lease.eventBase, ...(metadata && { metadata }) }))
    for (const tell of this.store.onStolen) tell(lease)
  }

  readonly #onStolen = (thief: Thief): void => {
    for (const lease of [...this.#leases]) {
      const isOlder = lease.lockName === thief.lockName && lease.fencingToken < thief.fencingToken
      if (isOlder) lease.lose(`it was stolen by ${thief.holderId}`)
    }
  }

  /** For leases that are taken together, outside of any callback. */
  newChain(): Chain {
    return new Chain(this.#nextClaimId(), this.#options.random)
  }

  #nextClaimId(): string {
    this.#claims += 1
    return `${this.#claimPrefix}.${claimPart(this.#claims, this.#options.random)}`
  }

  #claim(request: ClaimRequest): TrackedClaim {
    const {
      lockName,
      mode,
      limit,
      permits = 1,
      ttlMs,
      metadata,
      waitMs,
      chain,
      together,
      steal,
      stealUpTo,
      group,
    } = request
    const claim: { -readonly [Part in keyof TrackedClaim]: TrackedClaim[Part] } = {
      lockName,
      claimId: together?.nextMemberId() ?? chain?.nextClaimId() ?? this.#nextClaimId(),
      holderId: this.holderId,
      mode,
      permits,
      ttlMs,
      waitMs: waitMs > 0 ? this.#options.waiterTtlMs : 0,
      over: false,
    }
    if (limit !== undefined) claim.limit = limit
    if (metadata !== undefined) claim.metadata = metadata
    if (steal) claim.steal = true
    if (stealUpTo !== undefined) claim.stealUpTo = stealUpTo
    if (group !== undefined) claim.group = group
    return claim
  }

  #assertOpen(): void {
    if (this.#closing !== undefined) throw new ClosedError('the instance is closed')
  }

  #assertSupported({ mode, limit, steal }: ClaimRequest): void {
    const { driver } = this.store
    if (mode === 'shared' && !driver.capabilities.shared) throw unsupported(driver, 'shared')
    if (limit !== undefined && !driver.capabilities.limit) throw unsupported(driver, 'limit')
    if (steal && !driver.capabilities.steal) throw unsupported(driver, 'steal')
  }
}

/** Elsewhere a look could find nothing: no one can tell who waits. The server shows who waits for a session's lock. */
const showsWaiters = ({ capabilities: { queue, expiry } }: Driver): boolean => queue || expiry === 'session'

/** Whether something may be held while it waits: nothing else can be in a deadlock. */
const isNested = ({ chain, together }: ClaimRequest): boolean => chain !== undefined || together !== undefined

/** The prefix groups the claims of one instance, so that they can be put in order. The claim's own part is unique. */
const PREFIX_LENGTH = 6
