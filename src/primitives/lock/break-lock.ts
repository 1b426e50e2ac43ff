import { Holder } from '../../core/claim/holder.ts'
import type { Driver, LeaseRecord } from '../../core/driver.ts'
import { Emitter } from '../../core/events.ts'
import { CALL_TIMEOUT_MS, WAITER_TTL_MS } from '../../core/limits.ts'
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
 * worse than a record of a break that did not happen. A store that cannot keep records ends the leases without one;
 * `canRecord` tells.
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
    if (canRecord(driver)) await keepRecord(holder, broken)
    const { by, reason } = record
    const metadata = { forcedBy: by, reason }
    return (await endLeases(holder, { lockName, leases, by: `${by}: ${reason}`, metadata, endSession })).length
  } finally {
    await holder.close()
  }
}

async function keepRecord(holder: Holder, { lockName, leases, record }: Break): Promise<void> {
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
  })
  // A refusal means that there is a record of the same break already: it was tried before.
  await holder.ask(claim)
}
