import { callListener } from '../../core/call-listener.ts'
import { type LeaseLostError, NotHeldError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
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
  readonly value: Value | undefined
  readonly #lease: HeldLease
  readonly #onDemoted: ((term: Term<Value>, reason: DemotionReason) => void) | undefined
  readonly #abort = new AbortController()
  #demoted = false

  constructor(
    lease: HeldLease,
    value: Value | undefined,
    onDemoted: ((term: Term<Value>, reason: DemotionReason) => void) | undefined,
  ) {
    this.#lease = lease
    this.value = value
    this.#onDemoted = onDemoted
  }

  get name(): string {
    return this.#lease.lockName
  }

  get holderId(): string {
    return this.#lease.holderId
  }

  get term(): number {
    return this.#lease.fencingToken
  }

  get fencingToken(): number {
    return this.#lease.fencingToken
  }

  get since(): Date {
    return this.#lease.acquiredAt
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
    return this.#lease.lossError !== undefined
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
    const reason = this.#lease.lossError ?? new NotHeldError(this.name)
    this.stop(reason)
    if (this.#onDemoted !== undefined) callListener('onDemoted', this.#onDemoted, this, reason)
  }
}
