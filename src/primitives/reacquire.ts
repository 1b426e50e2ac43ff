import { eitherSignal } from '../core/abort.ts'
import type { ClaimRequest, ClaimResult, Holder } from '../core/holder.ts'
import type { HeldLease } from '../core/lease.ts'
import { InnerLease } from './inner-lease.ts'
import { answerOf, type LockResult } from './lock-result.ts'

export interface ReacquireParts {
  /** The lease that this instance has on a name. */
  own(lockName: string): HeldLease | undefined
  /** Asks the store, whatever this instance holds already. */
  claim(holder: Holder, request: ClaimRequest): Promise<ClaimResult>
}

/**
 * `reacquire: 'extend'`: an instance that asks for a name which it already holds extends its lease. Each time it is given a
 * use of the one lease, and the last use that ends gives the lock back.
 */
export class Reacquire {
  readonly #parts: ReacquireParts
  readonly #uses = new WeakMap<HeldLease, number>()
  /** When one of the claims under way is granted, the others extend its lease instead of waiting for it. */
  readonly #claiming = new Map<string, Set<AbortController>>()

  constructor(parts: ReacquireParts) {
    this.#parts = parts
  }

  async acquire(holder: Holder, request: ClaimRequest): Promise<LockResult> {
    const { lockName } = request
    for (;;) {
      const own = this.#parts.own(lockName)
      // A lease of `withLocks` is one that its own caller gives back.
      if (own !== undefined && (await this.#extend(own, request))) {
        return { acquired: true, lock: this.#use(own, this.#uses.get(own) ?? 1) }
      }
      const result = await this.#claim(holder, request)
      if (result?.granted) return { acquired: true, lock: this.#use(result.lease, 0) }
      if (result !== undefined) return answerOf(lockName, result)
    }
  }

  /** A lease on this name was granted. */
  taken({ lockName }: HeldLease): void {
    for (const overtaken of this.#claiming.get(lockName) ?? []) overtaken.abort()
  }

  /** It only ever becomes longer: another task of this instance relies on what it was given. */
  async #extend(own: HeldLease, { ttlMs, heartbeat }: ClaimRequest): Promise<boolean> {
    const isLonger = own.remainingSeconds * 1_000 >= ttlMs
    if (!isLonger && !(await own.extend(ttlMs / 1_000))) return false
    if (heartbeat) own.keepAlive()
    // The last of the others may have given it back meanwhile.
    return own.held
  }

  /** Undefined: another claim of this instance was granted meanwhile. */
  async #claim(holder: Holder, request: ClaimRequest): Promise<ClaimResult | undefined> {
    const { lockName, signal } = request
    const overtaken = new AbortController()
    const claims = this.#claiming.get(lockName) ?? new Set()
    this.#claiming.set(lockName, claims.add(overtaken))
    using either = signal && eitherSignal(signal, overtaken.signal)
    try {
      const result = await this.#parts.claim(holder, { ...request, signal: either?.signal ?? overtaken.signal })
      return result.granted || this.#parts.own(lockName) === undefined ? result : undefined
    } catch (error) {
      if (!overtaken.signal.aborted || signal?.aborted) throw error
      return undefined
    } finally {
      claims.delete(overtaken)
      if (claims.size === 0) this.#claiming.delete(lockName)
    }
  }

  #use(lease: HeldLease, others: number): InnerLease {
    this.#uses.set(lease, others + 1)
    return new InnerLease(lease, () => {
      const left = (this.#uses.get(lease) ?? 1) - 1
      this.#uses.set(lease, left)
      return left === 0 ? lease.release() : undefined
    })
  }
}
