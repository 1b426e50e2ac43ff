import { backoffMs } from './backoff.ts'
import { Batch } from './batch.ts'
import type { Clock, Timer } from './clock.ts'
import type {
  AcquireAnswer,
  Claim,
  Driver,
  DriverListener,
  Grant,
  InspectPage,
  InspectQuery,
  LeaseRef,
  RateAnswer,
  RateRequest,
  RenewAnswer,
  Renewal,
  StopListening,
} from './driver.ts'
import { HoldfastError, StoreError, UnsupportedError } from './errors.ts'
import { MAX_LIST, MAX_RELEASE_TRIES } from './limits.ts'
import type { Random } from './random.ts'

/** A claim that waits, as the link sees it. */
export interface Waiter {
  readonly claim: Claim
  /** A hint to ask again. */
  wake(): void
  /** The store granted it by itself. */
  granted(grant: Grant): void
  /** It has come to the front of the process's own line and may ask. */
  lead(): void
}

export interface LinkOptions {
  readonly clock: Clock
  readonly random: Random
  readonly callTimeoutMs: number
}

/**
 * All that a process has to do with one driver: lists instead of single calls, a deadline for every call whatever the socket
 * does, one subscription for all waiters, and releases that are sent until they arrive.
 */
export class Link {
  readonly driver: Driver
  /** Called when wake-ups cannot be listened to. */
  readonly onListenFailed = new Set<(error: unknown) => void>()
  readonly #options: LinkOptions
  readonly #acquires: Batch<Claim, AcquireAnswer>
  readonly #renewals: Batch<Renewal, RenewAnswer>
  readonly #releases: Batch<LeaseRef, boolean>
  readonly #consumes: Batch<RateRequest, RateAnswer>
  /** Claims that nobody wants any more. A grant that arrives for one of them has to be given back. */
  readonly #over = new WeakSet<Claim>()
  readonly #detached = new Set<Promise<void>>()
  readonly #postponed = new Set<() => void>()
  readonly #waiters = new Map<string, Set<Waiter>>()
  readonly #waitersByClaim = new Map<string, Waiter>()
  readonly #leasesByClaim = new Map<string, (cause: Error) => void>()
  #listening: Promise<number | undefined> | undefined
  #stopListening: StopListening | undefined
  /** Which listening is meant: one that ended while it was still beginning is stopped as soon as it has begun. */
  #generation = 0
  #listenTries = 0
  #idleTimer: Timer | undefined
  #retryTimer: Timer | undefined
  #closed = false

  constructor(driver: Driver, options: LinkOptions) {
    this.driver = driver
    this.#options = options
    this.#acquires = new Batch(MAX_LIST, (claims) => this.#acquireInTime(claims))
    this.#renewals = new Batch(MAX_LIST, (renewals) => this.#list('renew', renewals, () => driver.renew(renewals)))
    this.#releases = new Batch(MAX_LIST, (leases) => this.#list('release', leases, () => driver.release(leases)))
    this.#consumes = new Batch(MAX_LIST, (requests) =>
      this.#list('consume', requests, () => {
        if (driver.consume === undefined) throw new UnsupportedError(`the ${driver.name} driver has no rate limits`)
        return driver.consume(requests)
      }),
    )
  }

  acquire(claim: Claim): Promise<AcquireAnswer> {
    return this.#acquires.add(claim)
  }

  renew(renewal: Renewal): Promise<RenewAnswer> {
    return this.#renewals.add(renewal)
  }

  consume(request: RateRequest): Promise<RateAnswer> {
    return this.#consumes.add(request)
  }

  inspect(query: InspectQuery): Promise<InspectPage> {
    return this.#inTime('inspect', () => this.driver.inspect(query))
  }

  async release(lease: LeaseRef): Promise<boolean> {
    const released = await this.#releases.add(lease)
    // Without wake-ups from the store, the process at least tells itself.
    if (!this.driver.capabilities.wake) this.#wake(lease.lockName)
    return released
  }

  /** From now on a late grant of this claim is given back. */
  forget(claim: Claim): void {
    this.#over.add(claim)
  }

  /** Ends whatever the claim has or will have got, in the background: no abort of the caller's stops it. */
  withdraw(claim: Claim, onFailure: (error: unknown) => void): Promise<void> {
    this.forget(claim)
    return this.releaseUntilAnswered({ lockName: claim.lockName, claimId: claim.claimId }, onFailure)
  }

  /** Sends a release, in the background, until the store has answered it or the stated number of tries is used up. Never rejects. */
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

  /** True if the waiter may ask at once: where the store has no queue, only the first of this process contends. */
  join(waiter: Waiter): boolean {
    const { lockName, claimId } = waiter.claim
    const line = this.#waiters.get(lockName) ?? new Set()
    this.#waiters.set(lockName, line)
    line.add(waiter)
    this.#waitersByClaim.set(claimId, waiter)
    this.#idleTimer?.cancel()
    this.#idleTimer = undefined
    return this.driver.capabilities.queue || line.size === 1
  }

  leave(waiter: Waiter): void {
    const { lockName, claimId } = waiter.claim
    const line = this.#waiters.get(lockName)
    if (line === undefined || !line.has(waiter)) return
    const [first] = line
    line.delete(waiter)
    this.#waitersByClaim.delete(claimId)
    if (line.size === 0) this.#waiters.delete(lockName)
    if (first === waiter && !this.driver.capabilities.queue) {
      const [next] = line
      next?.lead()
    }
    if (this.#waiters.size === 0) this.#stopWhenIdle()
  }

  /** To be told at once when the store itself ends a lease. Listens as long as somebody watches. Returns what ends the watching. */
  watchLoss(claimId: string, lost: (cause: Error) => void): () => void {
    this.#leasesByClaim.set(claimId, lost)
    void this.listen()
    return () => {
      this.#leasesByClaim.delete(claimId)
      if (this.#waiters.size === 0) this.#stopWhenIdle()
    }
  }

  /**
   * Makes sure that wake-ups arrive. Resolves with the moment (monotonic) since which they do, or with undefined where the
   * driver has none or could not listen just now.
   */
  listen(): Promise<number | undefined> {
    this.#listening ??= this.#listen()
    return this.#listening
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#idleTimer?.cancel()
    this.#retryTimer?.cancel()
    for (const release of [...this.#postponed]) release()
    await this.settled()
    await this.#endListening()
  }

  async #acquireInTime(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    return this.#list(
      'acquire',
      claims,
      () => this.driver.acquire(claims),
      (answers) => {
        answers.forEach((answer, index) => {
          const claim = claims[index]
          if (claim === undefined || answer instanceof Error || !this.#over.has(claim)) return
          // Granted, or standing in the queue: both are for nobody.
          if (!answer.granted && claim.waitMs === 0) return
          void this.withdraw(claim, () => undefined)
        })
      },
    )
  }

  /** A call with a list: whatever is no answer to one of its entries means that it is not known. */
  async #list<Answer>(
    what: string,
    requests: readonly unknown[],
    call: () => Promise<readonly (Answer | Error)[]>,
    late?: (answers: readonly (Answer | Error)[]) => void,
  ): Promise<readonly (Answer | Error)[]> {
    const checked = (answers: unknown): readonly (Answer | Error)[] => {
      if (!Array.isArray(answers) || answers.length !== requests.length) {
        const told = Array.isArray(answers) ? `${answers.length} answers` : 'no list'
        throw new StoreError(`the ${this.driver.name} driver gave ${told} to ${requests.length} requests to ${what}`)
      }
      return answers.map((answer: Answer | Error | undefined | null) => {
        if (answer instanceof Error) return this.#asStoreError(what, answer)
        return answer ?? new StoreError(`the ${this.driver.name} driver gave no answer to a request to ${what}`)
      })
    }
    const answers = await this.#inTime(what, call, (answered) => {
      if (Array.isArray(answered) && answered.length === requests.length) late?.(checked(answered))
    })
    return checked(answers)
  }

  /** Rejects when the call's time is up, whatever the socket does. An answer that comes later still reaches `late`. */
  #inTime<Answer>(what: string, call: () => Promise<Answer>, late?: (answer: Answer) => void): Promise<Answer> {
    const { clock, callTimeoutMs } = this.#options
    return new Promise((resolve, reject) => {
      let answered = false
      const timer = clock.setTimer(
        () => {
          answered = true
          reject(new StoreError(`the ${this.driver.name} store did not answer ${what} within ${callTimeoutMs} ms`))
        },
        callTimeoutMs,
        true,
      )
      // In a promise's own function, so that a driver that throws instead of rejecting is caught, too.
      new Promise<Answer>((go) => go(call())).then(
        (answer) => {
          timer.cancel()
          if (answered) late?.(answer)
          else resolve(answer)
        },
        (error: unknown) => {
          timer.cancel()
          reject(this.#asStoreError(what, error))
        },
      )
    })
  }

  /** Drivers wrap their clients' errors themselves; this stands behind a driver that forgot to. */
  #asStoreError(what: string, error: unknown): HoldfastError {
    if (error instanceof HoldfastError) return error
    const message = error instanceof Error ? error.message : String(error)
    return new StoreError(`the ${this.driver.name} store failed to ${what}: ${message}`, { cause: error })
  }

  async #releaseUntilAnswered(lease: LeaseRef, onFailure: (error: unknown) => void): Promise<void> {
    for (let tries = 1; ; tries += 1) {
      try {
        await this.release(lease)
        return
      } catch (error) {
        onFailure(error)
        if (tries === MAX_RELEASE_TRIES) return
        await this.#pause(backoffMs(RETRY, tries, this.#options.random))
      }
    }
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.#options.clock.setTimer(resolve, ms, true)
    })
  }

  async #listen(): Promise<number | undefined> {
    if (this.driver.listen === undefined || this.#closed) return undefined
    let deaf = false
    const generation = this.#generation
    const listener: DriverListener = {
      wake: (lockName, claimId) => this.#wake(lockName, claimId),
      granted: (claimId, grant) => this.#waitersByClaim.get(claimId)?.granted(grant),
      lost: (claimId, cause) => this.#leasesByClaim.get(claimId)?.(cause),
      deaf: (cause) => {
        if (deaf) return
        deaf = true
        this.#goneDeaf(cause)
      },
    }
    try {
      const driverListen = this.driver.listen.bind(this.driver)
      const stop = await this.#inTime(
        'listen',
        () => driverListen(listener),
        (stopLate) => this.#stop(stopLate),
      )
      if (deaf) return undefined
      if (this.#closed || generation !== this.#generation) {
        this.#stop(stop)
        return undefined
      }
      this.#stopListening = stop
      this.#listenTries = 0
      return this.#options.clock.now().monotonicMs
    } catch (error) {
      this.#goneDeaf(error)
      return undefined
    }
  }

  /** Wake-ups may have been missed: listens again after a pause, and then everybody looks again. */
  #goneDeaf(cause: unknown): void {
    this.#stopListening = undefined
    if (this.#closed) return
    this.#tellListenFailed(cause)
    // Until then, whoever asks gets "not listening" and polls.
    this.#listening = Promise.resolve(undefined)
    this.#listenTries += 1
    this.#retryTimer?.cancel()
    this.#retryTimer = this.#options.clock.setTimer(
      () => {
        this.#listening = undefined
        if (this.#waiters.size === 0 && this.#leasesByClaim.size === 0) return
        void this.listen().then((since) => {
          if (since !== undefined) for (const lockName of [...this.#waiters.keys()]) this.#wake(lockName)
        })
      },
      backoffMs(RETRY, this.#listenTries, this.#options.random),
    )
  }

  #tellListenFailed(error: unknown): void {
    for (const tell of this.onListenFailed) tell(error)
  }

  #wake(lockName: string, claimId?: string): void {
    if (claimId !== undefined) {
      this.#waitersByClaim.get(claimId)?.wake()
      return
    }
    for (const waiter of [...(this.#waiters.get(lockName) ?? [])]) waiter.wake()
  }

  #stopWhenIdle(): void {
    if (this.#listening === undefined || this.#leasesByClaim.size > 0) return
    this.#idleTimer?.cancel()
    this.#idleTimer = this.#options.clock.setTimer(() => {
      if (this.#waiters.size === 0 && this.#leasesByClaim.size === 0) void this.#endListening()
    }, LINGER_MS)
  }

  async #endListening(): Promise<void> {
    const stop = this.#stopListening
    this.#stopListening = undefined
    this.#listening = undefined
    this.#generation += 1
    await stop?.().catch((error: unknown) => this.#tellListenFailed(error))
  }

  #stop(stop: StopListening): void {
    stop().catch((error: unknown) => this.#tellListenFailed(error))
  }
}

/** One link for each driver, however many instances use it with the same settings: what they ask for in one turn goes in one list. */
export function openLink(driver: Driver, options: LinkOptions): Link {
  const shared = links.get(driver) ?? []
  links.set(driver, shared)
  const alike = shared.find(
    ({ clock, callTimeoutMs }) => clock === options.clock && callTimeoutMs === options.callTimeoutMs,
  )
  if (alike !== undefined) {
    alike.users += 1
    return alike.link
  }
  const link = new Link(driver, options)
  shared.push({ ...options, link, users: 1 })
  return link
}

export async function closeLink(link: Link): Promise<void> {
  const shared = links.get(link.driver) ?? []
  const found = shared.find((each) => each.link === link)
  if (found === undefined) return
  found.users -= 1
  if (found.users > 0) return
  shared.splice(shared.indexOf(found), 1)
  await link.close()
}

const links = new WeakMap<Driver, (LinkOptions & { readonly link: Link; users: number })[]>()

const RETRY = { firstMs: 50, mostMs: 2_000 }

/** How long a subscription outlives its last waiter, so that a busy lock does not subscribe anew for every wait. */
const LINGER_MS = 1_000
