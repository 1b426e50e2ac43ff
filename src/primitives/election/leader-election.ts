import { storeOpener } from '../../connect.ts'
import { checkFunction, checkLockName, checkSignal, ttlMsFrom } from '../../core/arguments.ts'
import type { Holder } from '../../core/claim/holder.ts'
import type { LeaseRecord } from '../../core/driver.ts'
import { AbortedError, StoreError, UnsupportedError } from '../../core/errors.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { NO_EXPIRY_MS } from '../../core/lock-info.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { pause } from '../../core/time/abort.ts'
import { Instance } from '../instance.ts'
import { INSTANCE_OPTIONS, type InstanceOptions } from '../instance-options.ts'
import { leaseOf } from '../lock/claims.ts'
import { Primitive } from '../primitive.ts'
import { type LeadOptions, leadRepeatedly } from './run.ts'
import { type CampaignOptions, campaignRequest, HeldTerm, type Term } from './term.ts'

export interface LeaderElectionOptions extends InstanceOptions {
  /** What is led. It is a lock name: the holder of that lock leads. */
  name: string
  /**
   * The time to live of a term. A heartbeat renews it. When a leader crashes, its successor waits this long. From 0.05
   * to one year.
   *
   * @default 15
   */
  timeoutSeconds?: number
}

export interface ObserveOptions {
  /**
   * How often to look. At least 0.05.
   *
   * @default 1
   */
  everySeconds?: number
  /** Ends the loop. */
  signal?: AbortSignal
  /** Called when the store did not answer. The loop goes on. */
  onError?: (error: StoreError) => void
}

const OPTIONS = optionNames<LeaderElectionOptions>({ ...INSTANCE_OPTIONS, name: true, timeoutSeconds: true })
const OBSERVE_OPTIONS = optionNames<ObserveOptions>({ everySeconds: true, signal: true, onError: true })

/** The leader, as the store shows it. */
export interface Leader<Value = unknown> {
  readonly name: string
  readonly holderId: string
  /** The number of the term, which is its fencing token. */
  readonly term: number
  /** What the leader published. */
  readonly value: Value | undefined
  /** By the store's clock. */
  readonly since: Date
  /** When the term ends if it is not renewed, by the store's clock. */
  readonly expiresAt: Date
}

/**
 * Elects one leader at a time among all processes that campaign for a name. It works with every driver. It is a lock
 * with a published value: a term is a lease with a heartbeat, and its number is the fencing token.
 *
 * With a driver that has a queue, candidates are elected first come, first served. Two campaigns of one instance
 * exclude each other like any others.
 *
 * Closing ends campaigns and resigns. The function of `run` is asked to stop at once, and leads until it has settled:
 * at most for `drainSeconds` and then for three fifths of `timeoutSeconds`. A term of `campaign` is kept for
 * `drainSeconds` unless it is resigned.
 *
 * @example
 * ```ts
 * const election = new LeaderElection({ url: 'redis://localhost:6379', name: 'scheduler' })
 * await election.run(async (term) => {
 *   while (!term.signal.aborted) await runDueJobs(term.fencingToken)
 * })
 * ```
 */
export class LeaderElection<Value = unknown> extends Primitive {
  readonly name: string
  readonly #instance: Instance
  readonly #ttlMs: number
  #term: HeldTerm<Value> | undefined
  /** Aborted and replaced when this instance has begun or ended a term: its observers then look at once. */
  #changed = new AbortController()

  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(options: LeaderElectionOptions) {
    const instance = new Instance('LeaderElection', options, storeOpener, OPTIONS)
    super(instance)
    this.#instance = instance
    const { name, timeoutSeconds = 15 } = options
    checkLockName(name, 'name')
    this.name = name
    this.#ttlMs = ttlMsFrom('timeoutSeconds', timeoutSeconds)
    // Events come when the store knows of the change. A look at the moment when a term ends would find the old leader.
    for (const event of ['acquired', 'released', 'lost'] as const) this.on(event, () => this.#notifyObservers())
  }

  /** This instance's term if it leads now. */
  get term(): Term<Value> | undefined {
    return this.#term?.held ? this.#term : undefined
  }

  /**
   * Resolves when this candidate is elected, however long that takes. If the store is down, it tries again until the
   * store is up. Unless it resolves with a term, nothing is left behind in the store.
   *
   * @throws `NotAcquiredError` only if `blockingTimeoutSeconds` was set and has passed
   * @throws `StoreError` if the store did not answer within `blockingTimeoutSeconds`, or if asking again cannot help
   * @throws `UnsupportedError` for a `value` that the driver cannot keep
   * @throws `AbortedError`, `InvalidArgumentError`, `OverloadError`, `ClosedError`
   */
  async campaign(options: CampaignOptions<Value> = {}): Promise<Term<Value>> {
    return this.#campaign(options)
  }

  /**
   * Ends this instance's term, if it leads, and wakes the next candidate. True if it led. Campaigns of this instance go
   * on; abort their signals to end them.
   *
   * @throws `StoreError` if the store did not answer. The release is then sent again in the background
   * @throws `ClosedError`
   */
  async resign(): Promise<boolean> {
    // Allowed during `drainSeconds`: draining waits for the term to end.
    this.#instance.assertNotEnded()
    return (await this.#term?.resign()) ?? false
  }

  /**
   * The current leader according to the store, or undefined if there is none.
   *
   * @throws `StoreError` if the store did not answer. It never resolves with undefined for that
   * @throws `ClosedError`
   */
  async leader(): Promise<Leader<Value> | undefined> {
    const holder = await this.#instance.open()
    const { leases } = await holder.inspect({ lockName: this.name })
    const [lease] = leases
    return lease && leaderFrom<Value>(lease)
  }

  /**
   * Yields the current leader, and then every change: `for await (const leader of election.observe()) …`. Undefined
   * means that there is no leader. It looks every `everySeconds`, and at once when this instance is elected or demoted.
   * It does not notice a term that began and ended between two looks.
   *
   * While the store does not answer, it yields nothing and calls `onError`. The loop ends when `signal` aborts or the
   * instance is closed.
   *
   * @throws `InvalidArgumentError`. The loop throws a `StoreError` if asking again cannot help
   */
  observe(options: ObserveOptions = {}): AsyncIterableIterator<Leader<Value> | undefined> {
    const { everySeconds = 1, signal, onError } = checkOptions(options, OBSERVE_OPTIONS)
    const everyMs = ttlMsFrom('everySeconds', everySeconds)
    if (signal !== undefined) checkSignal('signal', signal)
    if (onError !== undefined) checkFunction('onError', onError)
    // Checked here: the body of a generator does not run before its first step.
    return this.#changes(everyMs, signal, onError)
  }

  async *#changes(
    everyMs: number,
    signal: AbortSignal | undefined,
    onError: ObserveOptions['onError'],
  ): AsyncIterableIterator<Leader<Value> | undefined> {
    const { clock, closing } = this.#instance
    const isOver = (): boolean => closing.aborted || signal?.aborted === true
    /** The term that was yielded last: undefined for no leader, null before the first. */
    let yielded: number | undefined | null = null
    while (!isOver()) {
      // Read before the look: a change during the look is a reason for another one.
      const change = this.#changed.signal
      try {
        const leader = await this.leader()
        if (isOver()) return
        if (leader?.term !== yielded) {
          yielded = leader?.term
          yield leader
        }
      } catch (error) {
        if (isOver()) return
        if (!(error instanceof StoreError) || !error.retryable) throw error
        onError?.(error)
      }
      await pause(clock, everyMs, signal, closing, change)
    }
  }

  /**
   * Campaigns, runs `lead` while it leads, and campaigns again. Resolves when `signal` aborts or the instance is
   * closed.
   *
   * - When the term is lost, or resigned elsewhere, its `signal` aborts. The next campaign begins when `lead` has
   *   settled.
   * - When `lead` returns or throws, the term is resigned. The next campaign begins after `restSeconds`, so that other
   *   candidates come first. The rest doubles with each further failure in a row, up to 30 seconds.
   * - Errors of `lead` go to `onError`, and `run` goes on. Without `onError`, `run` rejects with the error. An abort or
   *   loss that `lead` throws after the term's signal has aborted is not an error: that is how it stops.
   * - When the caller's `signal` aborts, the term's signal aborts too. The term is kept until `lead` has settled, so
   *   that it can hand over.
   * - If the store is down, it waits, as `campaign` does.
   *
   * @throws what `lead` throws if there is no `onError`; what `onError` throws; what `campaign` throws
   */
  async run(lead: (term: Term<Value>) => Promise<unknown> | unknown, options: LeadOptions<Value> = {}): Promise<void> {
    checkFunction('lead', lead)
    this.#instance.assertOpen()
    return leadRepeatedly(this.#instance, (how) => this.#campaign(how), lead, options)
  }

  async #campaign(options: CampaignOptions<Value>): Promise<HeldTerm<Value>> {
    const request = campaignRequest(this.name, this.#ttlMs, options)
    const { signal } = request
    this.#instance.assertOpen()
    if (signal?.aborted) throw new AbortedError(`campaigning for "${this.name}"`, signal.reason)
    const holder = await this.#instance.openFor(request)
    if (request.metadata !== undefined) assertPublishes(holder)
    for (;;) {
      const term = await holder.acquire(request, (end) => {
        if (options.blockingTimeoutSeconds === undefined && !(end instanceof LeaseUse)) return undefined
        return this.#begin(leaseOf(this.name, end), options)
      })
      if (term !== undefined) return term
    }
  }

  #begin(use: LeaseUse, options: CampaignOptions<Value>): HeldTerm<Value> {
    const term = new HeldTerm(use, options)
    this.#term = term
    use.onEnd = () => this.#demote(term)
    // A listener may have ended it.
    if (!term.held) this.#demote(term)
    return term
  }

  #demote(term: HeldTerm<Value>): void {
    if (this.#term === term) this.#term = undefined
    term.demote()
  }

  #notifyObservers(): void {
    const before = this.#changed
    this.#changed = new AbortController()
    before.abort()
  }
}

const leaderFrom = <Value>(record: LeaseRecord): Leader<Value> => ({
  name: record.lockName,
  holderId: record.holderId,
  term: record.fencingToken,
  // The type is the caller's statement of what its own candidates publish.
  value: record.metadata?.['value'] as Value | undefined,
  since: new Date(record.acquiredAtMs),
  expiresAt: new Date(record.expiresAtMs ?? NO_EXPIRY_MS),
})

function assertPublishes({ capabilities, driverName }: Holder): void {
  if (capabilities.metadata) return
  throw new UnsupportedError(
    `the ${driverName} driver keeps no metadata with a lock, so a leader cannot publish a value. Others can see its ` +
      'holderId',
  )
}
