import type { ClaimRequest, ClaimResult, Holder } from '../../core/claim/holder.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import { eitherSignal } from '../../core/time/abort.ts'
import { InnerLease } from './inner-lease.ts'
import { answerOf, type LockResult } from './result.ts'

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
    const startedMs = holder.clock.now().monotonicMs
    for (;;) {
      const own = this.#parts.own(lockName)
      if (own !== undefined && (await this.#extend(own, request)) && own.held) {
        // In the same step as the look at it: the last of the others may give it back in any other.
        this.#uses.set(own, (this.#uses.get(own) ?? 0) + 1)
        return { acquired: true, lock: this.#useOf(own) }
      }
      // One waiting time, however often others of this instance come first.
      const waitMs = Math.max(0, request.waitMs - (holder.clock.now().monotonicMs - startedMs))
      const result = await this.#claim(holder, { ...request, waitMs }, own)
      if (result?.granted) return { acquired: true, lock: this.#useOf(result.lease) }
      if (result) return answerOf(lockName, { ...result, waitedMs: result.waitedMs + request.waitMs - waitMs })
    }
  }

  /** A lease on this name was granted. Its first use is that of whoever claimed it; one of `withLocks` is given back by its own caller. */
  taken(lease: HeldLease): void {
    this.#uses.set(lease, 1)
    for (const overtaken of this.#claiming.get(lease.lockName) ?? []) overtaken.abort()
  }

  /** It only ever becomes longer: another task of this instance relies on what it was given. */
  async #extend(own: HeldLease, { ttlMs, heartbeat }: ClaimRequest): Promise<boolean> {
    if (!(await own.lengthen(ttlMs / 1_000))) return false
    if (heartbeat) own.startHeartbeat()
    return true
  }

  /** Undefined: another claim of this instance was granted meanwhile. */
  async #claim(holder: Holder, request: ClaimRequest, tried: HeldLease | undefined): Promise<ClaimResult | undefined> {
    const { lockName, signal } = request
    const overtaken = new AbortController()
    const claims = this.#claiming.get(lockName) ?? new Set()
    this.#claiming.set(lockName, claims.add(overtaken))
    using either = signal && eitherSignal(signal, overtaken.signal)
    try {
      const result = await this.#parts.claim(holder, { ...request, signal: either?.signal ?? overtaken.signal })
      const own = this.#parts.own(lockName)
      // What could not be extended a moment ago is no reason to try again.
      return !result.granted && own?.held && own !== tried ? undefined : result
    } catch (error) {
      if (!overtaken.signal.aborted || signal?.aborted) throw error
      return undefined
    } finally {
      claims.delete(overtaken)
      if (claims.size === 0) this.#claiming.delete(lockName)
    }
  }

  #useOf(lease: HeldLease): InnerLease {
    return new InnerLease(lease, () => {
      const left = (this.#uses.get(lease) ?? 1) - 1
      this.#uses.set(lease, left)
      return left === 0 ? lease.release() : undefined
    })
  }
}
