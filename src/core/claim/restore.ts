import type { Driver } from '../driver.ts'
import { InvalidArgumentError, LeaseLostError, OverloadError, StoreError, UnsupportedError } from '../errors.ts'
import { trustedUntil } from '../lease/deadline.ts'
import type { HandOver } from '../lease/hand-over.ts'
import type { LeaseOptions, LeaseStart } from '../lease/held-lease.ts'
import type { LeaseUse } from '../lease/lease-use.ts'
import { NOT_IN_STORE } from '../lease/renewer.ts'
import { MAX_UNANSWERED_RESTORES } from '../limits.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import { type Clock, isPast } from '../time/clock.ts'

/** How a lease continues after it is restored. */
export interface RestoreRequest {
  readonly heartbeat: boolean
  /** @default the TTL that the lease had in the process that handed it over */
  readonly ttlMs?: number
}

export interface RestoreParts {
  readonly clock: Clock
  readonly store: StoreClient
  readonly inFlight: InFlight
  /** Throws `ClosedError` when the instance is closed. */
  assertOpen(): void
  /** Creates the lease. It is called in the same synchronous step as the last check. */
  hold(claim: TrackedClaim, handedOver: HandOver, start: LeaseStart, options: LeaseOptions): LeaseUse
}

/**
 * Continues a lease that another process has handed over. Renews it once, and holds it if the store confirms the
 * renewal. If the store does not answer, the lease stays in the store until it expires, and the same text can be
 * restored again.
 *
 * Two restores of the same lease must not even be sent: the second one would set the lease to another end than the one
 * that the first one relies on. A restore that was never answered may arrive after the next one was answered. All
 * instances on a driver know of both.
 *
 * @throws `UnsupportedError` where a lease lasts as long as its connection; `InvalidArgumentError` while this process
 * holds the same lease or is restoring it; `LeaseLostError` if the store no longer has the lease; `StoreError`;
 * `ClosedError`; `OverloadError` if too many restores were never answered
 */
export async function restore(parts: RestoreParts, handedOver: HandOver, request: RestoreRequest): Promise<LeaseUse> {
  const { driver, waiters } = parts.store
  if (driver.capabilities.expiry === 'session') {
    const reason = 'a lease ends with the connection that acquired it'
    throw new UnsupportedError(`the ${driver.name} driver cannot restore a lease: ${reason}`)
  }
  const { claimId } = handedOver
  const known = restores.get(driver) ?? new Map<string, Restore>()
  restores.set(driver, known)
  const earlier = known.get(claimId)
  if (waiters.leaseOf(claimId) !== undefined || earlier?.isInFlight) throw restoredTwice()
  if (earlier === undefined && known.size >= MAX_UNANSWERED_RESTORES) {
    throw new OverloadError(`the store never answered ${MAX_UNANSWERED_RESTORES} restores: repeat those first`)
  }
  const { unansweredMs = Number.POSITIVE_INFINITY } = earlier ?? {}
  const { ttlMs = handedOver.ttlMs } = request
  known.set(claimId, { isInFlight: true, unansweredMs })
  try {
    const use = await renewAndHold(parts, handedOver, request, unansweredMs)
    known.delete(claimId)
    return use
  } catch (error) {
    const shortestMs = error instanceof StoreError ? Math.min(unansweredMs, ttlMs) : unansweredMs
    // What the store has lost cannot be cut short any more.
    if (error instanceof LeaseLostError || shortestMs === Number.POSITIVE_INFINITY) known.delete(claimId)
    else known.set(claimId, { isInFlight: false, unansweredMs: shortestMs })
    throw error
  }
}

/** A restore that is in flight, or was never answered. */
interface Restore {
  readonly isInFlight: boolean
  /** The shortest TTL that was never answered. */
  readonly unansweredMs: number
}

/** By claim. */
const restores = new WeakMap<Driver, Map<string, Restore>>()

async function renewAndHold(
  { store, clock, inFlight, assertOpen, hold }: RestoreParts,
  handedOver: HandOver,
  { heartbeat, ttlMs = handedOver.ttlMs }: RestoreRequest,
  earlierMs: number,
): Promise<LeaseUse> {
  const { lockName, claimId, fencingToken, holderId, metadata, storeAtMs } = handedOver
  const { minHoldMs = 0, maxHoldMs = Number.POSITIVE_INFINITY } = handedOver
  const sent = clock.now()
  const answer = await inFlight.track(store.renewals.ask({ lockName, claimId, fencingToken, ttlMs }))
  const answered = clock.now()
  assertOpen()
  if (answer !== 'renewed') throw new LeaseLostError(lockName, fencingToken, NOT_IN_STORE.message)
  // An unanswered renewal, of the first holder or of an earlier restore, may reach the store after this one and set
  // the lease to a shorter end. So the lease is trusted for no longer than the shortest of them.
  const unansweredMs = Math.min(handedOver.unansweredMs ?? Number.POSITIVE_INFINITY, earlierMs)
  const grantedMs = Math.min(ttlMs, unansweredMs)
  if (isPast(trustedUntil(sent, grantedMs), answered)) {
    throw new StoreError(`the store confirmed the restored lease on "${lockName}" too late: it may have ended since`)
  }
  const exclusive = { mode: 'exclusive', permits: 1, waiterTtlMs: 0, abandoned: false } as const
  const claim: TrackedClaim = { lockName, claimId, holderId, ttlMs, ...exclusive, ...(metadata && { metadata }) }
  const times = { sent, answered, grantedMs, storeAtMs }
  const start: LeaseStart = Number.isFinite(unansweredMs) ? { ...times, unansweredMs } : times
  return hold(claim, handedOver, start, { heartbeat, minHoldMs, maxHoldMs })
}

function restoredTwice(): InvalidArgumentError {
  const rule = 'restored only once: this process already holds the lease or is restoring it'
  return new InvalidArgumentError('text', undefined, rule, `text must be ${rule}`)
}
