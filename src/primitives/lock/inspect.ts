import type { Holder } from '../../core/claim/holder.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import { MAX_INSPECTED } from '../../core/limits.ts'
import { readPages } from '../../core/pages.ts'

/** What the store has on one lock name. */
export interface LockInspection {
  lockName: string
  /** Those who hold it: one, or several readers or permits. Empty: it is free. */
  leases: LeaseInfo[]
  /** Those who wait for it, in the order in which they will be served. Only stores with a queue know them. */
  waiters: WaiterInfo[]
  /** False: there are more leases and waiters than the about 10,000 that are shown. */
  complete: boolean
}

/** A lease as everybody may see it. What proves that it is one's own is not part of it. */
export interface LeaseInfo {
  holderId: string
  mode: 'exclusive' | 'shared'
  /** How many permits it has, and of how many: only of a semaphore's. */
  permits: number
  limit?: number
  fencingToken: number
  /** By the store's clock. Absent for the lock of another client that does not say so. */
  acquiredAt?: Date
  /** By the store's clock. Absent where a lease has no end of its own. */
  expiresAt?: Date
  metadata?: Record<string, unknown>
}

export interface WaiterInfo {
  holderId: string
  mode: 'exclusive' | 'shared'
  permits: number
  limit?: number
  /** By the store's clock. */
  waitingSince: Date
}

export async function inspectLock(holder: Holder, lockName: string): Promise<LockInspection> {
  const bounds = { records: MAX_INSPECTED }
  const { leases, waiters, complete } = await readPages((query) => holder.inspect(query), { lockName }, bounds)
  return { lockName, leases: leases.map(leaseInfoFrom), waiters: waiters.map(waiterInfoFrom), complete }
}

/** A name's leases come before its waiters: mostly the first page decides. A page of a store may have neither and go on. */
export async function isLocked(holder: Holder, lockName: string): Promise<boolean> {
  let page: InspectPage | undefined
  do {
    const after = page?.next
    page = await holder.inspect({ lockName, pageSize: 1, ...(after !== undefined && { after }) })
    if (page.leases.length > 0) return true
  } while (page.next !== undefined && page.waiters.length === 0)
  return false
}

/** Without the claim's id: whoever knows it can end the lease. */
const leaseInfoFrom = (record: LeaseRecord): LeaseInfo => ({
  holderId: record.holderId,
  mode: record.mode,
  permits: record.permits,
  ...(record.limit !== undefined && { limit: record.limit }),
  fencingToken: record.fencingToken,
  ...(record.acquiredAtMs > 0 && { acquiredAt: new Date(record.acquiredAtMs) }),
  ...(record.expiresAtMs !== undefined && { expiresAt: new Date(record.expiresAtMs) }),
  ...(record.metadata && { metadata: record.metadata }),
})

const waiterInfoFrom = (record: WaiterRecord): WaiterInfo => ({
  holderId: record.holderId,
  mode: record.mode,
  permits: record.permits,
  ...(record.limit !== undefined && { limit: record.limit }),
  waitingSince: new Date(record.waitingSinceMs),
})
