import type { Holder } from '../../core/claim/holder.ts'
import type { LeaseRecord, Metadata } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { type LockInfo, lockInfoFrom } from '../../core/lock-info.ts'
import { readPages } from '../../core/pages.ts'

/**
 * Takes the lock from its holders, records who did it, and releases it to the waiters. It ends no lease that is newer
 * than those that it has seen: a holder that came meanwhile is not the one that is known to be dead.
 */
export async function forceRelease(holder: Holder, lockName: string, by: string): Promise<LockInfo[]> {
  holder.assertSupports('steal')
  const look = async () => (await readPages((query) => holder.inspect(query), { lockName })).leases
  let leases = await look()
  const first = new Set(leases.map(({ fencingToken }) => fencingToken))
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    // The leases of the first look have ended, by themselves or by an earlier try.
    if (!leases.some(({ fencingToken }) => first.has(fencingToken))) return []
    if (await endLeases(holder, { lockName, leases, metadata: { forcedBy: by } })) return leases.map(lockInfoFrom)
    // Readers that came meanwhile have to be ended together with the earlier ones.
    leases = await look()
  }
  throw new StoreError(`"${lockName}" was not released by force: new holders came ${MAX_TRIES} times meanwhile`)
}

/**
 * Ends exactly these leases. False if the lock has a newer one: then nothing is ended.
 *
 * @throws `UnsupportedError`
 */
export async function endLeases(holder: Holder, { lockName, leases, metadata }: Robbed): Promise<boolean> {
  holder.assertSupports('steal')
  const stealUpTo = leases.reduce((most, { fencingToken }) => Math.max(most, fencingToken), 0)
  const claim = { lockName, mode: 'exclusive', ttlMs: TTL_MS, waitMs: 0, steal: true, stealUpTo } as const
  const result = await holder.acquire({ ...claim, metadata, heartbeat: false, minHoldMs: 0, maxHoldMs: TTL_MS })
  if (result.granted) await result.lease.release()
  return result.granted
}

export interface Robbed {
  readonly lockName: string
  readonly leases: readonly LeaseRecord[]
  /** Of the lease that replaces the others for a moment. */
  readonly metadata: Metadata
}

/** If this process dies before the release, the lock is free after this time. */
const TTL_MS = 5_000
const MAX_TRIES = 10
