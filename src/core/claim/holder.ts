import { DeadlockWatch } from '../deadlock/watch.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Driver,
  ForceOptions,
  Grant,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  RateAnswer,
  RateRequest,
  Refusal,
} from '../driver.ts'
import {
  ClosedError,
  HoldfastError,
  InvalidArgumentError,
  OverloadError,
  StoreError,
  UnsupportedError,
} from '../errors.ts'
import type { Emitter } from '../events.ts'
import { type Few, listOf, withOne, withoutOne } from '../few.ts'
import { Chain, isIn, isOutermost } from '../lease/chain.ts'
import type { HandOver } from '../lease/hand-over.ts'
import { HeldLease, type LeaseContext, type LeaseOptions, type LeaseStart } from '../lease/held-lease.ts'
import type { LeaseUse } from '../lease/lease-use.ts'
import { createHeartbeat } from '../lease/local-renewer.ts'
import type { Heartbeat, HeartbeatParts } from '../lease/renewer.ts'
import { MAX_PENDING_CLAIMS, MAX_TTL_MS, PING_TTL_MS } from '../limits.ts'
import type { Receiver } from '../store/calls.ts'
import { InFlight } from '../store/in-flight.ts'
import { type OpenedStore, openStoreClient, type StoreClient, type TrackedClaim } from '../store/store-client.ts'
import type { ReportedLeases, Waiters } from '../store/waiters.ts'
import { holderPart } from '../store-answers.ts'
import { pause, settlesWithin, unlessAborted } from '../time/abort.ts'
import type { Clock, Timer } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import { Scheduler } from '../time/scheduler.ts'
import { unsupported } from '../unsupported.ts'
import { type ClaimRequest, PendingClaim, type PendingParts, type Refused } from './pending-claim.ts'
import { type RestoreParts, type RestoreRequest, restore } from './restore.ts'

export type { ClaimRequest, Refused } from './pending-claim.ts'
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
  /** Creates a heartbeat in a worker thread. Absent: the heartbeat runs in this thread. */
  readonly thread?: CreateHeartbeat
  /** A claim for longer than this is probably a mistake. Absent: none is. */
  readonly warnAboveMs?: number
}

export type CreateHeartbeat = (parts: HeartbeatParts) => Heartbeat

/**
 * Makes the claims of one instance, keeps their leases, and releases all of them on close. Every primitive uses one.
 */
export class Holder {
  readonly holderId: string
  readonly events: Emitter
  readonly leases: Leases
  readonly #opened: OpenedStore
  readonly #store: StoreClient
  readonly #options: HolderOptions
  readonly #scheduler: Scheduler
  readonly #heartbeat: Heartbeat
  readonly #context: LeaseContext & PendingParts
  /** Of the claims outside of any callback. */
  readonly #chain: Chain
  readonly #restoring: RestoreParts
  readonly #inFlight = new InFlight()
  /** Leases that have not ended, and functions that run under one. */
  readonly #working = new InFlight()
  /** Functions that run under a lease. */
  readonly #running = new InFlight()
  readonly #deadlocks: DeadlockWatch | undefined
  /** Claims that wait without a request in the store: they will extend a lease, when the store answers again. */
  #paused: Few<{ readonly isInCallback: boolean; readonly over: AbortController }>
  /** `draining`: only claims inside a callback may wait. `closing`: nothing is granted any more. */
  #stage: 'open' | 'draining' | 'closing' = 'open'
  #closing: Promise<void> | undefined
  /** Aborts when running functions have settled, or have had their time to. */
  readonly #stopSettling = new AbortController()
  readonly #settling: Timer[] = []

  constructor(options: HolderOptions) {
    const { driver, clock, random, callTimeoutMs, events, thread } = options
    if (thread !== undefined && driver.extensions?.reopen === undefined) {
      throw new UnsupportedError(`the ${driver.name} driver cannot be opened in a worker thread`)
    }
    this.#options = options
    this.holderId = options.holderId
    this.events = events
    this.#chain = Chain.ofInstance(random)
    this.#scheduler = new Scheduler(clock, random)
    const timing = { clock, random, callTimeoutMs }
    this.#opened = openStoreClient(driver, timing)
    this.#store = this.#opened.store
    this.leases = new Leases(this.#store.waiters)
    const parts = { clock, random, store: this.#store, scheduler: this.#scheduler, events, inFlight: this.#inFlight }
    this.#heartbeat = (thread ?? createHeartbeat)(parts)
    const { deadlockAfterMs } = options
    if (deadlockAfterMs !== undefined && showsWaiters(driver)) {
      this.#deadlocks = new DeadlockWatch(
        { ...parts, openStore: () => openStoreClient(driver, timing, 'markers') },
        deadlockAfterMs,
      )
    }
    const leaseEnded = (lease: HeldLease): void => {
      if (this.leases.delete(lease)) this.#working.end()
    }
    const whyNotWait = (pending: PendingClaim): ClosedError | undefined => this.#whyNotWait(pending)
    const notGranted: PendingParts['notGranted'] = (pending, end) => this.#notGranted(pending, end)
    const granted: PendingParts['granted'] = (pending, grant, start) => this.#granted(pending, grant, start)
    this.#context = { ...parts, heartbeat: this.#heartbeat, leaseEnded, whyNotWait, granted, notGranted }
    this.#restoring = {
      ...parts,
      assertOpen: () => this.assertOpen(),
      hold: (claim, { fencingToken, ttlMs, acquiredAtMs }, start, how) => {
        const lease = this.#hold(claim, { granted: true, fencingToken, ttlMs, acquiredAtMs }, start, how)
        // Before the event: a listener may notice that the lease has ended.
        const use = lease.use()
        // The functions around its claim run in another process.
        if (!isOutermost(claim.claimId)) use.leaveChain(this.newChain())
        this.events.heard('restored')?.(lease.eventBase)
        return use
      },
    }
  }

  get clock(): Clock {
    return this.#options.clock
  }

  get random(): Random {
    return this.#options.random
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
    return this.#store.driver.extensions?.longestTtlMs ?? MAX_TTL_MS
  }

  /** Throws `UnsupportedError` if the driver cannot do this. */
  assertSupports(what: 'shared' | 'limit' | 'force'): void {
    if (!this.capabilities[what]) throw unsupported(this.#store.driver, what)
  }

  /**
   * Makes a claim, and resolves with what `toResult` makes of its end, in the step of that end. Contention is a result,
   * not an error. If no lease is granted, the claim is withdrawn from the store.
   *
   * @throws `AbortedError`, `StoreError`, `ClosedError`, `OverloadError`, `DeadlockError`, `UnsupportedError`, and what
   * `toResult` throws
   */
  acquire<Result>(request: ClaimRequest, toResult: (outcome: LeaseUse | Refused) => Result): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.assertOpen()
      this.#assertSupported(request)
      this.assertRoom(1)
      const pending = new PendingClaim(this.#context, this.createClaim(request), request, (outcome) => {
        if (outcome instanceof HoldfastError) {
          reject(outcome)
          return
        }
        try {
          resolve(toResult(outcome))
        } catch (error) {
          reject(error)
        }
      })
      if (isWatched(request)) this.#deadlocks?.watch(pending)
      this.events.heard('requested')?.({ ...pending.eventBase, waits: pending.waits })
      if (this.#stage !== 'closing') pending.start()
      else pending.giveUp(new ClosedError('the instance was closed by a listener of `requested`'))
    })
  }

  /**
   * Checks that this many more claims are allowed. A group checks first, because it must not be requested in part.
   *
   * @throws `OverloadError`
   */
  assertRoom(claims: number): void {
    const waiting = this.#store.waiters.of(this.events).size
    if (Math.max(waiting, this.#inFlight.count) + claims <= MAX_PENDING_CLAIMS) return
    throw new OverloadError(`an instance can have at most ${MAX_PENDING_CLAIMS} claims in flight or waiting`)
  }

  /** Begins another use of a lease of this instance, for a function or for a caller: see `LeaseUse.runsFunction`. */
  join(lease: HeldLease, { chain = this.#chain }: ClaimRequest): LeaseUse {
    const use = lease.use()
    use.runsFunction = true
    if (!isIn(chain, lease.claim.claimId)) use.leaveChain(chain.newSharedChain())
    return use
  }

  /**
   * Waits before a claim that waits asks again.
   *
   * @throws `ClosedError` when it may not wait any more
   */
  async pause(ms: number, { signal, chain }: ClaimRequest): Promise<void> {
    const paused = { isInCallback: chain !== undefined, over: new AbortController() }
    this.#paused = withOne(this.#paused, paused)
    await pause(this.clock, ms, signal, paused.over.signal)
    this.#paused = withoutOne(this.#paused, paused)
    const error = this.#whyNotWait(paused)
    if (error !== undefined) throw error
  }

  /** Continues a lease that another process has handed over. See `restore`. */
  async restore(handedOver: HandOver, request: RestoreRequest): Promise<LeaseUse> {
    this.assertOpen()
    return restore(this.#restoring, handedOver, request)
  }

  /** Forms a claim. A primitive needs it only for `askOnce`; all others use `acquire`. */
  createClaim(request: ClaimRequest): TrackedClaim {
    const { lockName, mode, limit, permits = 1, ttlMs, metadata, patienceMs, forceUpTo, group } = request
    const { chain = this.#chain, sharedChain } = request
    const claim: { -readonly [Part in keyof TrackedClaim]: TrackedClaim[Part] } = {
      lockName,
      claimId: sharedChain?.nextMemberId() ?? chain.nextClaimId(),
      holderId: this.holderId,
      mode,
      permits,
      ttlMs,
      waiterTtlMs: patienceMs > 0 ? this.#options.waiterTtlMs : 0,
      abandoned: false,
    }
    if (limit !== undefined) claim.limit = limit
    if (metadata !== undefined) claim.metadata = metadata
    if (forceUpTo !== undefined) claim.forceUpTo = forceUpTo
    if (group !== undefined) claim.group = group
    return claim
  }

  /**
   * Sends a claim once, for a lease that has to outlive this process: this holder neither renews nor releases it. After
   * an error it is unknown whether the store granted it: send the same claim again, which gets the same lease. It works
   * while the holder is being closed, for functions that are still running.
   */
  askOnce(claim: TrackedClaim): Promise<AcquireAnswer> {
    return this.#store.claims.ask(claim)
  }

  /** Ends a lease that this holder does not keep. True if the store had it. */
  release(lease: LeaseRef): Promise<boolean> {
    return this.#store.releases.ask(lease)
  }

  /**
   * Ends leases of other holders, with a driver that has no forced claims. See `DriverExtensions.forceRelease`.
   *
   * @throws what the driver throws
   */
  async forceRelease(leases: readonly LeaseRecord[], options: ForceOptions): Promise<readonly (boolean | Error)[]> {
    this.assertOpen()
    const answers = await this.#inFlight.track(this.#store.forceRelease(leases, options))
    // A holder that shares the store client learns of it without a message of the store.
    const cause = new StoreError(`it was ended by ${options.by}`)
    const metadata = { forcedBy: options.by }
    leases.forEach(({ lockName, claimId, fencingToken }, at) => {
      if (answers[at] !== true) return
      this.events.heard('forceReleased')?.({ lockName, holderId: this.holderId, claimId, fencingToken, metadata })
      this.#store.waiters.leaseOf(claimId)?.lossReported(cause)
    })
    return answers
  }

  inspect(query: InspectQuery): Promise<InspectPage> {
    this.assertOpen()
    return this.#store.inspect(query)
  }

  /**
   * Acquires and releases a lock whose name is random: proof that the store is reachable, has what the driver needs and
   * accepts writes. Sends one request of each kind. Emits no event.
   *
   * @throws what the store reports, and `ClosedError`
   */
  async ping(): Promise<void> {
    this.assertOpen()
    const ttlMs = Math.min(PING_TTL_MS, this.longestTtlMs)
    const lease = { heartbeat: false, minHoldMs: 0, maxHoldMs: ttlMs }
    const lockName = `ping:${this.#options.random.id()}`
    const claim = this.createClaim({ lockName, mode: 'exclusive', ttlMs, patienceMs: 0, ...lease })
    await this.#inFlight.track(this.#ping(claim))
  }

  async #ping(claim: TrackedClaim): Promise<void> {
    const { name } = this.#store.driver
    try {
      const answer = await this.askOnce(claim)
      if (!answer.granted) throw new StoreError(`the ${name} store refused a claim on an unused lock name`)
      const { lockName, claimId } = claim
      const wasHeld = await this.release({ lockName, claimId, fencingToken: answer.fencingToken })
      if (!wasHeld) throw new StoreError(`the ${name} store lost a lease that it had just granted`)
    } catch (error) {
      // A permanent failure, such as a wrong password, has written nothing.
      const mayBeStored = !(error instanceof StoreError) || error.retryable
      if (mayBeStored) void this.#inFlight.track(this.#store.withdraw(claim, () => undefined))
      throw error
    }
  }

  consume(request: RateRequest, receiver: Receiver<RateAnswer>): void {
    this.assertOpen()
    this.#store.rateSteps.add(request, receiver)
  }

  /** Tracks a function that runs under a lease of this holder. `drain` and `close` wait for it. */
  running<T>(work: Promise<T>): Promise<T> {
    return this.#working.track(this.#running.track(work))
  }

  /**
   * Waits at most `drainMs` until every lease has ended and every running function has settled. Ends waiting claims
   * with `ClosedError`, except those made inside the callback of a lease. The caller must not start new work meanwhile.
   */
  async drain(drainMs: number): Promise<void> {
    if (this.#stage === 'open') this.#stage = 'draining'
    this.#endWaiting()
    await settlesWithin(this.clock, drainMs, this.#working.idle())
  }

  /**
   * Ends every pending claim, asks running functions to stop and waits at most `settleMs` for them, then releases every
   * lease. Resolves when no request is in flight any more.
   */
  close(settleMs = 0): Promise<void> {
    this.#stage = 'closing'
    // A second call may leave the functions less time.
    if (!this.#stopSettling.signal.aborted) {
      this.#settling.push(this.clock.setTimer(() => this.#stopSettling.abort(), settleMs, true))
    }
    this.#closing ??= this.#close()
    return this.#closing
  }

  /** For a `close` that takes too long: fails every request that the store has not answered, so that it can finish. */
  forceClose(): void {
    const error = new ClosedError('the instance was closed before the store had answered')
    this.#opened.giveUp(error)
    this.#deadlocks?.giveUp(error)
    // It settles what waits for a thread that hangs.
    void this.#heartbeat.close()
  }

  async #close(): Promise<void> {
    this.#endWaiting()
    if (this.#running.count > 0) {
      for (const lease of this.leases.all()) lease.askToStop('its instance is being closed')
      const settled = unlessAborted(this.#running.idle(), this.#stopSettling.signal, 'waiting for functions')
      await settled.catch(() => undefined)
    }
    for (const timer of this.#settling) timer.cancel()
    this.#stopSettling.abort()
    const cause = new ClosedError('the instance was closed')
    const ends = this.leases.all().map((lease) => lease.endAll('its instance was closed', () => false, cause))
    await Promise.allSettled(ends)
    await this.#inFlight.idle()
    await this.#heartbeat.close()
    this.#scheduler.close()
    await this.#deadlocks?.close()
    await this.#opened.close()
  }

  #endWaiting(): void {
    for (const waiter of [...this.#store.waiters.of(this.events)]) {
      const pending = waiter as PendingClaim
      const error = this.#whyNotWait(pending)
      if (error !== undefined) pending.giveUp(error)
    }
    for (const paused of listOf(this.#paused)) if (this.#whyNotWait(paused) !== undefined) paused.over.abort()
  }

  #whyNotWait({ isInCallback }: Pick<PendingClaim, 'isInCallback'>): ClosedError | undefined {
    const mayWait = this.#stage === 'open' || (this.#stage === 'draining' && isInCallback)
    return mayWait ? undefined : new ClosedError('the instance was closed while the claim waited')
  }

  #notGranted(pending: PendingClaim, end: Refusal | HoldfastError): void {
    if (isWatched(pending.request)) this.#deadlocks?.forget(pending)
    if (end instanceof HoldfastError) {
      this.events.heard('acquireFailed')?.({ ...pending.eventBase, waitedMs: pending.waitedMs, error: end })
      pending.settle(end)
      return
    }
    const { eventBase, waitedMs } = pending
    this.events.heard('refused')?.({ ...eventBase, waitedMs, ...holderPart(end) })
    pending.settle({ refusal: end, waitedMs: pending.waits ? waitedMs : 0 })
  }

  #granted(pending: PendingClaim, grant: Grant, start: LeaseStart): void {
    const { claim, request } = pending
    if (this.#stage === 'closing') {
      const onFailure = (error: unknown): void => this.events.heard('releaseFailed')?.({ ...pending.eventBase, error })
      void this.#inFlight.track(this.#store.withdraw(claim, onFailure))
      this.#notGranted(pending, new ClosedError('the instance was closed while the claim was granted'))
      return
    }
    if (isWatched(request)) this.#deadlocks?.forget(pending)
    const lease = this.#hold(claim, grant, start, request)
    const use = lease.use()
    this.events.heard('acquired')?.({ ...lease.eventBase, waitedMs: pending.waitedMs })
    if (claim.forceUpTo !== undefined) this.#forced(lease)
    pending.settle(use)
  }

  #hold(claim: TrackedClaim, grant: Grant, start: LeaseStart, options: LeaseOptions): HeldLease {
    const lease = new HeldLease(this.#context, claim, grant, start, options)
    this.leases.add(lease)
    this.#working.begin()
    return lease
  }

  /**
   * A claim of this instance has ended other leases. Holders that share its store client lose them at once. All others
   * learn of it from the store: from a message, or from the answer to their next renewal.
   */
  #forced(lease: HeldLease): void {
    const { metadata } = lease.claim
    this.events.heard('forceReleased')?.({ ...lease.eventBase, ...(metadata && { metadata }) })
    const loss = { kind: 'force-released', message: `it was force-released by ${lease.holderId}` } as const
    for (const leases of [...this.#store.waiters.leases]) {
      for (const other of leases.named(lease.lockName)) if (other.fencingToken < lease.fencingToken) other.lose(loss)
    }
  }

  /** For leases that are acquired together, outside of any callback. */
  newChain(): Chain {
    return this.#chain.newSharedChain()
  }

  /** Throws `ClosedError` when nothing is granted any more. */
  assertOpen(): void {
    if (this.#stage === 'closing') throw new ClosedError('the instance is closed')
  }

  #assertSupported({ lockName, ttlMs, mode, limit, forceUpTo, minHoldMs }: ClaimRequest): void {
    const { warnAboveMs = Number.POSITIVE_INFINITY } = this.#options
    if (ttlMs > warnAboveMs) warnOfLongTtl(lockName, ttlMs)
    if (minHoldMs > this.longestTtlMs) {
      const rule = `at most ${this.longestTtlMs / 1_000}, the longest that the ${this.driverName} driver keeps anything`
      throw new InvalidArgumentError('minHoldSeconds', minHoldMs / 1_000, rule)
    }
    if (mode === 'shared') this.assertSupports('shared')
    if (limit !== undefined) this.assertSupports('limit')
    if (forceUpTo !== undefined && this.capabilities.force !== 'claim') throw unsupported(this.#store.driver, 'force')
  }
}

let hasWarnedOfLongTtl = false

/** Other libraries count in milliseconds. A crash would then block a lock for hours. */
function warnOfLongTtl(lockName: string, ttlMs: number): void {
  if (hasWarnedOfLongTtl) return
  hasWarnedOfLongTtl = true
  const hours = Math.round(ttlMs / 360_000) / 10
  const message =
    `the lease on "${lockName}" has a timeoutSeconds of ${ttlMs / 1_000}: if its process dies, the lock stays held ` +
    `for ${hours} hours. Is that a number of milliseconds? If not, set the option warnAboveSeconds of the instance. ` +
    'A heartbeat keeps a lock for longer than its timeoutSeconds'
  process.emitWarning(message, { type: 'HoldfastWarning', code: 'HOLDFAST_LONG_TTL' })
}

/**
 * Whether the store shows who waits: its own queue, or the sessions that a database server reports. Without that, no
 * deadlock can be found.
 */
const showsWaiters = ({ capabilities: { queue, expiry } }: Driver): boolean => queue || expiry === 'session'

/** Whether the claim waits while locks may be held. No other claim can be part of a deadlock. */
const isWatched = ({ chain, sharedChain, patienceMs }: ClaimRequest): boolean =>
  patienceMs > 0 && (chain !== undefined || sharedChain !== undefined)

/**
 * The leases of an instance, in the order of their grants. They are a linked list: a `Map` grows anew while its members
 * come and go, and what was removed stays reachable from its former tables until the next full garbage collection. With
 * a map, 64 pairs at once on memory take 70 % longer.
 */
class Leases implements ReportedLeases {
  #first: HeldLease | undefined
  #last: HeldLease | undefined
  /** Made when a name is asked for. Most callers have the lease itself. */
  #byName: Map<string, Few<HeldLease>> | undefined
  readonly #waiters: Waiters

  constructor(waiters: Waiters) {
    this.#waiters = waiters
  }

  add(lease: HeldLease): void {
    this.#waiters.leaseBegan(lease)
    if (this.#last === undefined) {
      this.#first = lease
      this.#waiters.leases.add(this)
    } else {
      this.#last.after = lease
      lease.before = this.#last
    }
    this.#last = lease
    this.#byName?.set(lease.lockName, withOne(this.#byName.get(lease.lockName), lease))
  }

  /** Whether it was there. */
  delete(lease: HeldLease): boolean {
    const { lockName, before, after } = lease
    if (before === undefined && this.#first !== lease) return false
    this.#waiters.leaseEnded(lease)
    lease.before = undefined
    lease.after = undefined
    if (before === undefined) this.#first = after
    else before.after = after
    if (after === undefined) this.#last = before
    else after.before = before
    if (this.#first === undefined) this.#waiters.leases.delete(this)
    const left = withoutOne(this.#byName?.get(lockName), lease)
    if (left === undefined) this.#byName?.delete(lockName)
    else this.#byName?.set(lockName, left)
    return true
  }

  /** A semaphore may have many of one name. */
  named(lockName: string): readonly HeldLease[] {
    this.#byName ??= this.all().reduce(
      (known, lease) => known.set(lease.lockName, withOne(known.get(lease.lockName), lease)),
      new Map<string, Few<HeldLease>>(),
    )
    return listOf(this.#byName.get(lockName))
  }

  /** The newest lease on this name. Not that of a forced release, which lasts for a moment. */
  on(lockName: string): HeldLease | undefined {
    return this.named(lockName).findLast(({ claim }) => claim.forceUpTo === undefined)
  }

  all(): HeldLease[] {
    const all: HeldLease[] = []
    for (let lease = this.#first; lease !== undefined; lease = lease.after) all.push(lease)
    return all
  }
}
