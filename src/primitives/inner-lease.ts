import { ttlMsFrom } from '../core/arguments.ts'
import type { Chain } from '../core/chain.ts'
import { NotHeldError } from '../core/errors.ts'
import { HeldLease, ignoreOurs, type Lease, type LockInfo } from '../core/lease.ts'

/** One of several uses of a lease. Its release ends only itself, and it never makes the lease shorter for the others. */
export class InnerLease implements Lease {
  readonly #outer: Lease
  readonly #onEnd: (lease: InnerLease) => Promise<boolean> | undefined
  #ended = false

  /** `onEnd` is called once. It returns what the release answers if it gives the lease back: this was the last use. */
  constructor(outer: Lease, onEnd: (lease: InnerLease) => Promise<boolean> | undefined) {
    this.#outer = outer
    this.#onEnd = onEnd
    if (outer.metadata !== undefined) this.metadata = outer.metadata
  }

  declare readonly metadata?: Record<string, unknown>

  get chain(): Chain | undefined {
    return chainOf(this.#outer)
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

  get signal(): AbortSignal {
    return this.#outer.signal
  }

  get held(): boolean {
    return !this.#ended && this.#outer.held
  }

  get remainingSeconds(): number {
    return this.#ended ? 0 : this.#outer.remainingSeconds
  }

  assertHeld(): void {
    this.#outer.assertHeld()
    if (this.#ended) throw new NotHeldError(this.lockName)
  }

  async extend(seconds: number): Promise<boolean> {
    ttlMsFrom('seconds', seconds)
    if (this.#ended) return false
    return this.#outer.remainingSeconds >= seconds || this.#outer.extend(seconds)
  }

  async release(): Promise<boolean> {
    const { held } = this
    if (this.#ended) return false
    this.#ended = true
    return (await this.#onEnd(this)) ?? held
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(ignoreOurs)
  }

  toJSON(): LockInfo {
    const { lockName, holderId, acquiredAt, expiresAt, metadata, fencingToken } = this
    return { lockName, holderId, acquiredAt, expiresAt, ...(metadata && { metadata }), fencingToken }
  }
}

/** The chain of a lease that was granted by this copy of the package. */
export function chainOf(lease: unknown): Chain | undefined {
  return lease instanceof HeldLease || lease instanceof InnerLease ? lease.chain : undefined
}
