import type { ClaimRequest, Holder, Refused } from '../../core/claim/holder.ts'
import { isOutage, StoreError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { eitherSignal, unlessAborted, withTimeout } from '../../core/time/abort.ts'
import { AFTER_OUTAGE, backoffMs } from '../../core/time/backoff.ts'

/**
 * `reacquire: 'extend'`. An instance that asks for a name that it already holds extends its lease. Each call gets a use
 * of that one lease.
 */
export class ReacquireByExtending {
  /** The claims in flight. When the instance gets a lease on their name, they stop waiting and extend it. */
  readonly #claiming = new Map<string, Set<Claiming>>()

  /** The instance has got a lease on this name. */
  granted(holder: Holder, lockName: string): void {
    const own = holder.leases.on(lockName)
    for (const each of this.#claiming.get(lockName) ?? []) {
      // Before its claim has left: the lease must not end before every claim that it overtakes has got its use.
      if (own?.held && !each.joined?.use.held) each.joined = { lease: own, use: holder.join(own, each.request) }
      each.overtaken.abort()
    }
  }

  async acquire(holder: Holder, request: ClaimRequest): Promise<LeaseUse | Refused> {
    const { lockName } = request
    const startedMs = holder.clock.now().monotonicMs
    let joined: Joined | undefined
    for (let tries = 1; ; tries += 1) {
      const own = joined?.use.held ? joined.lease : holder.leases.on(lockName)
      const entered = joined?.use.held ? joined.use : undefined
      joined = undefined
      const use = own?.held ? await extended(holder, own, request, startedMs, entered).catch(unlessDown) : undefined
      if (use instanceof StoreError) {
        // A claim that waits also waits for a store that is down, as any other.
        const restMs = backoffMs(AFTER_OUTAGE, tries, holder.random)
        if (holder.clock.now().monotonicMs + restMs >= startedMs + request.patienceMs) throw use
        await holder.pause(restMs, request)
        continue
      }
      if (own !== undefined && use !== undefined) {
        if (request.heartbeat) own.startHeartbeat(use)
        return use
      }
      // One waiting time in all, however often other claims of this instance come first.
      const patienceMs = Math.max(0, request.patienceMs - (holder.clock.now().monotonicMs - startedMs))
      const outcome = await this.#claim(holder, { ...request, patienceMs }, own)
      if (outcome instanceof LeaseUse) return outcome
      if (outcome && 'lease' in outcome) joined = outcome
      else if (outcome) return { ...outcome, waitedMs: outcome.waitedMs + request.patienceMs - patienceMs }
    }
  }

  /** Undefined, or a use of its lease: another claim of this instance was granted meanwhile. */
  async #claim(
    holder: Holder,
    request: ClaimRequest,
    tried: HeldLease | undefined,
  ): Promise<LeaseUse | Refused | Joined | undefined> {
    const { lockName, signal } = request
    const overtaken = new AbortController()
    const claiming: Claiming = { request, overtaken }
    const claims = this.#claiming.get(lockName) ?? new Set()
    this.#claiming.set(lockName, claims.add(claiming))
    using either = signal && eitherSignal(signal, overtaken.signal)
    try {
      const outcome = await holder.acquire({ ...request, signal: either?.signal ?? overtaken.signal }, (ended) => {
        // In the step of the grant: a claim that is overtaken must not be granted beside it.
        if (ended instanceof LeaseUse) {
          ended.runsFunction = true
          claims.delete(claiming)
          this.granted(holder, lockName)
        }
        return ended
      })
      if (claiming.joined !== undefined && !(outcome instanceof LeaseUse)) return claiming.joined
      const own = holder.leases.on(lockName)
      // A lease that could not be extended a moment ago is no reason to try again.
      return !(outcome instanceof LeaseUse) && own?.held && own !== tried ? undefined : outcome
    } catch (error) {
      if (!overtaken.signal.aborted || signal?.aborted) {
        void claiming.joined?.use[Symbol.asyncDispose]()
        throw error
      }
      return claiming.joined
    } finally {
      claims.delete(claiming)
      if (claims.size === 0) this.#claiming.delete(lockName)
    }
  }
}

/**
 * Begins a use of the lease and extends the lease for it. The use begins first: until the store has answered, another
 * task must neither release the lease nor shorten it. Undefined if the lease has ended.
 */
async function extended(
  holder: Holder,
  lease: HeldLease,
  request: ClaimRequest,
  startedMs: number,
  use = holder.join(lease, request),
): Promise<LeaseUse | undefined> {
  try {
    // Never shortens the lease: another task of this instance relies on it.
    const isExtended = await inTime(holder, request, startedMs, lease.lengthen(request.ttlMs))
    // As for any grant, nothing begins when the instance has begun to close.
    holder.assertOpen()
    if (isExtended && use.held) return use
  } catch (error) {
    void use[Symbol.asyncDispose]()
    throw error
  }
  void use[Symbol.asyncDispose]()
  return undefined
}

interface Claiming {
  readonly request: ClaimRequest
  readonly overtaken: AbortController
  joined?: Joined
}

interface Joined {
  readonly lease: HeldLease
  readonly use: LeaseUse
}

function unlessDown(error: unknown): StoreError {
  if (error instanceof StoreError && isOutage(error)) return error
  throw error
}

/** The store may not answer the extension for longer than the caller waits. */
function inTime<T>(holder: Holder, request: ClaimRequest, startedMs: number, work: Promise<T>): Promise<T> {
  const { lockName, patienceMs, signal } = request
  const result = unlessAborted(work, signal, `acquiring "${lockName}"`)
  if (patienceMs === 0) return result
  const leftMs = Math.max(0, startedMs + patienceMs - holder.clock.now().monotonicMs)
  const late = (): StoreError => new StoreError(`the store did not answer a claim of "${lockName}" in time`)
  return withTimeout(holder.clock, leftMs, result, late)
}
