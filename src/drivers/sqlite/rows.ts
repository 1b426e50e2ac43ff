import type { LeaseRecord, Metadata } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { attempt } from '../../core/foreign-errors.ts'
import type { LockShare } from '../../core/lock-share.ts'
import type { SqliteConnection } from './connection.ts'

/** A row of the leases or of the waiters. Each table has only some of the columns. */
export interface Row {
  readonly lock_name: string
  readonly claim_id: string
  readonly holder_id: string
  readonly mode: 'exclusive' | 'shared'
  readonly max_permits: number | null
  readonly permits: number
  readonly fencing_token: number
  readonly acquired_at_ms: number
  readonly expires_at_ms: number
  readonly ttl_ms: number
  readonly wait_ms: number
  readonly metadata: string | null
  readonly place: number
  readonly waiting_since_ms: number
}

export function readNow(connection: SqliteConnection): number {
  return (connection.get('now') as { now_ms: number }).now_ms
}

/**
 * The leases that are held, combined into one. It reads no more of them than the largest limit in question: more would
 * not change a decision. `isAhead`: one of them was written by a clock that has been set back since.
 */
export function heldBeside(
  connection: SqliteConnection,
  lockName: string,
  nowMs: number,
  largestLimit: number,
): { held: readonly LockShare[]; isAhead: boolean } {
  const row = connection.get('held', nowMs, lockName, nowMs, largestLimit) as Held | undefined
  if (row === undefined || row.leases === 0) return { held: [], isAhead: false }
  const mode = row.exclusive === 1 ? 'exclusive' : 'shared'
  return { held: [{ mode, permits: row.permits }], isAhead: row.ahead === 1 }
}

export const largestLimit = (shares: readonly LockShare[]): number =>
  shares.reduce((largest, { limit = 1 }) => Math.max(largest, limit), 1)

interface Held {
  readonly leases: number
  readonly permits: number
  readonly exclusive: 0 | 1
  readonly ahead: 0 | 1
}

/** When the first lease ends. */
export function nextEndOf(connection: SqliteConnection, lockName: string, nowMs: number): number | null {
  return (connection.get('next_end', nowMs, lockName, nowMs) as { next_end_ms: number | null }).next_end_ms
}

/** The first waiters of a queue, at most `most` of them. To `get` one row takes two thirds of the time of a list. */
export function waitersOf(connection: SqliteConnection, lockName: string, nowMs: number, most: number): Row[] {
  if (most !== 1) return connection.all('waiters_of', lockName, nowMs, most) as Row[]
  const first = connection.get('waiters_of', lockName, nowMs, 1) as Row | undefined
  return first === undefined ? [] : [first]
}

export const shareOf = (row: Row) => ({
  lockName: row.lock_name,
  claimId: row.claim_id,
  holderId: row.holder_id,
  mode: row.mode,
  ...(row.max_permits !== null && { limit: row.max_permits }),
  permits: row.permits,
})

export const recordOf = (row: Row, nowMs: number): LeaseRecord => ({
  ...shareOf(row),
  fencingToken: row.fencing_token,
  acquiredAtMs: row.acquired_at_ms,
  expiresAtMs: Math.min(row.expires_at_ms, nowMs + row.ttl_ms),
  // What another program wrote is left out.
  ...attempt(() => (row.metadata === null ? {} : { metadata: JSON.parse(row.metadata) as Metadata })),
})

/** The parts of a cursor that a page before has written. */
export function readCursor<Parts extends readonly unknown[]>(
  after: string,
  isOurs: (parts: readonly unknown[]) => boolean,
): Parts {
  const parts: unknown = attempt(() => JSON.parse(after))
  if (Array.isArray(parts) && isOurs(parts)) return parts as unknown as Parts
  throw new InvalidArgumentError('after', after, '`next` of the page before')
}

/** How many waiters are read first, and then. If the first one is exclusive, one row is enough. */
export const QUEUE_WINDOWS = [1, 32] as const

/** The number of waiters ahead is exact up to this. */
export const MAX_AHEAD = 32
