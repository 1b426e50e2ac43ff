import { ttlMsFrom } from '../../core/arguments.ts'
import type { Chain } from '../../core/claim/chain.ts'
import { AbortedError, LeaseLostError, NotHeldError, UnsupportedError } from '../../core/errors.ts'
import { HeldLease, ignoreHoldfastError } from '../../core/lease/held-lease.ts'
import { type AnswerOptions, answerSignal, type Lease } from '../../core/lease/lease.ts'
import type { LockInfo } from '../../core/lock-info.ts'
import { isReadable } from '../../core/options.ts'
import { outsideLocks } from '../../core/reentry-context.ts'
import { onAbort, unlessAborted } from '../../core/time/abort.ts'

/** One of several uses of a lease. Its release ends only itself, and it never shortens the lease for the others. */
export class InnerLease implements Lease {
  readonly #outer: Lease
  readonly #onEnd: (lease: InnerLease) => Promise<boolean> | undefined
  #ended = false
  #lost: LeaseLostError | undefined
  #abort: AbortController | undefined
  #stopWatching: (() => void) | undefined

  /** `onEnd` is called once. If this was the last use, it releases the lease and returns that answer. */
  constructor(outer: Lease, onEnd: (lease: InnerLease) => Promise<boolean> | undefined) {
    this.#outer = outer
    this.#onEnd = onEnd
    if (outer.metadata !== undefined) this.metadata = outer.metadata
  }

  declare readonly metadata?: Record<string, unknown>

  get chain(): Chain | undefined {
    return chainOf(this.#outer)
  }

  /** The lease that all its uses share. */
  get beneath(): Lease {
    return beneath(this.#outer)
  }

  get lockName(): string {
    return this.#outer.lockName
  }

  get holderId(): string {
    return this.#outer.holderId
  }

  get acquiredAt(): Date {
    return this.#outer.acquiredAt
  }

  get expiresAt(): Date {
    return this.#outer.expiresAt
  }

  get fencingToken(): number {
    return this.#outer.fencingToken
  }

  /** A signal of its own: this use can be lost although the lease is released normally. Made when first read. */
  get signal(): AbortSignal {
    const { signal: outer } = this.#outer
    if (this.#abort === undefined) {
      const abort = new AbortController()
      this.#abort = abort
      if (!this.#ended) this.#stopWatching = onAbort(outer, () => abort.abort(outer.reason))
    }
    if (this.#lost !== undefined) this.#abort.abort(this.#lost)
    else if (outer.aborted) this.#abort.abort(outer.reason)
    return this.#abort.signal
  }

  get held(): boolean {
    return !this.#ended && this.#outer.held
  }

  get remainingSeconds(): number {
    return this.#ended ? 0 : this.#outer.remainingSeconds
  }

  get lossError(): LeaseLostError | undefined {
    return this.#lost ?? lossOf(this.#outer)
  }

  assertHeld(): void {
    if (this.#lost !== undefined) throw this.#lost
    this.#outer.assertHeld()
    if (this.#ended) throw new NotHeldError(this.lockName)
  }

  async extend(seconds: number, options?: AnswerOptions): Promise<boolean> {
    ttlMsFrom('seconds', seconds)
    const signal = answerSignal(options)
    const what = `extending the lease on "${this.lockName}"`
    if (signal?.aborted) throw new AbortedError(what, signal.reason)
    if (this.#ended) return false
    // The outer lease may itself be such a use.
    const outer = this.#outer
    return unlessAborted(outer instanceof HeldLease ? outer.lengthen(seconds) : outer.extend(seconds), signal, what)
  }

  async release(options?: AnswerOptions): Promise<boolean> {
    const signal = answerSignal(options)
    return unlessAborted(this.#release(), signal, `waiting for the release of "${this.lockName}"`)
  }

  /** Always throws: others rely on the lease. */
  async serialize(): Promise<string> {
    this.assertHeld()
    throw new UnsupportedError(
      `the lease on "${this.lockName}" cannot be handed over: this is one of several uses of it. ` +
        "Use `acquire` or `hold` outside of the function that holds it, without `reacquire: 'extend'`",
    )
  }

  async #release(): Promise<boolean> {
    const { held } = this
    if (this.#ended) return false
    this.#ended = true
    try {
      return (await this.#onEnd(this)) ?? held
    } finally {
      // Not earlier: the release of the last use may find out that the lease was lost.
      this.#stopWatching?.()
    }
  }

  /** Ends it without a release: the lease itself is about to be released. */
  lose(reason: string): void {
    if (this.#ended) return
    this.#ended = true
    this.#stopWatching?.()
    const error = new LeaseLostError(this.lockName, this.fencingToken, reason)
    this.#lost = error
    outsideLocks(() => this.#abort?.abort(error))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(ignoreHoldfastError)
  }

  toJSON(): LockInfo {
    const { lockName, holderId, acquiredAt, expiresAt, metadata, fencingToken } = this
    return { lockName, holderId, acquiredAt, expiresAt, ...(metadata && { metadata }), fencingToken }
  }
}

/** Why a lease was lost, if that was noticed. */
export function lossOf(lease: Lease): LeaseLostError | undefined {
  return lease instanceof HeldLease || lease instanceof InnerLease ? lease.lossError : undefined
}

/** The lease itself, if this is one of several uses of it. */
export const beneath = (lease: Lease): Lease => (lease instanceof InnerLease ? lease.beneath : lease)

/** The chain of a lease. Undefined for a lease of another copy of this package. */
export function chainOf(lease: unknown): Chain | undefined {
  return isReadable(lease) && (lease instanceof HeldLease || lease instanceof InnerLease) ? lease.chain : undefined
}
