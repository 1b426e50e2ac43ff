import type { CheckedInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import type { SqliteConnection } from './connection.ts'
import { type Row, readCursor, readNow, recordOf, shareOf } from './rows.ts'

/** Reads one page, within a transaction. It blocks the event loop, so a long page ends early, even in a name. */
export function inspect(connection: SqliteConnection, query: CheckedInspectQuery): InspectPage {
  const { lockName, prefix, after, pageSize } = query
  const nowMs = readNow(connection)
  const from = after === undefined ? undefined : readCursor<Cursor>(after, isCursor)
  const leases: LeaseRecord[] = []
  const waiters: WaiterRecord[] = []
  const pageEndsAt = (...cursor: Cursor): InspectPage => ({ leases, waiters, next: JSON.stringify(cursor) })
  let names = 0
  let last = from?.[0]
  for (const name of namesOf(connection, query, from, nowMs)) {
    if (!name.startsWith(prefix) || (lockName !== undefined && name !== lockName)) continue
    let room = MAX_ON_A_PAGE - leases.length - waiters.length
    if (names === pageSize || room <= 0) return pageEndsAt(last as string, null, null)
    names += 1
    last = name
    const [, claimId, place] = from?.[0] === name ? from : [name, null, null]
    if (place === null) {
      // One row more than there is room for shows whether there are more.
      const rows = connection.all('leases_from', name, claimId ?? '', nowMs, room + 1) as Row[]
      const shown = rows.slice(0, room)
      for (const row of shown.toSorted((a, b) => a.fencing_token - b.fencing_token)) leases.push(recordOf(row, nowMs))
      if (rows.length > room) return pageEndsAt(name, shown.at(-1)?.claim_id as string, null)
      room -= rows.length
    }
    const rows = connection.all('waiters_from', name, place ?? -1, nowMs, room + 1) as Row[]
    for (const row of rows.slice(0, room)) waiters.push({ ...shareOf(row), waitingSinceMs: row.waiting_since_ms })
    // After its leases, if there was no room for a waiter.
    if (rows.length > room) return pageEndsAt(name, null, rows[room - 1]?.place ?? place ?? -1)
  }
  return { leases, waiters }
}

/** Where a page ended: after a name, or within a name after a lease or a waiter. */
type Cursor = readonly [name: string, claimId: string | null, place: number | null]

const isCursor = ([name, claimId, place]: readonly unknown[]): boolean =>
  typeof name === 'string' &&
  (claimId === null || typeof claimId === 'string') &&
  (place === null || typeof place === 'number')

/** Up to one name more than fits on the page. A name that the page before has begun comes first. */
function namesOf(
  connection: SqliteConnection,
  { lockName, prefix, pageSize }: CheckedInspectQuery,
  from: Cursor | undefined,
  nowMs: number,
): string[] {
  const [name, claimId = null, place = null] = from ?? []
  const isWithin = claimId !== null || place !== null
  if (lockName !== undefined) return name === undefined || isWithin ? [lockName] : []
  const after = name === undefined ? '' : `${name}\u0001`
  const range = [after, prefix, prefix + LAST, nowMs, pageSize + 1] as const
  const rows = connection.all('names', ...range, ...range, pageSize + 1) as { lock_name: string }[]
  const names = rows.map((row) => row.lock_name)
  return name !== undefined && isWithin ? [name, ...names] : names
}

/** The prefix followed by this is behind every name that begins with the prefix. */
const LAST = '\u{10ffff}'.repeat(MAX_NAME_LENGTH)
const MAX_ON_A_PAGE = 500
