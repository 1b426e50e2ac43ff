import type { AcquireAnswer, Grant, Refusal } from '../driver.ts'
import { AbortedError, type HoldfastError, isOutage, StoreError } from '../errors.ts'
import type { Emitter } from '../events.ts'
import { trustedUntil } from '../lease/deadline.ts'
import type { Granted } from '../lease/granted.ts'
import type { Receiver } from '../store/batch.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import type { Waiter } from '../store/wake-ups.ts'
import { unwatchAbort, watchAbort } from '../time/abort.ts'
import { backoffMs } from '../time/backoff.ts'
import { type Clock, dueAtMs, type Instant } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler, SchedulerEntry, Task } from '../time/scheduler.ts'

export interface WaitParts {
  readonly clock: Clock
  readonly random: Random
  readonly store: StoreClient
  readonly scheduler: Scheduler
  readonly events: Emitter
  readonly inFlight: InFlight
}

export type Outcome = Granted | { readonly granted: false; readonly refusal: Refusal | undefined }

export interface PendingOptions {
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  readonly watcher?: ClaimWatcher | undefined
}

/** Who has to know how far a claim has come in the store: for whatever must come after it there. */
export interface ClaimWatcher {
  /** It has its lease or its place in the queue by now, if it is to have one. Called once or more. */
  placed(): void
  /** A request was not answered, and the claim will ask again. */
  unanswered(): void
  /** It has been given up, and this is what takes back whatever the store has of it. */
  withdrawing(work: Promise<void>): void
}

/**
 * One claim from its first request to its end: granted, refused, given up.
 *
 * It asks once, and if it may wait, again whenever it is woken, whenever the store said that asking may help, and slowly in
 * between in case a wake-up was lost. At most one request of a claim is under way at a time, and a claim that is given
 * up while one is under way is withdrawn after that one has settled: a release that overtakes its own acquire on another connection
 * would leave a lease that nobody knows of.
 */
export class PendingClaim implements Task, Waiter, Receiver<AcquireAnswer> {
  readonly keepsAlive = true
  schedulerEntry: SchedulerEntry | undefined
  readonly claim: TrackedClaim
  readonly #parts: WaitParts
  readonly #signal: AbortSignal | undefined
  readonly #watcher: ClaimWatcher | undefined
  readonly #startedMs: number
  readonly #waitUntilMs: number
  readonly #settle: (end: Outcome | HoldfastError) => void
  #done = false
  #joined = false
  #leads = true
  #asking = false
  /** Since when wake-ups arrived, when it asked last. */
  #heardSinceMs: number | undefined
  #askedSent: Instant | undefined
  #wokenWhileAsking = false
  #unanswered = false
  #nextAskMs = Number.POSITIVE_INFINITY
  #tries = 0
  #refusal: Refusal | undefined
  #failure: HoldfastError | undefined
  /** What those who led the line before it knew, and since when none of them was answered. */
  #inherited: Refusal | HoldfastError | undefined
  #silentSinceMs: number | undefined

  /** `waitMs` 0: answers at once. `settle` is called once, after `start`. */
  constructor(
    parts: WaitParts,
    claim: TrackedClaim,
    { waitMs, signal, watcher }: PendingOptions,
    settle: (end: Outcome | HoldfastError) => void,
  ) {
    this.#parts = parts
    this.claim = claim
    this.#signal = signal
    this.#watcher = watcher
    this.#startedMs = parts.clock.now().monotonicMs
    this.#waitUntilMs = this.#startedMs + waitMs
    this.#settle = settle
  }

  start(): void {
    if (this.#signal?.aborted) {
      this.aborted()
      return
    }
    if (this.#signal !== undefined) watchAbort(this.#signal, this)
    if (this.#waits && this.#mustJoin) this.#join()
    if (this.#leads) this.#ask()
    else this.#watcher?.placed()
  }

  get waitedMs(): number {
    return this.#parts.clock.now().monotonicMs - this.#startedMs
  }

  due(): void {
    const nowMs = this.#parts.clock.now().monotonicMs
    if (nowMs >= this.#waitUntilMs) {
      this.#timeUp()
      return
    }
    if (nowMs >= this.#nextAskMs) this.#ask()
    this.#schedule()
  }

  wake(): void {
    if (this.#leads) this.#ask()
  }

  lead(before: Waiter): void {
    this.#leads = true
    const { outlook } = before
    // Any other error may be that claim's own.
    if (!(outlook instanceof Error) || isOutage(outlook)) this.#inherited = outlook
    this.#silentSinceMs = before.silentSinceMs ?? this.#parts.clock.now().monotonicMs
    this.#ask()
  }

  granted(grant: Grant): void {
    if (this.#done) return
    if (this.#asking || this.#askedSent === undefined) {
      // Taking the grant now would let the request that is under way arrive after the lock was given back, and take it anew for nobody. But its
      // answer may be older than the grant, and say no.
      this.#wokenWhileAsking = true
      return
    }
    // A message can be overtaken by the answer to a later question: only a grant that was made after the last refusal came after the last question
    // was sent, and can be trusted from there. Whenever that is not enough, the store is asked, which will say "already yours".
    const refusedAtMs = this.#refusal?.answeredAtMs ?? Number.POSITIVE_INFINITY
    const isNews = this.#failure === undefined && grant.acquiredAtMs >= refusedAtMs
    const now = this.#parts.clock.now()
    if (isNews && trustedMs(grant, this.#askedSent, now) > grant.ttlMs / 2) this.#take(grant, this.#askedSent, now)
    else this.#ask()
  }

  /** Ends it with an error, and takes back whatever it has or will have got. */
  giveUp(error: HoldfastError): void {
    if (this.#done) return
    this.#finish()
    this.#withdraw()
    this.#settle(error)
    if (!this.#asking) this.#watcher?.placed()
  }

  get #waits(): boolean {
    return this.#waitUntilMs > this.#startedMs
  }

  /**
   * Most claims are granted at once, and need neither a place among those that wait nor a moment on the agenda before they are refused: as long as
   * no message can come for them, and the call's own deadline comes before theirs.
   */
  get #mustJoin(): boolean {
    const { driver, wakeUps, callTimeoutMs } = this.#parts.store
    return !driver.capabilities.queue || wakeUps.active || this.#waitUntilMs - this.#startedMs < callTimeoutMs
  }

  #join(): void {
    if (this.#joined) return
    this.#joined = true
    this.#leads = this.#parts.store.wakeUps.join(this)
    this.#schedule()
  }

  /** The caller's signal was aborted. */
  aborted(): void {
    this.giveUp(new AbortedError(`acquiring "${this.claim.lockName}"`, this.#signal?.reason))
  }

  #ask(): void {
    if (this.#done) return
    if (this.#asking) {
      this.#wokenWhileAsking = true
      return
    }
    this.#asking = true
    this.#wokenWhileAsking = false
    this.#nextAskMs = Number.POSITIVE_INFINITY
    this.#heardSinceMs = this.#parts.store.wakeUps.sinceMs
    this.#tries += 1
    this.#parts.inFlight.begin()
    this.#parts.store.acquire(this.claim, this)
  }

  answered(answer: AcquireAnswer, sent: Instant, answered: Instant): void {
    this.#asking = false
    this.#silentSinceMs = undefined
    this.#askedSent = sent
    if (this.#done) this.#withdraw()
    else if (answer.granted) this.#take(answer, sent, answered)
    else this.#refused(answer)
    this.#parts.inFlight.end()
    this.#watcher?.placed()
  }

  failed(error: HoldfastError, sent: Instant): void {
    this.#asking = false
    this.#silentSinceMs = undefined
    this.#askedSent ??= sent
    this.#unanswered = true
    if (this.#done) this.#withdraw()
    else this.#retryOrGiveUp(error, sent)
    this.#parts.inFlight.end()
    if (this.#done) this.#watcher?.placed()
    else this.#watcher?.unanswered()
  }

  #take(grant: Grant, sent: Instant, answered: Instant): void {
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
    if (this.#refusal === undefined && this.#waits) {
      const { lockName, holderId, claimId } = this.claim
      this.#parts.events.emit('waiting', () => ({ lockName, holderId, claimId }))
      // A listener may have given it up: joining now would leave a waiter that nobody removes.
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
    if (this.#wokenWhileAsking) {
      this.#ask()
      return
    }
    const { wakeUps } = this.#parts.store
    this.#askIn(this.#pollMs(refusal, wakeUps.sinceMs !== undefined))
    // A subscription that hangs or fails is polled behind, as above.
    if (wakeUps.sinceMs === undefined) void wakeUps.begin().then((sinceMs) => this.#listens(refusal, sinceMs))
    // Whatever was released between the question and the subscription was not heard of. (Moments are not compared: where
    // time stands still, as under fake timers, every question would be as old as the subscription.)
    else if (wakeUps.sinceMs !== this.#heardSinceMs) this.#ask()
  }

  /** Wake-ups arrive from now on, and something may have been released before. */
  #listens(refusal: Refusal, sinceMs: number | undefined): void {
    if (sinceMs === undefined || this.#done || this.#asking || this.#refusal !== refusal) return
    this.#ask()
  }

  #retryOrGiveUp(error: HoldfastError, sent: Instant): void {
    this.#failure = error
    if (!this.#waits || !isOutage(error)) {
      this.giveUp(error)
      return
    }
    this.#join()
    const { clock, random } = this.#parts
    this.#askAt(retryAtMs(sent, this.#tries, clock.now().monotonicMs, random))
  }

  #pollMs(refusal: Refusal, listening: boolean): number {
    const { random } = this.#parts
    const hintMs =
      refusal.askAgainMs === undefined ? Number.POSITIVE_INFINITY : Math.max(refusal.askAgainMs + 1, LEAST_POLL_MS)
    return Math.min(hintMs, listening ? this.#keepPlaceMs : backoffMs(POLL, this.#tries, random))
  }

  /** The slow poll behind the wake-ups. It also keeps the place in the queue, so it comes three times in a waiter's life. */
  get #keepPlaceMs(): number {
    return this.claim.waitMs / 3
  }

  #askIn(ms: number): void {
    const { clock, scheduler } = this.#parts
    const atMs = clock.now().monotonicMs + ms
    this.#askAt(ms < this.#keepPlaceMs ? atMs : scheduler.round(atMs, this.#keepPlaceMs / 4))
  }

  #askAt(atMs: number): void {
    this.#nextAskMs = atMs
    this.#schedule()
  }

  #schedule(): void {
    if (!this.#done && this.#waits) this.#parts.scheduler.set(this, Math.min(this.#waitUntilMs, this.#nextAskMs))
  }

  get outlook(): Refusal | HoldfastError | undefined {
    const own = this.#failure ?? this.#refusal
    if (own !== undefined || this.#silentSinceMs === undefined) return own
    // Claims that lead one after the other, each for less than a call may take, would otherwise call an outage contention for ever.
    const silentMs = this.#parts.clock.now().monotonicMs - this.#silentSinceMs
    return silentMs < this.#parts.store.callTimeoutMs ? this.#inherited : undefined
  }

  get silentSinceMs(): number | undefined {
    return this.#silentSinceMs
  }

  #timeUp(): void {
    const { lockName } = this.claim
    // One that stands behind another of its process has not asked, and knows what that one knows.
    const outlook = this.#leads ? this.outlook : this.#parts.store.wakeUps.first(lockName)?.outlook
    if (outlook === undefined || outlook instanceof Error) {
      this.giveUp(outlook ?? new StoreError(`the store did not answer a claim of "${lockName}" in time`))
      return
    }
    this.#finish()
    this.#withdraw()
    this.#settle({ granted: false, refusal: outlook })
  }

  /** What the store may have kept of this claim: a place in its queue, or a grant whose answer is still on its way. */
  #withdraw(): void {
    if (this.#asking || this.#askedSent === undefined) return
    const { lockName, holderId, claimId } = this.claim
    const tell = (error: unknown): void =>
      this.#parts.events.emit('releaseFailed', () => ({ lockName, holderId, claimId, error }))
    const work = this.#parts.inFlight.track(this.#parts.store.withdraw(this.claim, tell))
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

/**
 * What failed in one list, which has one moment of sending, asks again at one moment: in one list, at the cost of one, and
 * in the same order.
 */
function retryAtMs(sent: Instant, tries: number, nowMs: number, random: Random): number {
  const known = retries.get(sent)
  if (known?.tries === tries) return known.atMs
  const atMs = nowMs + backoffMs(POLL, tries, random)
  if (known === undefined) retries.set(sent, { tries, atMs })
  return atMs
}

const retries = new WeakMap<Instant, { readonly tries: number; readonly atMs: number }>()

/** Where the store cannot wake anybody. */
const POLL = { firstMs: 20, mostMs: 1_000 }
const LEAST_POLL_MS = 2
