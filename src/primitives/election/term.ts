import { callListener } from '../../core/call-listener.ts'
import { type LeaseLostError, NotHeldError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import { outsideLocks } from '../../core/reentry-context.ts'

/** One candidate's time as the leader: from its election to its resignation or the loss of its lease. It never comes back. */
export interface Term<Value = unknown> extends AsyncDisposable {
  /** What is led. */
  readonly name: string
  readonly holderId: string
  /** Larger than that of every earlier term of this name. It is the lease's fencing token: give it to whatever the leader writes to. */
  readonly term: number
  /** The same number, by the name under which guards take it. */
  readonly fencingToken: number
  /** What was published when it began. */
  readonly value: Value | undefined
  /** By the store's clock. */
  readonly since: Date
  /**
   * Aborts when the leader has to stop: at the loss of its lease, no later than the lease's deadline (the reason is a `LeaseLostError`); when it resigns
   * (a `NotHeldError`); and inside `run`, when the caller's own signal aborts (an `AbortedError`; the term is then kept until the callback has ended).
   */
  readonly signal: AbortSignal
  /** Whether it leads now. Read off the clocks at the moment of asking, so it is right in the first statement after a stall. */
  readonly held: boolean
  /** For how long it leads from now if no renewal comes through. */
  readonly remainingSeconds: number
  /** Throws `LeaseLostError` if the lease was lost, `NotHeldError` after resigning. */
  assertHeld(): void
  /**
   * Ends the term and wakes the next candidate: at once, whatever still runs on behalf of this one. True if it still led. Throws `StoreError` if the store
   * did not answer: the release is then sent again in the background, and expiry stands behind it.
   */
  resign(): Promise<boolean>
}

export type DemotionReason = LeaseLostError | NotHeldError

/** A term on its lease. */
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
    // Asking the lease is what notices a loss that no timer has told of yet.
    void this.#lease.held
    return this.#abort.signal
  }

  get held(): boolean {
    return this.#lease.held
  }

  /** Whether the lease ended before it was given back, which also the release may have found out. */
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

  /** Never throws: it would hide the error of the block that it ends. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.#lease[Symbol.asyncDispose]()
  }

  toJSON() {
    const { name, holderId, term, value, since } = this
    return { name, holderId, term, value, since }
  }

  /** Asks whoever leads to come to an end, while the term goes on. */
  stop(reason: Error): void {
    outsideLocks(() => this.#abort.abort(reason))
  }

  /** The lease has ended, in whichever way. Runs in the lease's own step: before a release is sent, and before anybody else can be elected. */
  demote(): void {
    if (this.#demoted) return
    this.#demoted = true
    const reason = this.#lease.lossError ?? new NotHeldError(this.name)
    this.stop(reason)
    if (this.#onDemoted !== undefined) callListener('onDemoted', this.#onDemoted, this, reason)
  }
}
