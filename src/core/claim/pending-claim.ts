import type { AcquireAnswer, Grant, Refusal } from '../driver.ts'
import { AbortedError, type HoldfastError, isOutage, StoreError } from '../errors.ts'
import type { Emitter } from '../events.ts'
import { trustedUntil } from '../lease/deadline.ts'
import type { Granted } from '../lease/granted.ts'
import type { Linked } from '../linked-set.ts'
import type { Receiver } from '../store/batch.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import type { Waiter } from '../store/wake-ups.ts'
import { holderOf } from '../store-answers.ts'
import { unwatchAbort, watchAbort } from '../time/abort.ts'
import { dueAtMs, type Instant } from '../time/clock.ts'
import type { SchedulerEntry, Task } from '../time/scheduler.ts'
import type { Chain } from './chain.ts'
import { pollAtMs, retryAtMs, type TimingParts } from './request-timing.ts'

export interface WaitParts extends TimingParts {
  readonly store: StoreClient
  readonly events: Emitter
  readonly inFlight: InFlight
}

export type Outcome = Granted | { readonly granted: false; readonly refusal: Refusal | undefined }

export interface PendingOptions {
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  readonly watcher?: ClaimWatcher | undefined
  /** The callback inside which the claim is made. */
  readonly chain?: Chain | undefined
}

/** For a caller whose next request must reach the store after this claim's. */
export interface ClaimWatcher {
  /** If the claim gets a lease or a place in the queue, it has it now. Called once or more. */
  placed(): void
  /** A request was not answered. The claim will send another one. */
  unanswered(): void
  /** The claim has ended without a lease. `work` removes from the store what it may still have there. */
  withdrawing(work: Promise<void>): void
}

/**
 * One claim from its first request to its end: granted, refused or abandoned.
 *
 * It sends one request. If it may wait, it sends another one on every wake-up, when the store said that asking again
 * may help, and on a slow poll in case a wake-up was lost. At most one request of a claim is in flight at a time. A
 * claim that is abandoned during a request is withdrawn after that request has settled: a release that overtakes its
 * own acquire on another connection would leave a lease that no process knows of.
 */
export class PendingClaim implements Task, Waiter, Receiver<AcquireAnswer>, Linked<PendingClaim> {
  readonly keepsAlive = true
  isLinked = false
  before: PendingClaim | undefined
  after: PendingClaim | undefined
  readonly isInCallback: boolean
  schedulerEntry: SchedulerEntry | undefined
  readonly claim: TrackedClaim
  readonly #parts: WaitParts
  readonly #signal: AbortSignal | undefined
  readonly #watcher: ClaimWatcher | undefined
  readonly #waitMs: number
  /** Not read for a claim that does not wait. */
  readonly #startedMs: number | undefined
  readonly #waitUntilMs: number
  readonly #settle: (end: Outcome | HoldfastError) => void
  #done = false
  #joined = false
  /** `waiting` was emitted. */
  #announced = false
  /** False behind another waiter of this process, where the store has no queue: only the first one sends requests. */
  #mayRequest = true
  #requestInFlight = false
  /** `subscribedAtMs` of the wake-ups when the last request was made. */
  #subscriptionAtRequest: number | undefined
  /** When the last answered request was sent. Until one is answered: when the first one was sent. */
  #lastSent: Instant | undefined
  #wokenDuringRequest = false
  #unanswered = false
  #nextRequestMs = Number.POSITIVE_INFINITY
  #tries = 0
  #refusal: Refusal | undefined
  #failure: HoldfastError | undefined
  /** The last answer that the waiters before it got, and since when none of them got one. */
  #inheritedAnswer: Refusal | HoldfastError | undefined
  #unansweredSinceMs: number | undefined

  /** `waitMs` 0: ends with the first answer. `settle` is called once, after `start`. */
  constructor(
    parts: WaitParts,
    claim: TrackedClaim,
    { waitMs, signal, watcher, chain }: PendingOptions,
    settle: (end: Outcome | HoldfastError) => void,
  ) {
    this.#parts = parts
    this.claim = claim
    this.isInCallback = chain !== undefined
    this.#signal = signal
    this.#watcher = watcher
    this.#waitMs = waitMs
    this.#startedMs = waitMs > 0 ? parts.clock.now().monotonicMs : undefined
    this.#waitUntilMs = (this.#startedMs ?? 0) + waitMs
    this.#settle = settle
  }

  start(): void {
    // A listener of `requested` may have ended the claim.
    if (this.#done) return
    if (this.#signal?.aborted) {
      this.aborted()
      return
    }
    if (this.#signal !== undefined) watchAbort(this.#signal, this)
    if (this.#waits && this.#mustJoinFirst) this.#join()
    if (this.#mayRequest) {
      this.#request()
      return
    }
    this.#announce(undefined)
    this.#watcher?.placed()
  }

  get waitedMs(): number {
    const nowMs = this.#parts.clock.now().monotonicMs
    return nowMs - (this.#startedMs ?? this.#lastSent?.monotonicMs ?? nowMs)
  }

  due(): void {
    const nowMs = this.#parts.clock.now().monotonicMs
    if (nowMs >= this.#waitUntilMs) {
      this.#timedOut()
      return
    }
    if (nowMs >= this.#nextRequestMs) this.#request()
    this.#schedule()
  }

  wake(): void {
    if (this.#mayRequest) this.#request()
  }

  becameFirst(previous: Waiter): void {
    this.#mayRequest = true
    const { lastAnswer } = previous
    // Any other error may concern that claim only.
    if (!(lastAnswer instanceof Error) || isOutage(lastAnswer)) this.#inheritedAnswer = lastAnswer
    this.#unansweredSinceMs = previous.unansweredSinceMs ?? this.#parts.clock.now().monotonicMs
    this.#request()
  }

  granted(grant: Grant): void {
    if (this.#done) return
    if (this.#requestInFlight || this.#lastSent === undefined) {
      // If the claim accepted the grant now, its request in flight could reach the store after the lease was released,
      // and acquire the lock again with no process to hold it. The answer to that request may be older than the grant
      // and be a refusal, so another request follows it.
      this.#wokenDuringRequest = true
      return
    }
    // A later request may be answered before this message arrives. Only a grant that was made after the last refusal
    // was made after the last request was sent, and can be trusted from there. In every other case the store is asked;
    // it answers "already yours".
    const refusedAtMs = this.#refusal?.answeredAtMs ?? Number.POSITIVE_INFINITY
    const isAfterRefusal = this.#failure === undefined && grant.acquiredAtMs >= refusedAtMs
    const now = this.#parts.clock.now()
    const isFresh = isAfterRefusal && trustedMs(grant, this.#lastSent, now) > grant.ttlMs / 2
    if (isFresh) this.#accept(grant, this.#lastSent, now)
    else this.#request()
  }

  /** Ends the claim with an error, and withdraws from the store what it has or will have there. */
  giveUp(error: HoldfastError): void {
    if (this.#done) return
    this.#finish()
    this.#withdraw()
    this.#settle(error)
    if (!this.#requestInFlight) this.#watcher?.placed()
  }

  get #waits(): boolean {
    return this.#waitMs > 0
  }

  /**
   * Whether the claim joins the waiters, and gets a deadline in the scheduler, before its first request. Most claims
   * are granted at once and need neither before they are refused, as long as no message can arrive for them, and the
   * call times out before their waiting time ends.
   */
  get #mustJoinFirst(): boolean {
    const { driver, wakeUps, callTimeoutMs } = this.#parts.store
    return !driver.capabilities.queue || wakeUps.active || this.#waitMs < callTimeoutMs
  }

  #join(): void {
    if (this.#joined) return
    this.#joined = true
    this.#mayRequest = this.#parts.store.wakeUps.join(this)
    this.#schedule()
  }

  /** The caller's signal was aborted. */
  aborted(): void {
    this.giveUp(new AbortedError(`acquiring "${this.claim.lockName}"`, this.#signal?.reason))
  }

  #request(): void {
    if (this.#done) return
    if (this.#requestInFlight) {
      this.#wokenDuringRequest = true
      return
    }
    this.#requestInFlight = true
    this.#wokenDuringRequest = false
    this.#nextRequestMs = Number.POSITIVE_INFINITY
    this.#subscriptionAtRequest = this.#parts.store.wakeUps.subscribedAtMs
    this.#tries += 1
    this.#parts.inFlight.begin()
    this.#parts.store.acquire(this.claim, this)
  }

  answered(answer: AcquireAnswer, sent: Instant, answered: Instant): void {
    this.#requestInFlight = false
    this.#unansweredSinceMs = undefined
    this.#lastSent = sent
    if (this.#done) this.#withdraw()
    else if (answer.granted) this.#accept(answer, sent, answered)
    else this.#refused(answer)
    this.#parts.inFlight.end()
    this.#watcher?.placed()
  }

  failed(error: HoldfastError, sent: Instant): void {
    this.#requestInFlight = false
    this.#unansweredSinceMs = undefined
    this.#lastSent ??= sent
    this.#unanswered = true
    if (error instanceof StoreError) this.#parts.events.emit('storeFailed', () => ({ operation: 'acquire', error }))
    if (this.#done) this.#withdraw()
    else this.#retryOrGiveUp(error, sent)
    this.#parts.inFlight.end()
    if (this.#done) this.#watcher?.placed()
    else this.#watcher?.unanswered()
  }

  #accept(grant: Grant, sent: Instant, answered: Instant): void {
    if (trustedMs(grant, sent, answered) <= 0) {
      this.#retryOrGiveUp(
        new StoreError(`the grant of "${this.claim.lockName}" arrived after its lease had ended`),
        sent,
      )
      return
    }
    this.#finish()
    const unansweredMs = this.#unanswered ? this.claim.ttlMs : undefined
    this.#settle({ granted: true, grant, sent, answered, unansweredMs })
  }

  #refused(refusal: Refusal): void {
    if (this.#waits) {
      this.#announce(refusal)
      // A listener may have ended the claim. Joining now would leave a waiter that is never removed.
      if (this.#done) return
    }
    this.#refusal = refusal
    this.#failure = undefined
    if (!this.#waits) {
      this.#finish()
      this.#settle({ granted: false, refusal })
      return
    }
    this.#join()
    if (this.#wokenDuringRequest) {
      this.#request()
      return
    }
    const { wakeUps } = this.#parts.store
    const { subscribedAtMs } = wakeUps
    const isSubscribed = subscribedAtMs !== undefined
    const state = { refusal, tries: this.#tries, isSubscribed, waiterTtlMs: this.claim.waitMs }
    // Also before a subscription: if it hangs or fails, the claim polls.
    this.#requestAt(pollAtMs(this.#parts, state))
    if (!isSubscribed) void wakeUps.subscribe().then((since) => this.#subscribed(refusal, since))
    // The request was made under another subscription, or none. A release in between has sent no wake-up. (The two are
    // compared for equality, not by order: where time does not move, as under fake timers, every request would be as
    // old as the subscription.)
    else if (subscribedAtMs !== this.#subscriptionAtRequest) this.#request()
  }

  /** `refusal` is undefined for a waiter behind another one of its process: it has sent no request. */
  #announce(refusal: Refusal | undefined): void {
    if (this.#announced) return
    this.#announced = true
    const { lockName, holderId, claimId } = this.claim
    this.#parts.events.emit('waiting', () => {
      const holder = holderOf(refusal)
      const ahead = refusal?.ahead
      return { lockName, holderId, claimId, ...(holder && { holder }), ...(ahead !== undefined && { ahead }) }
    })
  }

  /** Wake-ups arrive from now on. A lock may have been released before, so the claim asks again. */
  #subscribed(refusal: Refusal, subscribedAtMs: number | undefined): void {
    if (subscribedAtMs === undefined || this.#done || this.#requestInFlight || this.#refusal !== refusal) return
    this.#request()
  }

  #retryOrGiveUp(error: HoldfastError, sent: Instant): void {
    this.#failure = error
    if (!this.#waits || !isOutage(error)) {
      this.giveUp(error)
      return
    }
    this.#join()
    this.#requestAt(retryAtMs(this.#parts, sent, this.#tries))
  }

  #requestAt(atMs: number): void {
    this.#nextRequestMs = atMs
    this.#schedule()
  }

  #schedule(): void {
    if (!this.#done && this.#waits) this.#parts.scheduler.set(this, Math.min(this.#waitUntilMs, this.#nextRequestMs))
  }

  get lastAnswer(): Refusal | HoldfastError | undefined {
    const own = this.#failure ?? this.#refusal
    if (own !== undefined || this.#unansweredSinceMs === undefined) return own
    // The inherited answer expires after one call timeout. Without that, waiters that are first one after the other,
    // each for less than a call may take, would report an outage as contention forever.
    const unansweredMs = this.#parts.clock.now().monotonicMs - this.#unansweredSinceMs
    return unansweredMs < this.#parts.store.callTimeoutMs ? this.#inheritedAnswer : undefined
  }

  get unansweredSinceMs(): number | undefined {
    return this.#unansweredSinceMs
  }

  #timedOut(): void {
    const { lockName } = this.claim
    // A waiter behind another one of its process has sent no request. The answer of the first one is its answer.
    const first = this.#mayRequest ? this : this.#parts.store.wakeUps.first(lockName)
    const answer = first?.lastAnswer
    if (answer === undefined || answer instanceof Error) {
      this.giveUp(answer ?? new StoreError(`the store did not answer a claim of "${lockName}" in time`))
      return
    }
    this.#finish()
    this.#withdraw()
    this.#settle({ granted: false, refusal: answer })
  }

  /** The store may have a place in its queue for this claim, or a grant whose answer is still in flight. */
  #withdraw(): void {
    if (this.#requestInFlight || this.#lastSent === undefined) return
    const { lockName, holderId, claimId } = this.claim
    const onFailure = (error: unknown): void =>
      this.#parts.events.emit('releaseFailed', () => ({ lockName, holderId, claimId, error }))
    const work = this.#parts.inFlight.track(this.#parts.store.withdraw(this.claim, onFailure))
    this.#watcher?.withdrawing(work)
  }

  #finish(): void {
    this.#done = true
    if (this.#signal !== undefined) unwatchAbort(this.#signal, this)
    if (!this.#joined) return
    this.#parts.scheduler.clear(this)
    this.#parts.store.wakeUps.leave(this)
  }
}

const trustedMs = (grant: Grant, sent: Instant, now: Instant): number =>
  dueAtMs(trustedUntil(sent, grant.ttlMs), now) - now.monotonicMs
