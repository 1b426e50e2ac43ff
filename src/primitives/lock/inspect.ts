import type { Holder } from '../../core/claim/holder.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import { MAX_INSPECTED } from '../../core/limits.ts'
import { readPages } from '../../core/pages.ts'

/** What the store has for one lock name. */
export interface LockInspection {
  lockName: string
  /** The holders: one, or several readers or permits. Empty: the lock is free. */
  leases: LeaseInfo[]
  /** The waiters in the order in which they will be served. Only stores with a queue know them. */
  waiters: WaiterInfo[]
  /** False: there are more leases and waiters than the roughly 10,000 shown. */
  complete: boolean
}

/** The public part of a lease. It does not contain the claim id, which would allow others to end the lease. */
export interface LeaseInfo {
  holderId: string
  mode: 'exclusive' | 'shared'
  /** How many permits it has. 1 unless it is a semaphore's. */
  permits: number
  /** Only for a semaphore: the limit of its claim. */
  limit?: number
  fencingToken: number
  /** By the store's clock. Absent for the lock of another client that does not record it. */
  acquiredAt?: Date
  /** By the store's clock. Absent for a lease that does not expire by time. */
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

/**
 * Leases come before waiters, so usually the first page decides. A page may have neither and be followed by another.
 */
export async function isLocked(holder: Holder, lockName: string): Promise<boolean> {
  let page: InspectPage | undefined
  do {
    const after = page?.next
    page = await holder.inspect({ lockName, pageSize: 1, ...(after !== undefined && { after }) })
    if (page.leases.length > 0) return true
  } while (page.next !== undefined && page.waiters.length === 0)
  return false
}

/** Without the claim id: a client that knows it can end the lease. */
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
