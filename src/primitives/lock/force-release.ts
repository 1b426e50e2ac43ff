import type { Holder } from '../../core/claim/holder.ts'
import { StoreError } from '../../core/errors.ts'
import { type LockInfo, lockInfoFrom } from '../../core/lock-info.ts'
import { readPages } from '../../core/pages.ts'
import { unsupported } from '../../core/unsupported.ts'

/**
 * Takes the lock from those who hold it, leaves word of who did it, and gives it back to those who wait. It takes nothing from a lease that is newer than those that
 * it has seen: a holder that came meanwhile is not the one that is known to be dead.
 */
export async function forceRelease(holder: Holder, lockName: string, by: string): Promise<LockInfo[]> {
  if (!holder.store.driver.capabilities.steal) throw unsupported(holder.store.driver, 'steal')
  const look = async () => (await readPages((query) => holder.inspect(query), { lockName })).leases
  let leases = await look()
  const first = new Set(leases.map(({ fencingToken }) => fencingToken))
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    // Those that were there at the beginning have ended, by themselves or by this.
    if (!leases.some(({ fencingToken }) => first.has(fencingToken))) return []
    const stealUpTo = leases.reduce((most, { fencingToken }) => Math.max(most, fencingToken), 0)
    const claim = { lockName, mode: 'exclusive', ttlMs: TTL_MS, waitMs: 0, steal: true, stealUpTo } as const
    const options = { metadata: { forcedBy: by }, heartbeat: false, minHoldMs: 0, maxHoldMs: TTL_MS }
    const result = await holder.acquire({ ...claim, ...options })
    if (result.granted) {
      await result.lease.release()
      return leases.map(lockInfoFrom)
    }
    // Readers that came meanwhile have to go with those that were there before.
    leases = await look()
  }
  throw new StoreError(`"${lockName}" was not released by force: new holders came ${MAX_TRIES} times meanwhile`)
}

/** If this process dies in between, the lock is free after this. */
const TTL_MS = 5_000
const MAX_TRIES = 10
