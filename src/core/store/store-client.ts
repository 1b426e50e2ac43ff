import type {
  AcquireAnswer,
  Claim,
  Driver,
  Grant,
  InspectPage,
  InspectQuery,
  LeaseRef,
  RateAnswer,
  RateRequest,
  Refusal,
  RenewAnswer,
  Renewal,
} from '../driver.ts'
import { type HoldfastError, isOutage, StoreError } from '../errors.ts'
import { MAX_LIST, MAX_RELEASE_TRIES } from '../limits.ts'
import { checkedPage, isGrant, isRateAnswer, isRefusal, trimmed } from '../store-answers.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Clock } from '../time/clock.ts'
import { pause } from '../time/pause.ts'
import type { Random } from '../time/random.ts'
import { turnsOf } from '../time/turns.ts'
import { unsupported } from '../unsupported.ts'
import { Batch, type Receiver, type RequestList } from './batch.ts'
import { CallDeadlines } from './call-deadlines.ts'
import { ListCall, type ListKind } from './list-call.ts'
import { LossHints } from './loss-hints.ts'
import { WakeUps } from './wake-ups.ts'

export interface StoreClientOptions {
  readonly clock: Clock
  readonly random: Random
  readonly callTimeoutMs: number
}

/** A lease that was granted by taking the lock from its holder. */
export interface StealingLease {
  readonly lockName: string
  readonly holderId: string
  readonly fencingToken: number
}

export interface TrackedClaim extends Claim {
  /**
   * Whether this process wants nothing of the claim in the store any more: the claim was given up, or its lease was
   * released or lost. A grant that arrives after that is released.
   */
  abandoned: boolean
}

/**
 * All requests of a process to one driver: sent in lists, with a deadline for every call, one subscription for all
 * waiters, and releases that are retried until the store answers.
 */
export class StoreClient {
  readonly driver: Driver
  readonly wakeUps: WakeUps
  readonly lossHints: LossHints
  /** Called when a claim of an instance on this client has taken a lock from its holders. */
  readonly onStolen = new Set<(stealing: StealingLease) => void>()
  readonly #options: StoreClientOptions
  readonly #calls: CallDeadlines
  readonly #acquires: Batch<TrackedClaim, AcquireAnswer>
  readonly #renewals: Batch<Renewal, RenewAnswer>
  readonly #releases: Batch<LeaseRef, boolean>
  readonly #consumes: Batch<RateRequest, RateAnswer>
  /** Releases in flight that no caller waits for. */
  readonly #background = new Set<Promise<void>>()
  /** Releases that `releaseLater` has scheduled. `close` sends them at once. */
  readonly #postponed = new Set<() => void>()
  readonly #failed = new AbortController()

  constructor(driver: Driver, options: StoreClientOptions) {
    const { clock, random, callTimeoutMs } = options
    this.driver = driver
    this.#options = options
    this.#calls = new CallDeadlines(driver, clock, callTimeoutMs)
    const subscribing = { driver, clock, random, calls: this.#calls }
    this.lossHints = new LossHints(subscribing)
    const onLossHint = (claimId: string, cause: Error): void => this.lossHints.add(claimId, cause)
    this.wakeUps = new WakeUps({ ...subscribing, onLossHint })
    const bounds = { maxLength: MAX_LIST, split: driver.listSplit }
    this.#acquires = new Batch<TrackedClaim, AcquireAnswer>(
      clock,
      { ...bounds, areInseparable: inOneGroup },
      this.#sender({ what: 'acquire', send: (claims) => driver.acquire(claims), late: this.#withdrawAbandoned }),
    )
    this.#renewals = new Batch<Renewal, RenewAnswer>(
      clock,
      // Not split: callers wait for claims and releases, and for hardly any renewal.
      { maxLength: MAX_LIST },
      this.#sender({ what: 'renew', send: (renewals) => driver.renew(renewals) }),
    )
    this.#releases = new Batch<LeaseRef, boolean>(
      clock,
      bounds,
      this.#sender({
        what: 'release',
        send: (leases) => driver.release(leases),
        // The store sends no wake-ups, so the process at least wakes its own waiters.
        ...(!driver.capabilities.wake && { answered: this.#wakeOwn }),
      }),
    )
    this.#consumes = new Batch<RateRequest, RateAnswer>(
      clock,
      bounds,
      this.#sender({
        what: 'consume',
        async send(requests) {
          if (driver.consume === undefined) throw unsupported(driver, 'rate')
          return driver.consume(requests)
        },
      }),
    )
  }

  get callTimeoutMs(): number {
    return this.#options.callTimeoutMs
  }

  acquire(claim: TrackedClaim, receiver: Receiver<AcquireAnswer>): void {
    this.#acquires.add(claim, receiver)
  }

  renew(renewal: Renewal): Promise<RenewAnswer> {
    return this.#renewals.ask(renewal)
  }

  /** As `renew`, without a promise. */
  sendRenewal(renewal: Renewal, receiver: Receiver<RenewAnswer>): void {
    this.#renewals.add(renewal, receiver)
  }

  release(lease: LeaseRef, receiver: Receiver<boolean>): void {
    this.#releases.add(lease, receiver)
  }

  consume(request: RateRequest, receiver: Receiver<RateAnswer>): void {
    this.#consumes.add(request, receiver)
  }

  inspect(query: InspectQuery): Promise<InspectPage> {
    // A caller that reads many pages of a local store must not block the event loop.
    const page = this.#calls.run('inspect', async () => checkedPage(this.driver.name, await this.driver.inspect(query)))
    return turnsOf(this.#options.clock).settle(page)
  }

  /**
   * Ends every lease and place in the queue that the claim has or will get, in the background. An abort by the caller
   * does not stop it. Never rejects.
   */
  withdraw(claim: TrackedClaim, onFailure: (error: unknown) => void): Promise<void> {
    claim.abandoned = true
    return this.releaseUntilAnswered({ lockName: claim.lockName, claimId: claim.claimId }, onFailure)
  }

  /**
   * Sends a release in the background, until the store answers it, the error is permanent, or `MAX_RELEASE_TRIES` is
   * reached. Never rejects.
   */
  releaseUntilAnswered(lease: LeaseRef, onFailure: (error: unknown) => void): Promise<void> {
    const work = this.#releaseUntilAnswered(lease, onFailure).finally(() => this.#background.delete(work))
    this.#background.add(work)
    return work
  }

  /** For stores without expiry: this process ends the lease after `delayMs`, if it is still alive. */
  releaseLater(lease: LeaseRef, delayMs: number, onFailure: (error: unknown) => void): void {
    const release = (): void => {
      this.#postponed.delete(release)
      timer.cancel()
      void this.releaseUntilAnswered(lease, onFailure)
    }
    const timer = this.#options.clock.setTimer(release, delayMs)
    this.#postponed.add(release)
  }

  /** Resolves when no work is left in the background. */
  async settled(): Promise<void> {
    while (this.#background.size > 0) await Promise.all(this.#background)
  }

  async close(): Promise<void> {
    for (const release of [...this.#postponed]) release()
    await this.settled()
    await Promise.all([this.wakeUps.close(), this.lossHints.close()])
    this.#calls.close()
  }

  /** Fails every request in flight and every later one, so that a store that does not answer keeps no process alive. */
  failAll(error: HoldfastError): void {
    this.#calls.failAll(error)
    this.#failed.abort()
  }

  #sender<Request, Answer>(kind: ListKind<Request, Answer>): (list: RequestList<Request, Answer>) => void {
    const check = (requests: readonly Request[], answers: unknown) =>
      this.#checked<Answer>(kind.what, requests, answers)
    return (list) => {
      const dueMs = list.sent.monotonicMs + this.#options.callTimeoutMs
      this.#calls.start(new ListCall(kind, list, dueMs, check))
    }
  }

  /** The answers to claims came too late. What was granted or queued for a claim that no caller waits for is ended. */
  readonly #withdrawAbandoned = (
    claims: readonly TrackedClaim[],
    answers: readonly (AcquireAnswer | Error)[],
  ): void => {
    answers.forEach((answer, index) => {
      const claim = claims[index]
      if (claim === undefined || answer instanceof Error || !claim.abandoned) return
      // A refusal without a queue leaves nothing behind.
      if (!answer.granted && claim.waitMs === 0) return
      void this.withdraw(claim, () => undefined)
    })
  }

  readonly #wakeOwn = (leases: readonly LeaseRef[]): void => {
    for (const { lockName } of leases) this.wakeUps.wake(lockName)
  }

  /** An entry that is not a valid answer becomes an error: its outcome is unknown. */
  #checked<Answer>(
    what: ListKind<unknown, Answer>['what'],
    requests: readonly unknown[],
    answers: unknown,
  ): readonly (Answer | Error)[] {
    if (!Array.isArray(answers) || answers.length !== requests.length) {
      const returned = Array.isArray(answers) ? `${answers.length} answers` : 'no array'
      throw new StoreError(`the ${this.driver.name} driver returned ${returned} to ${requests.length} ${what} requests`)
    }
    const isAnswer = isAnswerTo[what]
    const { fencing } = this.driver.capabilities
    if (answers.every((answer, at) => isAnswer(answer, requests[at], fencing) === true)) return answers
    return answers.map((answer: Answer | Error, at) => {
      if (answer instanceof Error) return this.#calls.asStoreError(what, answer)
      const isValid = isAnswer(answer, requests[at], fencing)
      if (isValid === true) return answer
      if (isValid === 'too long') return trimmed(answer as Grant, requests[at] as Claim) as Answer
      const text = JSON.stringify(answer)?.slice(0, 200)
      return new StoreError(`the ${this.driver.name} driver returned an invalid answer to ${what}: ${text}`)
    })
  }

  async #releaseUntilAnswered(lease: LeaseRef, onFailure: (error: unknown) => void): Promise<void> {
    for (let tries = 1; ; tries += 1) {
      try {
        await this.#releases.ask(lease)
        return
      } catch (error) {
        onFailure(error)
        if (tries === MAX_RELEASE_TRIES || !isOutage(error)) return
        const { clock, random } = this.#options
        await pause(clock, backoffMs(RETRY, tries, random), this.#failed.signal)
      }
    }
  }
}

const inOneGroup = (before: Claim, after: Claim): boolean => before.group !== undefined && before.group === after.group

/** What a valid answer is. Any other value means "unknown": it must be read neither as success nor as failure. */
const isAnswerTo: Record<'acquire' | 'renew' | 'release' | 'consume', IsAnswer> = {
  acquire(answer, request, needsToken) {
    const { granted } = (answer ?? {}) as Partial<AcquireAnswer>
    if (granted === false) return isRefusal(answer as Refusal)
    if (granted !== true || !isGrant(answer as Grant, needsToken)) return false
    return (answer as Grant).ttlMs <= (request as Claim).ttlMs || 'too long'
  },
  renew: (answer) => answer === 'renewed' || answer === 'held' || answer === 'lost',
  release: (answer) => typeof answer === 'boolean',
  consume: (answer) => isRateAnswer((answer ?? {}) as RateAnswer),
}

/** `too long`: a grant for longer than the claim asked for, which is trusted only for that long. */
type IsAnswer = (answer: unknown, request: unknown, needsToken: boolean) => boolean | 'too long'

/**
 * Instances that use one driver with the same settings share one client, so that their requests of one turn of the
 * event loop go out in one list.
 */
export function openStoreClient(driver: Driver, options: StoreClientOptions): StoreClient {
  const shared = clients.get(driver) ?? []
  clients.set(driver, shared)
  const existing = shared.find(
    ({ clock, callTimeoutMs }) => clock === options.clock && callTimeoutMs === options.callTimeoutMs,
  )
  if (existing !== undefined) {
    existing.users += 1
    return existing.store
  }
  const store = new StoreClient(driver, options)
  shared.push({ ...options, store, users: 1 })
  return store
}

export async function closeStoreClient(store: StoreClient): Promise<void> {
  const shared = clients.get(store.driver) ?? []
  const found = shared.find((each) => each.store === store)
  if (found === undefined) return
  found.users -= 1
  if (found.users > 0) return
  shared.splice(shared.indexOf(found), 1)
  await store.close()
}

/** Fails all requests of the client, unless other instances use it: those may still wait for answers. */
export function failStoreClient(store: StoreClient, error: HoldfastError): void {
  const found = clients.get(store.driver)?.find((each) => each.store === store)
  if (found === undefined || found.users === 1) store.failAll(error)
}

const clients = new WeakMap<Driver, (StoreClientOptions & { readonly store: StoreClient; users: number })[]>()

const RETRY = { firstMs: 50, maxMs: 2_000 }
