import { Holder } from '../../core/claim/holder.ts'
import type { Driver, LeaseRecord, LeaseRef } from '../../core/driver.ts'
import { Emitter } from '../../core/events.ts'
import { CALL_TIMEOUT_MS, WAITER_TTL_MS } from '../../core/limits.ts'
import { readPages } from '../../core/pages.ts'
import { systemClock } from '../../core/time/clock.ts'
import { systemRandom } from '../../core/time/random.ts'
import { type BreakRecord, canRecord, KEPT_MS, metadataOf, recordName } from './break-record.ts'
import { endLeases } from './force-release.ts'

export interface Break {
  readonly lockName: string
  /** What is ended. If the lock has a newer lease, nothing is. */
  readonly leases: readonly LeaseRecord[]
  readonly record: BreakRecord
  /** See `ForceReleaseOptions`. */
  readonly endSession?: boolean
}

/**
 * Ends leases by force and records who did it, when and why. The record is written first: a break without a record is
 * worse than a record of a break of which no one knows whether it happened. It is removed if nothing was ended. A store
 * that cannot keep records ends the leases without one; `canRecord` tells.
 *
 * @returns how many were ended: none if the lock has a newer lease. A driver that cannot take a lock in one step ends
 * them one by one
 * @throws `UnsupportedError`, `StoreError`
 */
export async function breakLock(driver: Driver, broken: Break): Promise<number> {
  const { lockName, leases, record, endSession = false } = broken
  const holder = new Holder({
    driver,
    holderId: record.by,
    clock: systemClock,
    random: systemRandom,
    callTimeoutMs: CALL_TIMEOUT_MS,
    waiterTtlMs: WAITER_TTL_MS,
    events: new Emitter(),
  })
  try {
    holder.assertSupports('force')
    if (!(await isUnchanged(holder, broken))) return 0
    const kept = canRecord(driver) ? await keepRecord(holder, broken) : undefined
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
async function isUnchanged(holder: Holder, { lockName, leases }: Break): Promise<boolean> {
  if (leases.every(({ fencingToken }) => fencingToken > 0)) return true
  const known = new Set(leases.map(({ claimId }) => claimId))
  const now = (await readPages((query) => holder.inspect(query), { lockName })).leases
  return now.length > 0 && now.every(({ claimId }) => known.has(claimId))
}

async function keepRecord(holder: Holder, { lockName, leases, record }: Break): Promise<LeaseRef> {
  const token = leases.reduce((most, { fencingToken }) => Math.max(most, fencingToken), 0)
  const ttlMs = Math.min(KEPT_MS, holder.longestTtlMs)
  const claim = holder.createClaim({
    lockName: recordName(lockName, token),
    mode: 'exclusive',
    ttlMs,
    metadata: metadataOf(record),
    waitMs: 0,
    heartbeat: false,
    minHoldMs: 0,
    maxHoldMs: ttlMs,
    // In place of the record of an earlier try: the lease is still there, so that one has not ended it.
    ...(holder.capabilities.steal && { steal: true }),
  })
  await holder.ask(claim)
  return claim
}
