import type {
  AcquireAnswer,
  Claim,
  Driver,
  ForceOptions,
  Grant,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  RateAnswer,
  RateRequest,
  RatesPage,
  RatesQuery,
  Refusal,
  RenewAnswer,
  Renewal,
} from '../driver.ts'
import { type HoldfastError, isOutage } from '../errors.ts'
import { FORCE_TIMEOUT_MS, MAX_RELEASE_TRIES } from '../limits.ts'
import { checkedPage, isGrant, isRateAnswer, isRefusal, trimmed } from '../store-answers.ts'
import { pause } from '../time/abort.ts'
import { AFTER_OUTAGE, backoffMs } from '../time/backoff.ts'
import { turnsOf } from '../time/turns.ts'
import { unsupported } from '../unsupported.ts'
import { type CallOptions, Calls, type Requests } from './calls.ts'
import { Waiters } from './waiters.ts'

export interface TrackedClaim extends Claim {
  /**
   * Whether this process wants nothing of the claim in the store any more: the claim was given up, or its lease was
   * released or lost. A grant that arrives after that is released.
   */
  abandoned: boolean
}

/**
 * The requests to one driver of all instances that share it: sent in lists, with a deadline for every call, one
 * subscription for all waiters, and releases that are sent again until the store answers.
 */
export class StoreClient {
  readonly driver: Driver
  readonly waiters: Waiters
  readonly claims: Requests<TrackedClaim, AcquireAnswer>
  readonly renewals: Requests<Renewal, RenewAnswer>
  readonly releases: Requests<LeaseRef, boolean>
  readonly rateSteps: Requests<RateRequest, RateAnswer>
  readonly #options: CallOptions
  readonly #calls: Calls
  /** Releases in flight that no caller waits for. */
  readonly #background = new Set<Promise<void>>()
  /** Releases that `releaseLater` has scheduled. `close` sends them at once. */
  readonly #postponed = new Set<() => void>()

  constructor(driver: Driver, options: CallOptions) {
    const { clock, random } = options
    this.driver = driver
    this.#options = options
    this.#calls = new Calls(driver, options)
    this.waiters = new Waiters({ driver, clock, random, calls: this.#calls })
    const { extensions = {}, capabilities } = driver
    const byName = extensions.partOf && {
      partOf: ({ lockName }: { readonly lockName: string }) => extensions.partOf?.(lockName),
    }
    const split = extensions.listSplit
    this.claims = this.#calls.requests<TrackedClaim, AcquireAnswer>({
      what: 'acquire',
      send: (claims, call) => driver.acquire(claims, call),
      valid: (answer, claim) => validAcquire(answer, claim, capabilities.fencing),
      late: this.#withdrawAbandoned,
      areInseparable: inOneGroup,
      split,
      ...byName,
    })
    this.renewals = this.#calls.requests<Renewal, RenewAnswer>({
      what: 'renew',
      send: (renewals) => driver.renew(renewals),
      valid: (answer) => (answer === 'renewed' || answer === 'held' || answer === 'lost' ? answer : undefined),
      // Not split: callers wait for claims and releases, and for hardly any renewal.
      ...byName,
    })
    this.releases = this.#calls.requests<LeaseRef, boolean>({
      what: 'release',
      send: (leases) => driver.release(leases),
      valid: (answer) => (typeof answer === 'boolean' ? answer : undefined),
      // The store sends no wake-ups, so the process at least wakes its own waiters.
      ...(!capabilities.wake && { answered: this.#wakeOwn }),
      split,
      ...byName,
    })
    this.rateSteps = this.#calls.requests<RateRequest, RateAnswer>({
      what: 'consume',
      async send(requests) {
        if (driver.consume === undefined) throw unsupported(driver, 'rate')
        return driver.consume(requests)
      },
      valid: (answer) => (isRateAnswer((answer ?? {}) as RateAnswer) ? answer : undefined),
      split,
    })
  }

  get callTimeoutMs(): number {
    return this.#options.callTimeoutMs
  }

  inspect(query: InspectQuery): Promise<InspectPage> {
    // A caller that reads many pages of a local store must not block the event loop.
    const page = this.#calls.run('inspect', async () => checkedPage(this.driver.name, await this.driver.inspect(query)))
    return turnsOf(this.#options.clock).settle(page)
  }

  /** Undefined if the driver cannot list its rate limits. */
  inspectRates(query: RatesQuery): Promise<RatesPage | undefined> {
    return this.#calls.run('inspectRates', async () => this.driver.extensions?.inspectRates?.(query))
  }

  /** Ends leases of other clients. See `DriverExtensions.forceRelease`. Throws `UnsupportedError`. */
  async forceRelease(leases: readonly LeaseRecord[], options: ForceOptions): Promise<readonly (boolean | Error)[]> {
    const { extensions } = this.driver
    if (extensions?.forceRelease === undefined) throw unsupported(this.driver, 'force')
    const send = async (): Promise<readonly (boolean | Error)[]> => extensions.forceRelease?.(leases, options) ?? []
    return this.#calls.run('a forced release', send, { timeoutMs: FORCE_TIMEOUT_MS })
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

  /** Sends what is postponed. Resolves when no work is left in the background. */
  async settle(): Promise<void> {
    for (const release of [...this.#postponed]) release()
    await this.settled()
  }

  async close(): Promise<void> {
    await this.settle()
    await this.waiters.close()
    this.#calls.close()
  }

  /** Fails every request in flight and every later one, so that a store that does not answer keeps no process alive. */
  failAll(error: HoldfastError): void {
    this.#calls.failAll(error)
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
      if (!answer.granted && claim.waiterTtlMs === 0) return
      void this.withdraw(claim, () => undefined)
    })
  }

  readonly #wakeOwn = (leases: readonly LeaseRef[]): void => {
    for (const { lockName } of leases) this.waiters.wake({ lockName })
  }

  async #releaseUntilAnswered(lease: LeaseRef, onFailure: (error: unknown) => void): Promise<void> {
    for (let tries = 1; ; tries += 1) {
      try {
        await this.releases.ask(lease)
        return
      } catch (error) {
        onFailure(error)
        if (tries === MAX_RELEASE_TRIES || !isOutage(error)) return
        const { clock, random } = this.#options
        await pause(clock, backoffMs(AFTER_OUTAGE, tries, random), this.#calls.failed)
      }
    }
  }
}

const inOneGroup = (before: Claim, after: Claim): boolean => before.group !== undefined && before.group === after.group

/** A grant for longer than the claim asked for is trusted only for that long. */
function validAcquire(answer: AcquireAnswer, claim: Claim, needsToken: boolean): AcquireAnswer | undefined {
  const { granted } = (answer ?? {}) as Partial<AcquireAnswer>
  if (granted === false) return isRefusal(answer as Refusal) ? answer : undefined
  return granted === true && isGrant(answer as Grant, needsToken) ? trimmed(answer as Grant, claim) : undefined
}

/**
 * Instances that use one driver with the same settings share one client, so that their requests of one turn of the
 * event loop go out in one list. `purpose`: what must not be in one list with anything else.
 */
export function openStoreClient(driver: Driver, options: CallOptions, purpose: Purpose = 'locks'): OpenedStore {
  const shared = clients.get(driver) ?? []
  clients.set(driver, shared)
  const { clock, callTimeoutMs } = options
  const existing = shared.find(
    (each) => each.purpose === purpose && each.clock === clock && each.callTimeoutMs === callTimeoutMs,
  )
  const client = existing ?? {
    clock,
    callTimeoutMs,
    purpose,
    store: new StoreClient(driver, options),
    users: new Set(),
  }
  if (existing === undefined) shared.push(client)
  return new OpenedStore(client, shared)
}

/** Wait markers: a client without the right to them has every list rejected that contains one. */
type Purpose = 'locks' | 'markers'

/** What one instance has of a client that it may share. */
export class OpenedStore {
  readonly store: StoreClient
  readonly #client: SharedClient
  readonly #shared: SharedClient[]
  #error: HoldfastError | undefined

  constructor(client: SharedClient, shared: SharedClient[]) {
    this.store = client.store
    this.#client = client
    this.#shared = shared
    client.users.add(this)
  }

  /** Waits for no more answers. When no instance does, all requests fail, and the client takes no new instance. */
  giveUp(error: HoldfastError): void {
    this.#error ??= error
    this.#failIfUnused(error)
  }

  async close(): Promise<void> {
    const { users } = this.#client
    if (!users.has(this)) return
    const others = [...users].filter((user) => user !== this)
    const givenUp = others.map((user) => user.#error).find((error) => error !== undefined)
    // If no other instance is left that waits for answers, what this one has postponed is sent first.
    if (others.every((user) => user.#error !== undefined)) await this.store.settle()
    users.delete(this)
    if (users.size > 0) {
      if (givenUp !== undefined) this.#failIfUnused(givenUp)
      return
    }
    this.#remove()
    await this.store.close()
  }

  #failIfUnused(error: HoldfastError): void {
    for (const user of this.#client.users) if (user.#error === undefined) return
    this.#remove()
    this.store.failAll(error)
  }

  #remove(): void {
    const at = this.#shared.indexOf(this.#client)
    if (at !== -1) this.#shared.splice(at, 1)
  }
}

interface SharedClient extends Omit<CallOptions, 'random'> {
  readonly purpose: Purpose
  readonly store: StoreClient
  readonly users: Set<OpenedStore>
}

const clients = new WeakMap<Driver, SharedClient[]>()
