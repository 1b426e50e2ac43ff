import type {
  AcquireAnswer,
  Claim,
  Driver,
  InspectPage,
  InspectQuery,
  LeaseRef,
  RateAnswer,
  RateRequest,
  RenewAnswer,
  Renewal,
} from '../driver.ts'
import { type HoldfastError, isOutage, StoreError } from '../errors.ts'
import { MAX_LIST, MAX_RELEASE_TRIES } from '../limits.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Clock } from '../time/clock.ts'
import { pause } from '../time/pause.ts'
import type { Random } from '../time/random.ts'
import { turnsOf } from '../time/turns.ts'
import { unsupported } from '../unsupported.ts'
import { Batch, type Receiver } from './batch.ts'
import { CallDeadlines } from './call-deadlines.ts'
import { WakeUps } from './wake-ups.ts'

export interface StoreClientOptions {
  readonly clock: Clock
  readonly random: Random
  readonly callTimeoutMs: number
}

/** Whose claim took a lock away from its holder. */
export interface Thief {
  readonly lockName: string
  readonly holderId: string
  readonly fencingToken: number
}

/** A claim, and whether anybody still wants it. A grant that arrives for one that is over has to be given back. */
export interface TrackedClaim extends Claim {
  over: boolean
}

/**
 * All that a process has to do with one driver: lists instead of single calls, a deadline for every call whatever the socket
 * does, one subscription for all waiters, and releases that are sent until they arrive.
 */
export class StoreClient {
  readonly driver: Driver
  readonly wakeUps: WakeUps
  /** Called with a lease that was granted by taking the lock from whoever held it. */
  readonly onStolen = new Set<(thief: Thief) => void>()
  readonly #options: StoreClientOptions
  readonly #calls: CallDeadlines
  readonly #acquires: Batch<TrackedClaim, AcquireAnswer>
  readonly #renewals: Batch<Renewal, RenewAnswer>
  readonly #releases: Batch<LeaseRef, boolean>
  readonly #consumes: Batch<RateRequest, RateAnswer>
  readonly #detached = new Set<Promise<void>>()
  readonly #postponed = new Set<() => void>()
  readonly #givenUp = new AbortController()

  constructor(driver: Driver, options: StoreClientOptions) {
    const { clock, random, callTimeoutMs } = options
    this.driver = driver
    this.#options = options
    this.#calls = new CallDeadlines(driver, clock, callTimeoutMs)
    this.wakeUps = new WakeUps({ driver, clock, random, calls: this.#calls })
    const bounds = { most: MAX_LIST, split: driver.listSplit }
    this.#acquires = new Batch<TrackedClaim, AcquireAnswer>(clock, { ...bounds, together: inOneGroup }, (claims) =>
      this.#acquireList(claims),
    )
    this.#renewals = new Batch(clock, bounds, (renewals) => this.#list('renew', renewals, () => driver.renew(renewals)))
    this.#releases = new Batch(clock, bounds, (leases) => this.#releaseList(leases))
    this.#consumes = new Batch(clock, bounds, (requests) =>
      this.#list('consume', requests, async () => {
        if (driver.consume === undefined) throw unsupported(driver, 'rate')
        return driver.consume(requests)
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

  release(lease: LeaseRef, receiver: Receiver<boolean>): void {
    this.#releases.add(lease, receiver)
  }

  consume(request: RateRequest, receiver: Receiver<RateAnswer>): void {
    this.#consumes.add(request, receiver)
  }

  /**
   * For a store inside the process, which has no round trip that a list could save: its answer, without a promise if it gave it so. Undefined for
   * any other store.
   */
  consumeAtOnce(request: RateRequest): RateAnswer | Promise<RateAnswer> | undefined {
    if (this.driver.capabilities.scope !== 'process' || this.driver.consume === undefined) return undefined
    const answers = this.driver.consume([request])
    const answer = Array.isArray(answers) && answers.length === 1 ? (answers[0] as RateAnswer | Error) : undefined
    return answer === undefined || answer instanceof Error ? this.#consumeLate(request, answers) : answer
  }

  inspect(query: InspectQuery): Promise<InspectPage> {
    // Whoever reads page after page of a local store must leave the event loop its turns.
    return turnsOf(this.#options.clock).settle(this.#calls.run('inspect', () => this.driver.inspect(query)))
  }

  /** Ends whatever the claim has or will have got, in the background: no abort of the caller's stops it. */
  withdraw(claim: TrackedClaim, onFailure: (error: unknown) => void): Promise<void> {
    claim.over = true
    return this.releaseUntilAnswered({ lockName: claim.lockName, claimId: claim.claimId }, onFailure)
  }

  /**
   * Sends a release, in the background, until the store has answered it, no further try can help, or the stated number of tries is used up. Never rejects.
   */
  releaseUntilAnswered(lease: LeaseRef, onFailure: (error: unknown) => void): Promise<void> {
    const work = this.#releaseUntilAnswered(lease, onFailure).finally(() => this.#detached.delete(work))
    this.#detached.add(work)
    return work
  }

  /** For stores that cannot end a lease by themselves: this process does it, if it lives. */
  releaseLater(lease: LeaseRef, delayMs: number, onFailure: (error: unknown) => void): void {
    const release = (): void => {
      this.#postponed.delete(release)
      timer.cancel()
      void this.releaseUntilAnswered(lease, onFailure)
    }
    const timer = this.#options.clock.setTimer(release, delayMs)
    this.#postponed.add(release)
  }

  /** Resolves when nothing is left running in the background. */
  async settled(): Promise<void> {
    while (this.#detached.size > 0) await Promise.all(this.#detached)
  }

  async close(): Promise<void> {
    for (const release of [...this.#postponed]) release()
    await this.settled()
    await this.wakeUps.close()
    this.#calls.close()
  }

  /** The store does not answer, and nobody waits for it any longer: nothing that was asked may keep the process from its end. */
  giveUp(error: HoldfastError): void {
    this.#calls.giveUp(error)
    this.#givenUp.abort()
  }

  #acquireList(claims: readonly TrackedClaim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const late = (answers: readonly (AcquireAnswer | Error)[]): void => {
      answers.forEach((answer, index) => {
        const claim = claims[index]
        if (claim === undefined || answer instanceof Error || !claim.over) return
        // Granted, or standing in the queue: both are for nobody.
        if (!answer.granted && claim.waitMs === 0) return
        void this.withdraw(claim, () => undefined)
      })
    }
    return this.#list('acquire', claims, () => this.driver.acquire(claims), late)
  }

  #releaseList(leases: readonly LeaseRef[]): Promise<readonly (boolean | Error)[]> {
    const answers = this.#list<boolean>('release', leases, () => this.driver.release(leases))
    if (this.driver.capabilities.wake) return answers
    // Without wake-ups from the store, the process at least tells itself.
    return answers.then((answered) => {
      for (const { lockName } of leases) this.wakeUps.wake(lockName)
      return answered
    })
  }

  async #consumeLate(request: RateRequest, answers: ReturnType<NonNullable<Driver['consume']>>): Promise<RateAnswer> {
    const [answer] = await this.#list<RateAnswer>('consume', [request], async () => answers)
    if (answer instanceof Error) throw answer
    return answer as RateAnswer
  }

  /** A call with a list: whatever is no answer to one of its entries means that it is not known. */
  #list<Answer>(
    what: keyof typeof isAnswerTo,
    requests: readonly unknown[],
    call: () => Promise<readonly (Answer | Error)[]>,
    late?: (answers: readonly (Answer | Error)[]) => void,
  ): Promise<readonly (Answer | Error)[]> {
    const lateList = (answers: readonly (Answer | Error)[]): void => {
      if (Array.isArray(answers) && answers.length === requests.length) late?.(this.#checked(what, requests, answers))
    }
    return this.#calls.run(what, call, lateList).then((answers) => this.#checked(what, requests, answers))
  }

  #checked<Answer>(
    what: keyof typeof isAnswerTo,
    requests: readonly unknown[],
    answers: unknown,
  ): readonly (Answer | Error)[] {
    if (!Array.isArray(answers) || answers.length !== requests.length) {
      const told = Array.isArray(answers) ? `${answers.length} answers` : 'no list'
      throw new StoreError(`the ${this.driver.name} driver gave ${told} to ${requests.length} requests to ${what}`)
    }
    const isAnswer = isAnswerTo[what]
    if (answers.every(isAnswer)) return answers
    return answers.map((answer: Answer | Error) => {
      if (answer instanceof Error) return this.#calls.asStoreError(what, answer)
      if (isAnswer(answer)) return answer
      const text = JSON.stringify(answer)?.slice(0, 200)
      return new StoreError(`the ${this.driver.name} driver answered a request to ${what} with ${text}`)
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
        await pause(clock, backoffMs(RETRY, tries, random), this.#givenUp.signal)
      }
    }
  }
}

const inOneGroup = (before: Claim, after: Claim): boolean => before.group !== undefined && before.group === after.group

/** What a driver may answer. Anything else means that nothing is known: a word that is not understood must not be taken for a yes or a no. */
const isAnswerTo = {
  acquire: (answer: unknown): boolean => typeof (answer as AcquireAnswer | undefined)?.granted === 'boolean',
  renew: (answer: unknown): boolean => answer === 'renewed' || answer === 'held' || answer === 'lost',
  release: (answer: unknown): boolean => typeof answer === 'boolean',
  consume: (answer: unknown): boolean => typeof (answer as RateAnswer | undefined)?.allowed === 'boolean',
}

/** One link for each driver, however many instances use it with the same settings: what they ask for in one turn goes in one list. */
export function openStoreClient(driver: Driver, options: StoreClientOptions): StoreClient {
  const shared = links.get(driver) ?? []
  links.set(driver, shared)
  const alike = shared.find(
    ({ clock, callTimeoutMs }) => clock === options.clock && callTimeoutMs === options.callTimeoutMs,
  )
  if (alike !== undefined) {
    alike.users += 1
    return alike.store
  }
  const store = new StoreClient(driver, options)
  shared.push({ ...options, store, users: 1 })
  return store
}

export async function closeStoreClient(store: StoreClient): Promise<void> {
  const shared = links.get(store.driver) ?? []
  const found = shared.find((each) => each.store === store)
  if (found === undefined) return
  found.users -= 1
  if (found.users > 0) return
  shared.splice(shared.indexOf(found), 1)
  await store.close()
}

/** For the last one who uses it: others may still wait for answers. */
export function giveUpStoreClient(store: StoreClient, error: HoldfastError): void {
  const found = links.get(store.driver)?.find((each) => each.store === store)
  if (found === undefined || found.users === 1) store.giveUp(error)
}

const links = new WeakMap<Driver, (StoreClientOptions & { readonly store: StoreClient; users: number })[]>()

const RETRY = { firstMs: 50, mostMs: 2_000 }
