import type { Holder } from '../core/holder.ts'
import { type LockInfo, lockInfoFrom } from '../core/lease.ts'
import { readPages } from '../core/pages.ts'
import { unsupported } from '../core/unsupported.ts'

/** Takes the lock from whoever holds it, leaves word of who did it, and gives it back to those who wait. */
export async function forceRelease(holder: Holder, lockName: string, by: string): Promise<LockInfo[]> {
  if (!holder.link.driver.capabilities.steal) throw unsupported(holder.link.driver, 'steal')
  const { leases } = await readPages((query) => holder.inspect(query), { lockName })
  if (leases.length === 0) return []
  const claim = {
    lockName,
    mode: 'exclusive',
    ttlMs: TTL_MS,
    waitMs: 0,
    steal: true,
    metadata: { forcedBy: by },
  } as const
  const result = await holder.acquire({ ...claim, heartbeat: false, minHoldMs: 0, maxHoldMs: TTL_MS })
  if (result.granted) await result.lease.release()
  return leases.map(lockInfoFrom)
}

/** If this process dies in between, the lock is free after this. */
const TTL_MS = 5_000
