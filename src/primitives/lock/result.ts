import type { ClaimResult } from '../../core/claim/holder.ts'
import type { LeaseRecord } from '../../core/driver.ts'
import { NotAcquiredError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { type LockInfo, lockInfoFrom } from '../../core/lock-info.ts'
import { lossOf } from './inner-lease.ts'

export type LockResult = { acquired: true; lock: Lease } | { acquired: false; error: string; holder?: LockInfo }

type Refused = ClaimResult & { readonly granted: false }

/** A refused claim is told who stands in the way, where the store says so. */
export function answerOf(lockName: string, result: ClaimResult): LockResult {
  return result.granted ? { acquired: true, lock: result.lease } : refusalOf(lockName, result)
}

/** Where contention is an error. */
export function leaseOf(lockName: string, result: LockResult): Lease {
  if (result.acquired) return result.lock
  throw new NotAcquiredError(lockName, result.error, result.holder)
}

/** The same for what the core answers. */
export function heldLeaseOf(lockName: string, result: ClaimResult): HeldLease {
  if (result.granted) return result.lease
  const { error, holder } = refusalOf(lockName, result)
  throw new NotAcquiredError(lockName, error, holder)
}

function refusalOf(lockName: string, { refusal, waitedMs }: Refused): LockResult & { acquired: false } {
  const waited = waitedMs >= 1 ? ` (waited ${(waitedMs / 1_000).toFixed(1)} s)` : ''
  if (refusal?.holder === undefined)
    return { acquired: false, error: `"${lockName}" is held by another claim${waited}` }
  return {
    acquired: false,
    error: `"${lockName}" is held by ${holderText(refusal.holder)}${waited}`,
    holder: lockInfoFrom(refusal.holder),
  }
}

/** Who holds a lock, in words. Of another client's lock it is not known since when. */
export function holderText({ holderId, acquiredAtMs, expiresAtMs }: LeaseRecord): string {
  if (acquiredAtMs > 0) return `${holderId} since ${new Date(acquiredAtMs).toISOString()}`
  const end = expiresAtMs === undefined ? 'no expiry' : `expires: ${new Date(expiresAtMs).toISOString()}`
  return `${holderId} (since: unknown, ${end})`
}

/**
 * Runs a function under leases and gives them back, in one list. Its own error comes first. If it succeeded but a lease was
 * lost before it was given back, as the release itself may find out, its last steps may have run beside another
 * holder's: then it throws the `LeaseLostError`.
 */
export async function underLeases<T>(leases: readonly Lease[], run: () => Promise<T>): Promise<T> {
  let result: T
  try {
    result = await run()
  } finally {
    await Promise.all(leases.map((lease) => lease[Symbol.asyncDispose]()))
  }
  for (const lease of leases) throwIfLost(lease)
  return result
}

/** Throws the `LeaseLostError` of a lease that was lost. */
export function throwIfLost(lease: Lease): void {
  // Asking is what notices that its time is up. Its signal would tell, too, but most are never made.
  const error = lease.held ? undefined : lossOf(lease)
  if (error !== undefined) throw error
}
