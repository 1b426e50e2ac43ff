import type { LeaseRecord } from '../../core/driver.ts'

/**
 * The start of a lease, the same on all nodes although their clocks differ by some milliseconds: the token is the same,
 * and it was the client's clock in microseconds when it was proposed.
 */
export const acquiredAt = (fencingToken: number): number => Math.floor(fencingToken / 1_000)

/** The record of a node, with a start that is the same on every node. */
export function agreedRecord(record: LeaseRecord): LeaseRecord {
  const { fencingToken, acquiredAtMs, expiresAtMs } = record
  if (fencingToken === 0) return record
  const beganMs = acquiredAt(fencingToken)
  const ends = expiresAtMs !== undefined && { expiresAtMs: beganMs + expiresAtMs - acquiredAtMs }
  return { ...record, acquiredAtMs: beganMs, ...ends }
}
