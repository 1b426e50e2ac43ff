import type { CheckedInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import type { SqliteConnection } from './connection.ts'
import { type Row, readNow, recordOf, shareOf } from './rows.ts'

/**
 * Reads one page. Call it within a transaction. The event loop is blocked meanwhile, so a page with many leases or
 * waiters ends early, even within a name.
 */
export function inspect(connection: SqliteConnection, query: CheckedInspectQuery): InspectPage {
  const { lockName, prefix, after, pageSize } = query
  const nowMs = readNow(connection)
  const from = after === undefined ? undefined : readCursor(after)
  const leases: LeaseRecord[] = []
  const waiters: WaiterRecord[] = []
  let names = 0
  let last = from?.name
  for (const name of namesOf(connection, query, from, nowMs)) {
    if (!name.startsWith(prefix) || (lockName !== undefined && name !== lockName)) continue
    let room = MAX_ON_A_PAGE - leases.length - waiters.length
    if (names === pageSize || room <= 0) return { leases, waiters, next: writeCursor({ name: last as string }) }
    names += 1
    last = name
    const within = from?.name === name ? from : undefined
    if (within?.place === undefined) {
      // One row more than there is room for shows whether there are more.
      const rows = connection.all('leases_from', name, within?.claimId ?? '', nowMs, room + 1) as Row[]
      const shown = rows.slice(0, room)
      for (const row of shown.toSorted((a, b) => a.fencing_token - b.fencing_token)) leases.push(recordOf(row, nowMs))
      if (rows.length > room) {
        return { leases, waiters, next: writeCursor({ name, claimId: shown.at(-1)?.claim_id as string }) }
      }
      room -= rows.length
    }
    const rows = connection.all('waiters_from', name, within?.place ?? -1, nowMs, room + 1) as WaiterRow[]
    for (const row of rows.slice(0, room)) waiters.push({ ...shareOf(row), waitingSinceMs: row.waiting_since_ms })
    if (rows.length > room) {
      // After its leases, if there was no room for a waiter.
      return { leases, waiters, next: writeCursor({ name, place: rows[room - 1]?.place ?? within?.place ?? -1 }) }
    }
  }
  return { leases, waiters }
}

type WaiterRow = Row & { readonly place: number }

/** Where a page ended: after a name, or within a name after a lease or a waiter. */
interface Cursor {
  readonly name: string
  readonly claimId?: string
  readonly place?: number
}

const writeCursor = ({ name, claimId, place }: Cursor): string => JSON.stringify([name, claimId ?? null, place ?? null])

function readCursor(after: string): Cursor {
  const parts = parsed(after)
  const [name, claimId, place] = Array.isArray(parts) ? (parts as unknown[]) : []
  const isOurs =
    typeof name === 'string' &&
    (claimId === null || typeof claimId === 'string') &&
    (place === null || typeof place === 'number')
  if (!isOurs) throw new InvalidArgumentError('after', after, '`next` of the page before')
  return { name, ...(claimId !== null && { claimId }), ...(place !== null && { place }) }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** Up to one name more than fits on the page. A name that the page before has begun comes first. */
function namesOf(
  connection: SqliteConnection,
  { lockName, prefix, pageSize }: CheckedInspectQuery,
  from: Cursor | undefined,
  nowMs: number,
): string[] {
  const isWithin = from?.claimId !== undefined || from?.place !== undefined
  if (lockName !== undefined) return from === undefined || isWithin ? [lockName] : []
  const after = from === undefined ? '' : `${from.name}\u0001`
  const range = [after, prefix, prefix + LAST, nowMs, pageSize + 1] as const
  const rows = connection.all('names', ...range, ...range, pageSize + 1) as { lock_name: string }[]
  const names = rows.map((row) => row.lock_name)
  return isWithin ? [from.name, ...names] : names
}

/** The prefix followed by this is behind every name that begins with the prefix. */
const LAST = '\u{10ffff}'.repeat(MAX_NAME_LENGTH)
const MAX_ON_A_PAGE = 500
