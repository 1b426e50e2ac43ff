import { checkFunction, checkJson, checkSignal, ttlMsFrom, waitMsFrom } from '../../core/arguments.ts'
import { callListener } from '../../core/call-listener.ts'
import type { ClaimRequest } from '../../core/claim/holder.ts'
import { type LeaseLostError, NotHeldError } from '../../core/errors.ts'
import type { LeaseUse } from '../../core/lease/lease-use.ts'
import { MAX_WAIT_MS } from '../../core/limits.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { outsideLocks } from '../../core/reentry-context.ts'

/** One candidate's time as the leader: from its election to its resignation or the loss of its lease. */
export interface Term<Value = unknown> extends AsyncDisposable {
  /** What is led. */
  readonly name: string
  readonly holderId: string
  /** The fencing token of the lease. Larger than that of every earlier term. Pass it to what the leader writes to. */
  readonly term: number
  /** The same number, under the name that guards expect. */
  readonly fencingToken: number
  /** What the leader published. */
  readonly value: Value | undefined
  /** By the store's clock. */
  readonly since: Date
  /**
   * Aborts when the leader has to stop:
   * - when the lease is lost, no later than its deadline. The reason is a `LeaseLostError`;
   * - when it resigns. The reason is a `NotHeldError`;
   * - inside `run`, when the caller's signal aborts or the election is closed. The reason is an `AbortedError`, and the
   *   term is kept until the callback has ended.
   */
  readonly signal: AbortSignal
  /** Whether it leads now. Reads the clocks, so it is correct in the first statement after a stall. */
  readonly held: boolean
  /** How long it leads from now if no renewal succeeds. */
  readonly remainingSeconds: number
  /**
   * Throws unless it leads now.
   *
   * @throws `LeaseLostError` if the lease was lost
   * @throws `NotHeldError` after resigning
   */
  assertHeld(): void
  /**
   * Ends the term at once and wakes the next candidate, even if work for this term is still running. True if it still
   * led.
   *
   * @throws `StoreError` if the store did not answer. The release is then sent again in the background; if that fails,
   * the lease expires
   */
  resign(): Promise<boolean>
}

export type DemotionReason = LeaseLostError | NotHeldError

export class HeldTerm<Value> implements Term<Value> {
  readonly name: string
  readonly holderId: string
  readonly term: number
  readonly fencingToken: number
  readonly value: Value | undefined
  readonly since: Date
  readonly #lease: LeaseUse
  readonly #onDemoted: CampaignOptions<Value>['onDemoted']
  readonly #abort = new AbortController()
  #demoted = false

  constructor(lease: LeaseUse, { value, onDemoted }: CampaignOptions<Value>) {
    this.name = lease.lockName
    this.holderId = lease.holderId
    this.term = lease.fencingToken
    this.fencingToken = lease.fencingToken
    this.value = value
    this.since = lease.acquiredAt
    this.#lease = lease
    this.#onDemoted = onDemoted
  }

  get signal(): AbortSignal {
    // Reading `held` notices a loss that no timer has reported yet.
    void this.#lease.held
    return this.#abort.signal
  }

  get held(): boolean {
    return this.#lease.held
  }

  /** Whether the lease ended before its release. The release itself may have found that out. */
  get lost(): boolean {
    return this.#lease.stopReason !== undefined
  }

  get remainingSeconds(): number {
    return this.#lease.remainingSeconds
  }

  assertHeld(): void {
    this.#lease.assertHeld()
  }

  resign(): Promise<boolean> {
    return this.#lease.release()
  }

  /** Never throws: that would hide the error of the block that it ends. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.#lease[Symbol.asyncDispose]()
  }

  toJSON() {
    const { name, holderId, term, value, since } = this
    return { name, holderId, term, value, since }
  }

  /** Asks the callback to stop, while the term goes on. */
  stop(reason: Error): void {
    outsideLocks(() => this.#abort.abort(reason))
  }

  /** Called in the step in which the lease ends: before a release is sent, and before another can be elected. */
  demote(): void {
    if (this.#demoted) return
    this.#demoted = true
    const reason = this.#lease.stopReason ?? new NotHeldError(this.name)
    this.stop(reason)
    if (this.#onDemoted !== undefined) callListener('onDemoted', this.#onDemoted, this, reason)
  }
}

export interface CampaignOptions<Value = unknown> {
  /**
   * What others see of the leader, such as an address or a version. JSON of at most 16,368 bytes. Needs a driver that
   * keeps metadata.
   */
  value?: Value
  /** Ends the campaign: it rejects with an `AbortedError`. It does not end a term that has begun. */
  signal?: AbortSignal
  /**
   * How long to campaign. 0 asks once.
   *
   * @default no limit
   */
  blockingTimeoutSeconds?: number
  /**
   * The heartbeat stops renewing after this time, so that a leader that hangs does not lead forever.
   *
   * @default no limit
   */
  maxTermSeconds?: number
  /**
   * Called exactly once per term, in the step in which it ends: before the resignation is sent, or no later than the
   * deadline of the lease. So it runs before another candidate can be elected. (A blocked event loop delays it; `held`
   * is correct even then.) It should only stop things. If it throws, that is a warning, as for an event listener.
   */
  onDemoted?: (term: Term<Value>, reason: DemotionReason) => void
}

const OPTIONS = optionNames<CampaignOptions>({
  value: true,
  signal: true,
  blockingTimeoutSeconds: true,
  maxTermSeconds: true,
  onDemoted: true,
})

/** Throws `InvalidArgumentError`. */
export function campaignRequest<Value>(lockName: string, ttlMs: number, options: CampaignOptions<Value>): ClaimRequest {
  const { value, signal, blockingTimeoutSeconds, maxTermSeconds, onDemoted } = checkOptions(options, OPTIONS)
  if (onDemoted !== undefined) checkFunction('onDemoted', onDemoted)
  return {
    lockName,
    mode: 'exclusive',
    ttlMs,
    patienceMs:
      blockingTimeoutSeconds === undefined ? MAX_WAIT_MS : waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds),
    metadata: value === undefined ? undefined : { value: checkJson('value', value) },
    signal: signal === undefined ? undefined : checkSignal('signal', signal),
    heartbeat: true,
    minHoldMs: 0,
    maxHoldMs: maxTermSeconds === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('maxTermSeconds', maxTermSeconds),
  }
}
