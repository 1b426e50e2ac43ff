import type { AcquireAnswer, Grant, IsProvedBy, Metadata, Refusal } from '../driver.ts'
import { AbortedError, type HoldfastError, isOutage, StoreError } from '../errors.ts'
import type { ClaimEvent, Emitter } from '../events.ts'
import { trustedUntil } from '../lease/deadline.ts'
import type { LeaseOptions, LeaseStart } from '../lease/held-lease.ts'
import type { LeaseUse } from '../lease/lease-use.ts'
import { MAX_WITHDRAWAL_MS } from '../limits.ts'
import type { Receiver, SentCall } from '../store/calls.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import type { NameQueue, Waiter } from '../store/waiters.ts'
import { holderPart, isGrant, trimmed } from '../store-answers.ts'
import { type Abortable, unwatchAbort, watchAbort } from '../time/abort.ts'
import { afterReading, dueAtMs, type Instant } from '../time/clock.ts'
import type { SchedulerEntry, Task } from '../time/scheduler.ts'
import { pollAtMs, retryAtMs, type TimingParts } from './request-timing.ts'

export interface PendingParts extends TimingParts {
  readonly store: StoreClient
  readonly events: Emitter
  readonly inFlight: InFlight
  /** Why a claim may not wait: its instance is being closed. */
  whyNotWait(pending: PendingClaim): HoldfastError | undefined
  /** One of these two is called for each claim, once. */
  granted(pending: PendingClaim, grant: Grant, start: LeaseStart): void
  /** `end`: the last refusal, which another waiter of this process may have got, or the error. */
  notGranted(pending: PendingClaim, end: Refusal | HoldfastError): void
}

/** A claim as a primitive describes it. The arguments have been validated. */
export interface ClaimRequest extends LeaseOptions {
  readonly lockName: string
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number | undefined
  /** @default 1 */
  readonly permits?: number | undefined
  readonly ttlMs: number
  readonly metadata?: Metadata | undefined
  /** Takes the lock from its current holders whose fencing tokens are at most this. */
  readonly forceUpTo?: number | undefined
  /**
   * All claims of one group are granted in one step, or none is. They must be made in the same synchronous step. Needs
   * a driver with `groups`.
   */
  readonly group?: string | undefined
  /** How long the caller waits for the lock. 0: it takes the first answer. */
  readonly patienceMs: number
  readonly signal?: AbortSignal | undefined
  readonly watcher?: ClaimWatcher | undefined
  /**
   * For a claim that is made inside a callback: whether anything waits for it. If nothing does, it does not keep the
   * callback from ending, and is no part of a deadlock. Absent: it is awaited.
   */
  readonly isAwaited?: (() => boolean) | undefined
}

/** A claim that ended because of contention. */
export interface Refused {
  /** The last answer of the store. */
  readonly refusal: Refusal
  /** 0 for a claim that does not wait: the round trip to the store is not waiting. */
  readonly waitedMs: number
}

export type Outcome = LeaseUse | Refused | HoldfastError

/** For a caller whose next request must reach the store after this claim's. */
interface ClaimWatcher {
  /** If the claim gets a lease or a place in the queue, it has it now. Called once or more. */
  placed(): void
  /** A request was not answered. The claim will send another one. */
  unanswered(): void
  /** The claim has ended without a lease. `work` removes from the store what it may still have there. */
  withdrawing(work: Promise<void>): void
}

/**
 * One claim from its first request to its end. At most one of its requests is in flight at a time.
 *
 *     new ──► waiting ◄──► asking        waiting: no request is in flight
 *              │   │        │   │        asking: a request is in flight
 *              │   └──┐  ┌──┘   │
 *              ▼      ▼  ▼      ▼
 *            ended ◄─ leaving  ended     leaving: it gave up, and its place is being withdrawn
 *
 * - `waiting` → `asking`: at the start, on a wake-up, when the store said that asking again may help, and on a slow
 *   poll in case a wake-up was lost. Where the store has no queue, only the first waiter of a process asks
 * - `asking` → `waiting`: refused, or not answered, and it waits
 * - `asking` → `ended`: granted, or refused and it does not wait. `waiting` → `ended`: granted by a message
 * - any → `leaving`: it failed for good, the waiting time is over, or the claim is given up. A request that is in
 *   flight is answered first: a release that overtakes its own acquire on another connection would leave a lease that
 *   no process knows of
 * - `leaving` → `ended`: its place is withdrawn, or `MAX_WITHDRAWAL_MS` have passed. Only then the caller is answered.
 *   Otherwise the caller could ask again, and be refused because of its own place. It is answered at once if the store
 *   can have nothing of the claim, and if the store did not answer the last request
 */
export class PendingClaim implements Task, Waiter, Receiver<AcquireAnswer>, Abortable {
  readonly keepsAlive = true
  schedulerEntry: SchedulerEntry | undefined
  readonly claim: TrackedClaim
  readonly #parts: PendingParts
  readonly request: ClaimRequest
  /** Answers the caller. The holder calls it. */
  readonly settle: (outcome: Outcome) => void
  #state: 'new' | 'asking' | 'waiting' | 'leaving' | 'ended' = 'new'
  #isRequestInFlight = false
  /** When the newest request was made. Not read for a claim that does not wait and has no signal. */
  #requestedMs = 0
  /** The newest request, and the one before it. */
  #call: SentCall | undefined
  #callBefore: SentCall | undefined
  /** When the claim began. Not read for a claim that does not wait. */
  readonly #startedMs: number | undefined
  /**
   * From when on a grant is trusted: when the last answered request was sent. If none was answered, when the first one
   * was sent, once that has failed. Undefined: the store has seen nothing of the claim yet.
   */
  #trustedFrom: Instant | undefined
  /** What the store last said. */
  #last: Refusal | HoldfastError | undefined
  /** What the caller gets when the claim has left. */
  #end: Refusal | HoldfastError | undefined
  /** A request was not answered: it may still arrive. */
  #hasUnanswered = false
  /** When its caller is answered although its place may not be withdrawn. */
  #leavesAtMs = 0
  /** Created when the claim joins the waiters. */
  #wait: Wait | undefined

  constructor(parts: PendingParts, claim: TrackedClaim, request: ClaimRequest, settle: (outcome: Outcome) => void) {
    this.#parts = parts
    this.claim = claim
    this.request = request
    this.settle = settle
    this.#startedMs = request.patienceMs > 0 ? parts.clock.now().monotonicMs : undefined
  }

  get isInCallback(): boolean {
    return this.request.chain !== undefined
  }

  get eventBase(): ClaimEvent {
    const { lockName, holderId, claimId } = this.claim
    return { lockName, holderId, claimId }
  }

  get waitedMs(): number {
    const nowMs = this.#nowMs
    return nowMs - (this.#startedMs ?? this.#trustedFrom?.monotonicMs ?? nowMs)
  }

  start(): void {
    const { signal, watcher } = this.request
    // A listener of `requested` may have ended the claim.
    if (this.#state !== 'new') return
    if (signal?.aborted) {
      this.aborted()
      return
    }
    if (signal !== undefined) watchAbort(signal, this)
    this.#state = 'waiting'
    if (this.waits && this.#mustJoinFirst) this.#join()
    if (this.#mayRequest) {
      this.#request()
      return
    }
    this.#announce(undefined)
    watcher?.placed()
  }

  due(): void {
    const nowMs = this.#nowMs
    const wait = this.#wait
    if (this.#state === 'leaving') {
      if (nowMs >= this.#leavesAtMs) this.#settle()
      else this.#parts.scheduler.set(this, this.#leavesAtMs)
    } else if (nowMs >= this.#waitUntilMs) this.#timedOut()
    else if (wait !== undefined) {
      if (nowMs >= wait.nextRequestMs) this.#request()
      this.#schedule()
    }
  }

  wake(isProvedBy?: IsProvedBy): void {
    if (this.#mayRequest && this.#provedCall(isProvedBy) !== 'none') this.#request()
  }

  /** The one check of a grant that comes as a message. */
  announced(grant: Grant, isProvedBy: IsProvedBy | undefined): void {
    const wait = this.#wait
    if (wait === undefined || this.#state === 'leaving') return
    const proved = this.#provedCall(isProvedBy)
    if (proved !== 'newest') {
      // About the request before: it was granted between the two, so the store answers "already yours".
      if (proved === 'before') this.#request()
      return
    }
    const sent = this.#trustedFrom
    if (this.#state === 'asking' || sent === undefined) {
      // If the claim accepted the grant now, its request in flight could reach the store after the lease was released,
      // and acquire the lock again with no process to hold it. The answer to that request may be older than the grant
      // and be a refusal, so another request follows it.
      wait.asksAgain = true
      return
    }
    // A later request may be answered before this message arrives. Only a grant that was made after the last refusal
    // was made after the last request was sent, and can be trusted from there. In every other case the store is asked;
    // it answers "already yours".
    const last = this.#last
    const refusedAtMs = last instanceof Error ? undefined : last?.answeredAtMs
    const isAfterRefusal = refusedAtMs !== undefined && grant.acquiredAtMs >= refusedAtMs
    const now = this.#parts.clock.now()
    const isValid = isGrant(grant, this.#parts.store.driver.capabilities.fencing)
    const known = isValid ? trimmed(grant, this.claim) : grant
    const isFresh = isValid && isAfterRefusal && trustedMs(known, sent, now) > known.ttlMs * LEAST_TRUSTED
    if (isFresh) this.#accept(known, sent, now)
    else this.#request()
  }

  /** Ends the claim with an error, and withdraws from the store what it has or will have there. */
  giveUp(error: HoldfastError): void {
    this.#leave(error)
  }

  /** The caller's signal was aborted. */
  aborted(): void {
    this.giveUp(new AbortedError(`acquiring "${this.claim.lockName}"`, this.request.signal?.reason))
  }

  answered(answer: AcquireAnswer, { sent }: SentCall, now: Instant): void {
    this.#isRequestInFlight = false
    this.#trustedFrom = sent
    if (this.#state !== 'asking') this.#withdraw()
    else if (answer.granted) this.#accept(answer, sent, now)
    else this.#refused(answer)
    this.#parts.inFlight.end()
    this.request.watcher?.placed()
  }

  failed(error: HoldfastError, call: SentCall): void {
    this.#isRequestInFlight = false
    this.#trustedFrom ??= call.sent
    this.#hasUnanswered = true
    if (error instanceof StoreError) this.#parts.events.heard('storeFailed')?.({ operation: 'acquire', error })
    if (this.#state !== 'asking') this.#withdraw()
    else this.#notAnswered(error, call)
    this.#parts.inFlight.end()
    if (this.#state === 'asking' || this.#state === 'waiting') this.request.watcher?.unanswered()
    else this.request.watcher?.placed()
  }

  /** Which request a message is about. Without a proof, it cannot be forged. */
  #provedCall(isProvedBy: IsProvedBy | undefined): 'newest' | 'before' | 'none' {
    if (isProvedBy === undefined) return 'newest'
    if (this.#call !== undefined && isProvedBy(this.#call.secret)) return 'newest'
    return this.#callBefore !== undefined && isProvedBy(this.#callBefore.secret) ? 'before' : 'none'
  }

  #request(): void {
    const wait = this.#wait
    if (this.#state !== 'waiting') {
      if (wait !== undefined) wait.asksAgain = true
      return
    }
    const { store, inFlight } = this.#parts
    this.#state = 'asking'
    this.#isRequestInFlight = true
    inFlight.begin()
    // What may be given up.
    if (this.waits || this.request.signal !== undefined) this.#requestedMs = this.#nowMs
    this.#callBefore = this.#call
    this.#call = store.claims.add(this.claim, this)
    wait?.asking(store.waiters.subscribedAtMs)
  }

  #accept(grant: Grant, sent: Instant, answered: Instant): void {
    if (trustedMs(grant, sent, answered) <= 0) {
      const { lockName } = this.claim
      this.#notAnswered(new StoreError(`the grant of "${lockName}" arrived after its lease had ended`), undefined)
      return
    }
    this.#finish()
    const start: LeaseStart = this.#hasUnanswered
      ? { sent, answered, grantedMs: grant.ttlMs, unansweredMs: this.claim.ttlMs }
      : { sent, answered, grantedMs: grant.ttlMs }
    this.#parts.granted(this, grant, start)
  }

  #refused(refusal: Refusal): void {
    this.#last = refusal
    if (!this.waits) {
      this.#finish()
      this.#parts.notGranted(this, refusal)
      return
    }
    const wait = this.#joinUnlessClosing()
    if (wait === undefined) return
    wait.queue.answered(refusal)
    this.#announce(refusal)
    // A listener may have ended the claim.
    if (this.#state !== 'asking') return
    this.#state = 'waiting'
    if (wait.asksAgain) {
      this.#request()
      return
    }
    const { waiters } = this.#parts.store
    const { subscribedAtMs } = waiters
    const isSubscribed = subscribedAtMs !== undefined
    const state = { refusal, tries: wait.tries, isSubscribed, waiterTtlMs: this.claim.waiterTtlMs }
    // Also before a subscription: if it hangs or fails, the claim polls.
    wait.nextRequestMs = pollAtMs(this.#parts, state)
    this.#schedule()
    if (!isSubscribed) void waiters.subscribe().then((since) => this.#subscribed(refusal, since))
    // The request was made under another subscription, or none. A release in between has sent no wake-up. (The two are
    // compared for equality, not by order: where time does not move, as under fake timers, every request would be as
    // old as the subscription.)
    else if (subscribedAtMs !== wait.subscriptionAtRequest) this.#request()
  }

  /** `refusal` is undefined for a waiter behind another one of its process: it has sent no request. */
  #announce(refusal: Refusal | undefined): void {
    if (this.#wait?.isAnnounced) return
    if (this.#wait !== undefined) this.#wait.isAnnounced = true
    const ahead = refusal?.ahead
    const aheadPart = ahead === undefined ? undefined : { ahead }
    this.#parts.events.heard('waiting')?.({ ...this.eventBase, ...holderPart(refusal), ...aheadPart })
  }

  /** Wake-ups arrive from now on. A lock may have been released before, so the claim asks again. */
  #subscribed(refusal: Refusal, subscribedAtMs: number | undefined): void {
    if (subscribedAtMs !== undefined && this.#state === 'waiting' && this.#last === refusal) this.#request()
  }

  /** `call` is undefined if it was answered too late. */
  #notAnswered(error: HoldfastError, call: SentCall | undefined): void {
    this.#last = error
    if (!this.waits || !isOutage(error)) {
      this.#leave(error)
      return
    }
    const wait = this.#joinUnlessClosing()
    if (wait === undefined) return
    this.#state = 'waiting'
    wait.queue.answered(error)
    wait.nextRequestMs = retryAtMs(this.#parts, call, wait.tries)
    this.#schedule()
  }

  get waits(): boolean {
    return this.request.patienceMs > 0
  }

  get #waitUntilMs(): number {
    return this.#startedMs === undefined ? Number.POSITIVE_INFINITY : this.#startedMs + this.request.patienceMs
  }

  get #nowMs(): number {
    return this.#parts.clock.now().monotonicMs
  }

  /** Where the store has no queue, only the first waiter of this process sends requests. */
  get #mayRequest(): boolean {
    const { capabilities } = this.#parts.store.driver
    return capabilities.queue || this.#wait === undefined || this.#wait.queue.isFirst(this)
  }

  /**
   * Whether the claim joins the waiters, and gets a deadline in the scheduler, before its first request. Most claims
   * are granted at once and need neither before they are refused, as long as no message can arrive for them, and the
   * call times out before their waiting time ends.
   */
  get #mustJoinFirst(): boolean {
    const { driver, waiters, callTimeoutMs } = this.#parts.store
    return !driver.capabilities.queue || waiters.active || this.request.patienceMs < callTimeoutMs
  }

  #joinUnlessClosing(): Wait | undefined {
    const error = this.#parts.whyNotWait(this)
    if (error === undefined) return this.#join()
    this.#leave(error)
    return undefined
  }

  #join(): Wait {
    if (this.#wait !== undefined) return this.#wait
    this.#wait = new Wait(this.#parts.store.waiters.join(this, this.#parts.events), this.#call === undefined ? 0 : 1)
    this.#schedule()
    return this.#wait
  }

  #schedule(): void {
    const wait = this.#wait
    if (wait === undefined || this.#state === 'leaving' || this.#state === 'ended') return
    this.#parts.scheduler.set(this, Math.min(this.#waitUntilMs, wait.nextRequestMs))
  }

  #timedOut(): void {
    const { clock, store } = this.#parts
    const wait = this.#wait
    if (this.#isRequestInFlight && wait !== undefined && !wait.isOverdue) {
      wait.isOverdue = true
      afterReading(clock, () => this.#timedOut())
      return
    }
    // A waiter behind another one of its process has sent no request. The answer of the first one is its answer.
    const last = store.driver.capabilities.queue ? this.#last : wait?.queue.lastAnswer(this.#nowMs, store.callTimeoutMs)
    this.#leave(last ?? new StoreError(`the store did not answer a claim of "${this.claim.lockName}" in time`))
  }

  /** The claim has failed. The caller gets `end` when the claim has nothing left in the store. */
  #leave(end: Refusal | HoldfastError): void {
    if (this.#state === 'leaving' || this.#state === 'ended') return
    // A store that did not answer the last request would not answer the withdrawal soon.
    const isOutOfReach = this.#last instanceof Error
    this.#leaveWaiters()
    this.#end = end
    this.#state = 'leaving'
    const work = this.#withdraw()
    const { queue, expiry } = this.#parts.store.driver.capabilities
    // Without a place in a queue, the store has nothing of a claim that it has refused.
    const isBeingWithdrawn = this.#isRequestInFlight || (work !== undefined && (queue || expiry === 'session'))
    // A request that has been in flight for so long is not answered soon.
    const untilMs = (this.#isRequestInFlight ? this.#requestedMs : this.#nowMs) + MAX_WITHDRAWAL_MS
    this.#leavesAtMs = untilMs
    if (isBeingWithdrawn && !isOutOfReach && untilMs > this.#nowMs) this.#parts.scheduler.set(this, untilMs)
    else this.#settle()
  }

  /** The caller of a claim that leaves is answered. */
  #settle(): void {
    if (this.#state !== 'leaving') return
    this.#finish()
    this.#parts.notGranted(this, this.#end as Refusal | HoldfastError)
    if (!this.#isRequestInFlight) this.request.watcher?.placed()
  }

  /**
   * The store may have a place in its queue for this claim, or a grant whose answer is still in flight. Undefined if it
   * has nothing, or a request is in flight: its answer comes first.
   */
  #withdraw(): Promise<void> | undefined {
    if (this.#isRequestInFlight || this.#trustedFrom === undefined) return undefined
    const { store, inFlight, events } = this.#parts
    const onFailure = (error: unknown): void => events.heard('releaseFailed')?.({ ...this.eventBase, error })
    const work = inFlight.track(store.withdraw(this.claim, onFailure))
    this.request.watcher?.withdrawing(work)
    if (this.#state === 'leaving') void work.then(() => this.#settle())
    return work
  }

  #leaveWaiters(): void {
    const { signal } = this.request
    if (signal !== undefined) unwatchAbort(signal, this)
    if (this.#wait === undefined) return
    this.#parts.store.waiters.leave(this, this.#parts.events)
    this.#wait = undefined
  }

  #finish(): void {
    this.#state = 'ended'
    // A call refers to all of its requests.
    this.#call = undefined
    this.#callBefore = undefined
    this.#leaveWaiters()
    this.#parts.scheduler.clear(this)
  }
}

/** What only a claim has that waits. */
class Wait {
  readonly queue: NameQueue
  nextRequestMs = Number.POSITIVE_INFINITY
  /** How many requests were sent. */
  tries: number
  /** `subscribedAtMs` of the waiters when the last request was made. */
  subscriptionAtRequest: number | undefined
  /** Something happened during the request in flight. Another request follows it. */
  asksAgain = false
  /** `waiting` was emitted. */
  isAnnounced = false
  /** The waiting time has ended with a request in flight. */
  isOverdue = false

  constructor(queue: NameQueue, tries: number) {
    this.queue = queue
    this.tries = tries
  }

  asking(subscribedAtMs: number | undefined): void {
    this.tries += 1
    this.asksAgain = false
    this.nextRequestMs = Number.POSITIVE_INFINITY
    this.subscriptionAtRequest = subscribedAtMs
  }
}

/**
 * A grant in a message is trusted from the last request on, which may be a third of the waiter's TTL ago. If less than
 * this part of it is left, the claim asks: the answer is trusted from now on.
 */
const LEAST_TRUSTED = 1 / 2

const trustedMs = (grant: Grant, sent: Instant, now: Instant): number =>
  dueAtMs(trustedUntil(sent, grant.ttlMs), now) - now.monotonicMs
