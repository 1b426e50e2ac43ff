import type { ClaimResult } from '../../core/claim/holder.ts'
import type { LeaseRecord } from '../../core/driver.ts'
import { NotAcquiredError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { type LockInfo, lockInfoFrom } from '../../core/lock-info.ts'
import { checkedLease } from '../../core/store-answers.ts'
import { lossOf } from './inner-lease.ts'

/**
 * The result of the methods that return contention as a value. `lock` is the lease. `error` is a sentence for a log
 * that names the lock and its holder. `holder` is one of the current holders, if the store shows it.
 */
export type LockResult = { acquired: true; lock: Lease } | { acquired: false; error: string; holder?: LockInfo }

type Refused = ClaimResult & { readonly granted: false }

/** A refusal names the holder if the store knows it. */
export function answerOf(lockName: string, result: ClaimResult): LockResult {
  return result.granted ? { acquired: true, lock: result.lease } : refusalOf(lockName, result)
}

/** Throws `NotAcquiredError` on contention. */
export function leaseOf(lockName: string, result: LockResult): Lease {
  if (result.acquired) return result.lock
  throw new NotAcquiredError(lockName, result.error, result.holder)
}

/** The same for a result of the core. */
export function heldLeaseOf(lockName: string, result: ClaimResult): HeldLease {
  if (result.granted) return result.lease
  const { error, holder } = refusalOf(lockName, result)
  throw new NotAcquiredError(lockName, error, holder)
}

function refusalOf(lockName: string, { refusal, waitedMs }: Refused): LockResult & { acquired: false } {
  const waited = waitedMs >= 1 ? ` (waited ${(waitedMs / 1_000).toFixed(1)} s)` : ''
  // Read once: a driver may parse it only now.
  const seen = refusal?.holder
  if (seen === undefined) return { acquired: false, error: `"${lockName}" is held by another claim${waited}` }
  const holder = checkedLease(seen)
  return {
    acquired: false,
    error: `"${lockName}" is held by ${holderText(holder)}${waited}`,
    holder: lockInfoFrom(holder),
  }
}

/** Describes the holder. It is unknown since when another client holds its lock. */
export function holderText({ holderId, acquiredAtMs, expiresAtMs }: LeaseRecord): string {
  if (acquiredAtMs > 0) return `${holderId} since ${new Date(acquiredAtMs).toISOString()}`
  const end = expiresAtMs === undefined ? 'no expiry' : `expires: ${new Date(expiresAtMs).toISOString()}`
  return `${holderId} (since: unknown, ${end})`
}

/**
 * Runs a function under leases and releases them in one list. An error of the function is thrown first. If the function
 * succeeded but a lease was lost before its release, which the release itself may find out, its last steps may have run
 * at the same time as another holder's: then it throws the `LeaseLostError`.
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
  // Reading `held` notices an expired lease. Its signal would, too, but most signals are never made.
  const error = lease.held ? undefined : lossOf(lease)
  if (error !== undefined) throw error
}
