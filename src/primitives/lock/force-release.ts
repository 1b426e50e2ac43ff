import type { Holder } from '../../core/claim/holder.ts'
import type { Driver, LeaseRecord, LeaseRef, Metadata } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { type LockInfo, lockInfoFrom } from '../../core/lock-info.ts'
import { readPages } from '../../core/pages.ts'
import { holderOn } from '../on-driver.ts'
import {
  canRecord,
  type ForcedReleaseRecord,
  KEPT_MS,
  metadataOf,
  recordName,
  unheld,
} from './forced-release-record.ts'

export interface ForceReleaseOptions {
  /** Who does it and why. */
  by: string
  /**
   * PostgreSQL advisory locks only: if the holder does not let go when it is asked to, ends its connection, and with it
   * all other locks of that connection.
   *
   * @default false
   */
  endSession?: boolean
}

/**
 * Ends the leases that are on the name now, and lets the next waiter have the lock. It keeps no record, unlike
 * `forceReleaseWithRecord`. It ends no lease that is newer than those that it has seen: a holder that came meanwhile is
 * not the one that is known to be dead.
 */
export async function forceRelease(
  holder: Holder,
  lockName: string,
  { by, endSession = false }: ForceReleaseOptions,
): Promise<LockInfo[]> {
  holder.assertSupports('force')
  let leases = await leasesOn(holder, lockName)
  const first = new Set(leases.map(({ fencingToken }) => fencingToken))
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    // The leases of the first look have ended, by themselves or by an earlier try.
    if (!leases.some(({ fencingToken }) => first.has(fencingToken))) return []
    const ended = await endLeases(holder, { lockName, leases, by, metadata: { forcedBy: by }, endSession })
    if (ended.length > 0) return ended.map(lockInfoFrom)
    // Readers that came meanwhile have to be ended together with the earlier ones.
    leases = await leasesOn(holder, lockName)
  }
  throw new StoreError(`"${lockName}" was not released by force: new holders came ${MAX_TRIES} times meanwhile`)
}

export interface RecordedForcedRelease {
  readonly lockName: string
  /** What is ended. If the lock has a newer lease, nothing is. */
  readonly leases: readonly LeaseRecord[]
  readonly record: ForcedReleaseRecord
  /** See `ForceReleaseOptions`. */
  readonly endSession?: boolean
}

/**
 * Ends leases by force and records who did it, when and why. The record is written first: a forced release without a
 * record is worse than a record of one of which no one knows whether it happened. It is removed if nothing was ended. A
 * store that cannot keep records ends the leases without one; `canRecord` tells.
 *
 * @returns how many were ended: none if the lock has a newer lease. A driver that cannot take a lock in one step ends
 * them one by one
 * @throws `UnsupportedError`, `StoreError`
 */
export async function forceReleaseWithRecord(driver: Driver, forced: RecordedForcedRelease): Promise<number> {
  const { lockName, leases, record, endSession = false } = forced
  const holder = holderOn(driver, { holderId: record.by })
  try {
    holder.assertSupports('force')
    if (!(await isUnchanged(holder, forced))) return 0
    const kept = canRecord(driver) ? await keepRecord(holder, forced) : undefined
    const { by, reason } = record
    const metadata = { forcedBy: by, reason }
    const ended = await endLeases(holder, { lockName, leases, by: `${by}: ${reason}`, metadata, endSession })
    if (ended.length === 0 && kept !== undefined) await holder.release(kept)
    return ended.length
  } finally {
    await holder.close()
  }
}

/**
 * A lease of another client has no token that the store could compare. So it is looked at once more: nothing is ended
 * if the lock has another holder than the one that was shown.
 */
async function isUnchanged(holder: Holder, { lockName, leases }: RecordedForcedRelease): Promise<boolean> {
  if (leases.every(({ fencingToken }) => fencingToken > 0)) return true
  const known = new Set(leases.map(({ claimId }) => claimId))
  const now = await leasesOn(holder, lockName)
  return now.length > 0 && now.every(({ claimId }) => known.has(claimId))
}

async function keepRecord(holder: Holder, { lockName, leases, record }: RecordedForcedRelease): Promise<LeaseRef> {
  const name = recordName(lockName, largestToken(leases))
  const request = unheld(name, Math.min(KEPT_MS, holder.longestTtlMs), metadataOf(record))
  // In place of the record of an earlier try: the lease is still there, so that one has not ended it.
  const replaces = holder.capabilities.force === 'claim' && { forceUpTo: Number.MAX_SAFE_INTEGER }
  const claim = holder.createClaim({ ...request, ...replaces })
  await holder.askOnce(claim)
  return claim
}

/**
 * Ends these leases, and no newer one. Returns those that it ended. With a driver that takes the lock in one step that
 * is all of them, or none if the lock has a newer lease.
 */
async function endLeases(holder: Holder, forced: Forced): Promise<readonly LeaseRecord[]> {
  const { lockName, leases, by, metadata, endSession } = forced
  if (holder.capabilities.force === 'call') {
    const answers = await holder.forceRelease(leases, { by, endSession })
    for (const answer of answers) if (answer instanceof Error) throw answer
    return leases.filter((_, at) => answers[at] === true)
  }
  const request = { ...unheld(lockName, TTL_MS, metadata), forceUpTo: largestToken(leases) }
  const use = await holder.acquire(request, (end) => (end instanceof LeaseUse ? end : undefined))
  if (use === undefined) return []
  await use.release()
  return leases
}

interface Forced extends Pick<RecordedForcedRelease, 'lockName' | 'leases'> {
  readonly by: string
  /** Of the lease that replaces the others for a moment. */
  readonly metadata: Metadata
  readonly endSession: boolean
}

const leasesOn = async (holder: Holder, lockName: string): Promise<readonly LeaseRecord[]> =>
  (await readPages((query) => holder.inspect(query), { lockName })).leases

const largestToken = (leases: readonly LeaseRecord[]): number =>
  leases.reduce((most, { fencingToken }) => Math.max(most, fencingToken), 0)

/** If this process dies before the release, the lock is free after this time. */
const TTL_MS = 5_000
const MAX_TRIES = 10
