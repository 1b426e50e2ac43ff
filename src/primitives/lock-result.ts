import { LeaseLostError, NotAcquiredError } from '../core/errors.ts'
import type { ClaimResult } from '../core/holder.ts'
import { type HeldLease, type Lease, type LockInfo, lockInfoFrom } from '../core/lease.ts'

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
  const holder = lockInfoFrom(refusal.holder)
  return {
    acquired: false,
    error: `"${lockName}" is held by ${holder.holderId} since ${holder.acquiredAt.toISOString()}${waited}`,
    holder,
  }
}

/** Throws the `LeaseLostError` of a lease that was lost: the last steps under it may have run beside another holder's. */
export function throwIfLost({ signal }: Lease): void {
  if (signal.reason instanceof LeaseLostError) throw signal.reason
}
