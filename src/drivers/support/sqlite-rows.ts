import type { LeaseRecord } from '../../core/driver.ts'
import type { SqliteConnection } from './sqlite-connection.ts'

/** A row of the leases or of the waiters, as far as each has the column. */
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
  readonly metadata: string | null
  readonly place: number
  readonly waiting_since_ms: number
}

export function readNow(connection: SqliteConnection): number {
  const [row] = connection.all('now') as { now_ms: number }[]
  return row?.now_ms as number
}

export const leasesOf = (connection: SqliteConnection, lockName: string, nowMs: number): LeaseRecord[] =>
  (connection.all('leases_of', lockName, nowMs) as Row[]).map(recordOf)

/** The front of a queue; all of it with `most` −1. */
export const waitersOf = (connection: SqliteConnection, lockName: string, nowMs: number, most: number): Row[] =>
  connection.all('waiters_of', lockName, nowMs, most) as Row[]

export const shareOf = (row: Row) => ({
  lockName: row.lock_name,
  claimId: row.claim_id,
  holderId: row.holder_id,
  mode: row.mode,
  ...(row.max_permits !== null && { limit: row.max_permits }),
  permits: row.permits,
})

const recordOf = (row: Row): LeaseRecord => ({
  ...shareOf(row),
  fencingToken: row.fencing_token,
  acquiredAtMs: row.acquired_at_ms,
  expiresAtMs: row.expires_at_ms,
  ...(row.metadata && { metadata: JSON.parse(row.metadata) as Record<string, unknown> }),
})

/** How much of a queue is read at first, and then, to decide who is next: with an exclusive claim at its front, one row is enough. */
export const QUEUE_WINDOWS = [1, 32] as const
