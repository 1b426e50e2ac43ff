import { checkFunction, checkJson, checkSignal, ttlMsFrom, waitMsFrom } from '../../core/arguments.ts'
import type { ClaimRequest, Holder } from '../../core/claim/holder.ts'
import type { LeaseRecord } from '../../core/driver.ts'
import { AbortedError, ClosedError, StoreError, UnsupportedError } from '../../core/errors.ts'
import type { LockEvent, LockListener } from '../../core/events.ts'
import { MAX_WAIT_MS } from '../../core/limits.ts'
import { checkLockName } from '../../core/names.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { backoffMs } from '../../core/time/backoff.ts'
import { systemClock } from '../../core/time/clock.ts'
import { pause } from '../../core/time/pause.ts'
import { systemRandom } from '../../core/time/random.ts'
import { everything } from '../everything.ts'
import { type CloseOptions, INSTANCE_OPTIONS, Instance, type InstanceOptions } from '../instance.ts'
import { heldLeaseOf } from '../lock/result.ts'
import type { CampaignOptions } from './campaign-options.ts'
import { type ObserveOptions, observeLeader } from './observe.ts'
import { type LeadOptions, leadRepeatedly } from './run.ts'
import { HeldTerm, type Term } from './term.ts'

export interface LeaderElectionOptions extends InstanceOptions {
  /** What is led. It is a lock name: whoever holds the lock of this name leads. */
  name: string
  /** A term's time to live without renewal, which is how long a crashed leader's successor waits. 15 if not said; from 0.05 to one year. */
  timeoutSeconds?: number
}

const OPTIONS = optionNames<LeaderElectionOptions>({ ...INSTANCE_OPTIONS, name: true, timeoutSeconds: true })
const CAMPAIGN_OPTIONS = optionNames<CampaignOptions>({
  value: true,
  signal: true,
  blockingTimeoutSeconds: true,
  maxTermSeconds: true,
  onDemoted: true,
})

/** Who leads, as the store shows it. */
export interface Leader<Value = unknown> {
  readonly name: string
  readonly holderId: string
  /** The term's number, which is its fencing token. */
  readonly term: number
  /** What the leader published. */
  readonly value: Value | undefined
  readonly since: Date
  /** When the term ends if it is not renewed, by the store's clock. */
  readonly expiresAt: Date
}

/**
 * Elects one leader at a time among all the processes that campaign for a name, on every driver. A lock with a published value: a term is a lease with a
 * heartbeat, its number is the fencing token.
 *
 * Candidates are elected first come, first served where the driver has a queue. Two campaigns of one instance exclude each other as any two do.
 */
export class LeaderElection<Value = unknown> implements AsyncDisposable {
  readonly name: string
  readonly #instance: Instance
  readonly #ttlMs: number
  readonly #clock
  readonly #random
  readonly #ended = new AbortController()
  #term: HeldTerm<Value> | undefined
  /** Aborted, and replaced, whenever this instance has begun or ended a term: its observers look at once. */
  #changed = new AbortController()

  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options: LeaderElectionOptions) {
    this.#instance = new Instance('LeaderElection', options, everything, OPTIONS)
    const { name, timeoutSeconds = 15 } = options
    checkLockName(name, 'name')
    this.name = name
    this.#ttlMs = ttlMsFrom('timeoutSeconds', timeoutSeconds)
    this.#clock = options.clock ?? systemClock
    this.#random = options.random ?? systemRandom
    // Not when a term ends, but when the store knows of it: a look before that would still find the old one.
    for (const event of ['acquired', 'released', 'lost'] as const) this.on(event, () => this.#tellChanged())
  }

  get holderId(): string {
    return this.#instance.holderId
  }

  /** This instance's term, if it leads now. */
  get term(): Term<Value> | undefined {
    return this.#term?.held ? this.#term : undefined
  }

  /**
   * Resolves when this candidate is elected, however long that takes. A store that is down, now or for hours, is tried again and again.
   *
   * Rejects with `NotAcquiredError` only if `blockingTimeoutSeconds` was said and is over (with `StoreError` if the store did not answer in it), with `AbortedError`,
   * `ClosedError`, `InvalidArgumentError`; with `StoreError` where asking again cannot help; and with `UnsupportedError` for a `value` that the driver
   * cannot keep. Whenever it does not end in a term, nothing is left behind in the store.
   */
  async campaign(options: CampaignOptions<Value> = {}): Promise<Term<Value>> {
    return this.#campaign(options)
  }

  /** Ends this instance's term, if it leads, and wakes the next candidate. True if it led. Campaigns under way go on: their own signal ends them. */
  async resign(): Promise<boolean> {
    // A drain waits for the term to end: this is how it does.
    this.#instance.assertNotEnded()
    return (await this.#term?.resign()) ?? false
  }

  /** Who leads now, by the store; undefined if nobody does. Throws `StoreError` if the store did not answer: not known is not nobody. */
  async leader(): Promise<Leader<Value> | undefined> {
    const holder = this.#instance.holder ?? (await this.#instance.open())
    const { leases } = await holder.inspect({ lockName: this.name })
    const [lease] = leases
    return lease && leaderFrom<Value>(lease)
  }

  /**
   * Who leads now, and then every change, undefined standing for nobody: `for await (const leader of election.observe()) …`. Looks every `everySeconds`
   * (1), and at once when this very instance is elected or demoted. A term that came and went between two looks is not told of.
   *
   * While the store does not answer nothing is told, and `onError` hears why. The loop ends when `signal` aborts or the instance is closed, and throws
   * where asking again cannot help.
   */
  observe(options: ObserveOptions = {}): AsyncIterableIterator<Leader<Value> | undefined> {
    return observeLeader(
      {
        clock: this.#clock,
        ended: this.#ended.signal,
        changed: () => this.#changed.signal,
        look: () => this.leader(),
      },
      options,
    )
  }

  /**
   * Campaigns, runs `lead` for as long as it leads, and campaigns again, until `signal` aborts or the instance is closed; then it resolves.
   *
   * - When the term is lost, or resigned from elsewhere, its `signal` aborts; the next campaign begins when `lead` has settled.
   * - When `lead` returns or throws, it has resigned. The next campaign begins after a rest of `restSeconds` (1), so that others come first; after each further
   *   failure in a row the rest is twice as long, up to 30 s.
   * - What `lead` throws goes to `onError`, and `run` goes on; without `onError`, `run` rejects with it. An abort or a loss that `lead` throws
   *   after its term's signal has aborted is no error: it is how it stops.
   * - When the caller's `signal` aborts, the term's signal aborts too, and the term is kept until `lead` has settled: it hands over when it is ready to.
   * - A store that is down is waited for, as `campaign` does. What else `campaign` throws, `run` rejects with.
   */
  async run(lead: (term: Term<Value>) => Promise<unknown> | unknown, options: LeadOptions<Value> = {}): Promise<void> {
    checkFunction('lead', lead)
    this.#instance.assertOpen()
    const parts = { clock: this.#clock, random: this.#random, ended: this.#ended.signal }
    const campaign = (how: CampaignOptions<Value>): Promise<HeldTerm<Value>> => this.#campaign(how)
    const running = <T>(work: Promise<T>): Promise<T> => this.#instance.holder?.running(work) ?? work
    return leadRepeatedly({ ...parts, campaign, running }, lead, options)
  }

  /** Opens the store and proves that it works, as `ping` of a `DistributedLock` does. */
  ping(): Promise<void> {
    return this.#instance.ping()
  }

  /**
   * Gives up campaigns, resigns, and closes the store if this instance opened it. The function that `run` runs is asked to stop at once, and leads on until it has
   * settled: for `drainSeconds` and then for three fifths of `timeoutSeconds` at the most. A term of `campaign` is kept for `drainSeconds` unless it is resigned.
   */
  async close(options: CloseOptions = {}): Promise<void> {
    const closing = this.#instance.close(options)
    this.#ended.abort(new ClosedError('this LeaderElection is being closed'))
    return closing
  }

  get closed(): boolean {
    return this.#instance.closed
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /** Returns what ends the listening. The same events as those of a lock: a term is a lease. */
  on<E extends LockEvent>(event: E, listener: LockListener<E>): () => void {
    return this.#instance.events.on(event, listener)
  }

  async #campaign(options: CampaignOptions<Value>): Promise<HeldTerm<Value>> {
    const { request, endless } = this.#request(options)
    this.#instance.assertOpen()
    if (options.signal?.aborted) throw new AbortedError(`campaigning for "${this.name}"`, options.signal.reason)
    const holder = this.#instance.holder ?? (await this.#open(request))
    if (request.metadata !== undefined) assertPublishing(holder)
    for (;;) {
      let term: HeldTerm<Value> | undefined
      const result = await holder.acquire(request, () => this.#demote(term))
      if (result.granted) {
        term = new HeldTerm(result.lease, options.value, options.onDemoted)
        this.#term = term
        // It may have ended before anybody here knew of it.
        if (!term.held) this.#demote(term)
        return term
      }
      if (!endless) heldLeaseOf(this.name, result)
    }
  }

  #demote(term: HeldTerm<Value> | undefined): void {
    if (term === undefined) return
    if (this.#term === term) this.#term = undefined
    term.demote()
  }

  #tellChanged(): void {
    const told = this.#changed
    this.#changed = new AbortController()
    told.abort()
  }

  #request(options: CampaignOptions<Value>): { request: ClaimRequest; endless: boolean } {
    checkOptions(options, CAMPAIGN_OPTIONS)
    const { value, signal, blockingTimeoutSeconds, maxTermSeconds, onDemoted } = options
    const endless = blockingTimeoutSeconds === undefined
    if (onDemoted !== undefined) checkFunction('onDemoted', onDemoted)
    const request: ClaimRequest = {
      lockName: this.name,
      mode: 'exclusive',
      ttlMs: this.#ttlMs,
      waitMs: endless ? MAX_WAIT_MS : waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds),
      ...(value !== undefined && { metadata: { value: checkJson('value', value) } }),
      ...(signal !== undefined && { signal: checkSignal('signal', signal) }),
      heartbeat: true,
      minHoldMs: 0,
      maxHoldMs: maxTermSeconds === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('maxTermSeconds', maxTermSeconds),
    }
    return { request, endless }
  }

  /** A store that is down at the first use is waited for, as one that goes down later is. */
  async #open({ waitMs, signal }: ClaimRequest): Promise<Holder> {
    const untilMs = this.#clock.now().monotonicMs + waitMs
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#instance.open()
      } catch (error) {
        const restMs = backoffMs(OPENING, tries, this.#random)
        const isOver = this.#clock.now().monotonicMs + restMs >= untilMs
        if (!(error instanceof StoreError) || !error.retryable || isOver) throw error
        await pause(this.#clock, restMs, signal, this.#ended.signal)
      }
      if (signal?.aborted) throw new AbortedError(`campaigning for "${this.name}"`, signal.reason)
    }
  }
}

const leaderFrom = <Value>(record: LeaseRecord): Leader<Value> => ({
  name: record.lockName,
  holderId: record.holderId,
  term: record.fencingToken,
  // The type is the caller's word for what its own candidates publish.
  value: record.metadata?.['value'] as Value | undefined,
  since: new Date(record.acquiredAtMs),
  expiresAt: new Date(record.expiresAtMs ?? 8.64e15),
})

function assertPublishing({ store: { driver } }: Holder): void {
  if (driver.capabilities.metadata) return
  throw new UnsupportedError(
    `the ${driver.name} driver keeps nothing beside a lock, so a leader cannot publish a value there; others do see its holderId`,
  )
}

const OPENING = { firstMs: 100, maxMs: 2_000 }
