import type { CheckedInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import type { SqliteConnection } from './sqlite-connection.ts'
import { leasesOf, readNow, shareOf, waitersOf } from './sqlite-rows.ts'

/** One page, within a transaction. It ends early where its names have many leases or waiters: the event loop waits for it. */
export function inspect(connection: SqliteConnection, query: CheckedInspectQuery): InspectPage {
  const { lockName, prefix, pageSize } = query
  const nowMs = readNow(connection)
  const names = lockName === undefined ? namesOf(connection, query, nowMs) : [lockName]
  const leases: LeaseRecord[] = []
  const waiters: WaiterRecord[] = []
  for (const [index, name] of names.entries()) {
    if (index === pageSize || leases.length + waiters.length > MOST_ON_A_PAGE) {
      return { leases, waiters, next: names[index - 1] as string }
    }
    if (!name.startsWith(prefix)) continue
    for (const lease of leasesOf(connection, name, nowMs)) leases.push(lease)
    for (const row of waitersOf(connection, name, nowMs, -1)) {
      waiters.push({ ...shareOf(row), waitingSinceMs: row.waiting_since_ms })
    }
  }
  return { leases, waiters }
}

/** One more than fit on the page, if there are so many. */
function namesOf(
  connection: SqliteConnection,
  { prefix, after, pageSize }: CheckedInspectQuery,
  nowMs: number,
): string[] {
  const range = [after === undefined ? '' : `${after}\u0001`, prefix, prefix + LAST, nowMs, pageSize + 1] as const
  const rows = connection.all('names', ...range, ...range, pageSize + 1) as { lock_name: string }[]
  return rows.map((row) => row.lock_name)
}

/** No name that begins with a prefix comes after the prefix and this. */
const LAST = '\u{10ffff}'.repeat(MAX_NAME_LENGTH)
const MOST_ON_A_PAGE = 10_000
