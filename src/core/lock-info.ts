import type { LeaseRecord } from './driver.ts'

/** A lease, as it is shown to its holder and to others. */
export interface LockInfo {
  /** What is locked. */
  lockName: string
  /** The instance that holds the lock. */
  holderId: string
  /** When the lock was acquired, on the store's clock. */
  acquiredAt: Date
  /**
   * When the lease ends, on the store's clock as far as this process knows it. It is meant for people to read. To
   * decide whether to go on, use `lease.held`.
   */
  expiresAt: Date
  /** What the holder passed as `metadata`. */
  metadata?: Record<string, unknown>
  /** Rises with every grant of the lock name. A protected resource rejects a smaller one. */
  fencingToken: number
}

/**
 * Converts a store's record. A lease that lasts as long as its session gets the latest possible date as `expiresAt`.
 */
export const lockInfoFrom = (record: LeaseRecord): LockInfo => ({
  lockName: record.lockName,
  holderId: record.holderId,
  acquiredAt: new Date(record.acquiredAtMs),
  expiresAt: new Date(record.expiresAtMs ?? NO_EXPIRY_MS),
  ...(record.metadata && { metadata: record.metadata }),
  fencingToken: record.fencingToken,
})

/** The last date that JavaScript has. */
export const MAX_TIME_MS = 8.64e15
/** For a lease that has no end of its own. */
export const NO_EXPIRY_MS = MAX_TIME_MS
