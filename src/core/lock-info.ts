import type { LeaseRecord } from './driver.ts'

export interface LockInfo {
  lockName: string
  holderId: string
  acquiredAt: Date
  /** By the store's clock, as far as this process knows it. To decide whether to go on, ask `held`. */
  expiresAt: Date
  metadata?: Record<string, unknown>
  fencingToken: number
}

/** A store's record as callers see it. A lease that lasts as long as its session has no end of its own: the last date there is. */
export const lockInfoFrom = (record: LeaseRecord): LockInfo => ({
  lockName: record.lockName,
  holderId: record.holderId,
  acquiredAt: new Date(record.acquiredAtMs),
  expiresAt: new Date(record.expiresAtMs ?? 8.64e15),
  ...(record.metadata && { metadata: record.metadata }),
  fencingToken: record.fencingToken,
})
