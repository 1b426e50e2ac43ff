import type { ClaimRequest, ClaimResult, Holder } from '../../core/claim/holder.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import { eitherSignal } from '../../core/time/abort.ts'
import type { ClaimFunction, ClaimHooks } from './claims.ts'
import { InnerLease } from './inner-lease.ts'
import type { OwnLeases } from './own-leases.ts'
import { answerOf, type LockResult } from './result.ts'

/**
 * `reacquire: 'extend'`. An instance that asks for a name that it already holds extends its lease. Each call gets a use
 * of that one lease, and the last use to end releases the lock.
 */
export class ReacquireByExtending implements ClaimHooks {
  readonly ended: (lease: HeldLease) => void
  readonly #leases: OwnLeases
  readonly #uses = new WeakMap<HeldLease, number>()
  /** The claims in flight. When one of them is granted, the others stop waiting and extend its lease. */
  readonly #claiming = new Map<string, Set<AbortController>>()

  constructor(leases: OwnLeases) {
    this.#leases = leases
    this.ended = leases.ended
  }

  /** The first use belongs to the call that claimed the lease. (`withLocks` releases its leases itself.) */
  readonly taken = (lease: HeldLease): void => {
    this.#leases.taken(lease)
    if (this.#leases.get(lease.lockName) !== lease) return
    this.#uses.set(lease, 1)
    for (const overtaken of this.#claiming.get(lease.lockName) ?? []) overtaken.abort()
  }

  readonly instead = async (holder: Holder, request: ClaimRequest, claim: ClaimFunction): Promise<LockResult> => {
    const { lockName } = request
    const startedMs = holder.clock.now().monotonicMs
    for (;;) {
      const own = this.#leases.get(lockName)
      if (own !== undefined && (await this.#extend(own, request)) && own.held) {
        // In the same step as the check: in any later one the last other use may have released the lease.
        this.#uses.set(own, (this.#uses.get(own) ?? 0) + 1)
        return { acquired: true, lock: this.#useOf(own) }
      }
      // One waiting time in all, however often other claims of this instance come first.
      const waitMs = Math.max(0, request.waitMs - (holder.clock.now().monotonicMs - startedMs))
      const result = await this.#claim({ ...request, waitMs }, claim, own)
      if (result?.granted) return { acquired: true, lock: this.#useOf(result.lease) }
      if (result) return answerOf(lockName, { ...result, waitedMs: result.waitedMs + request.waitMs - waitMs })
    }
  }

  /** Never shortens the lease: another task of this instance relies on it. */
  async #extend(own: HeldLease, { ttlMs, heartbeat }: ClaimRequest): Promise<boolean> {
    if (!(await own.lengthen(ttlMs / 1_000))) return false
    if (heartbeat) own.startHeartbeat()
    return true
  }

  /** Undefined: another claim of this instance was granted meanwhile. */
  async #claim(
    request: ClaimRequest,
    claim: ClaimFunction,
    tried: HeldLease | undefined,
  ): Promise<ClaimResult | undefined> {
    const { lockName, signal } = request
    const overtaken = new AbortController()
    const claims = this.#claiming.get(lockName) ?? new Set()
    this.#claiming.set(lockName, claims.add(overtaken))
    using either = signal && eitherSignal(signal, overtaken.signal)
    try {
      const result = await claim({ ...request, signal: either?.signal ?? overtaken.signal })
      const own = this.#leases.get(lockName)
      // A lease that could not be extended a moment ago is no reason to try again.
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
