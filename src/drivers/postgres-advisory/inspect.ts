import type { CheckedInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import type { Row } from '../postgres/connections.ts'
import { type ActivityEntry, readActivityComment } from './activity-comment.ts'
import { advisoryKey } from './held-locks.ts'

/** The holder of a name: a client of Holdfast by its activity comment, any other by what the server shows. */
export function holderOf(lockName: string, rows: readonly Row[]): LeaseRecord | undefined {
  const key = advisoryKey(lockName)
  const held = rows.filter((row) => row['granted'] && row['key'] === key).flatMap((row) => leasesOn(lockName, row))
  return held.find(({ fencingToken }) => fencingToken > 0) ?? held[0]
}

export function inspectLocks(
  { lockName, prefix, after, pageSize }: CheckedInspectQuery,
  rows: readonly Row[],
): InspectPage {
  const isRequested = (name: string): boolean =>
    (lockName === undefined || name === lockName) && name.startsWith(prefix) && (after === undefined || name > after)
  const ours = rows.filter((row) => readActivityComment(row['query'] as string | null) !== undefined)
  // Locks of other clients have no names. But if one name was asked for, all rows are about its key.
  const leases = (lockName === undefined ? ours : rows)
    .filter((row) => row['granted'])
    .flatMap((row) => (lockName === undefined ? leasesIn(row) : leasesOn(lockName, row)))
    .filter((lease) => isRequested(lease.lockName))
  const waiters = ours
    .filter((row) => !row['granted'])
    .flatMap(waitersIn)
    .filter((waiter) => isRequested(waiter.lockName))
  const names = [...new Set([...leases, ...waiters].map((each) => each.lockName))].sort()
  const page = new Set(names.slice(0, pageSize))
  const next = names.length > pageSize ? names[pageSize - 1] : undefined
  return {
    leases: leases.filter((lease) => page.has(lease.lockName)).sort(byNameThenToken),
    waiters: waiters.filter((waiter) => page.has(waiter.lockName)).sort((a, b) => a.waitingSinceMs - b.waitingSinceMs),
    ...(next !== undefined && { next }),
  }
}

/** The leases on this name that a row is about. Its holder may not show the name. */
export function leasesOn(lockName: string, row: Row): LeaseRecord[] {
  const named = leasesIn(row).filter((lease) => lease.lockName === lockName)
  return named.length > 0 || row['key'] !== advisoryKey(lockName) ? named : [{ ...unnamed(row), lockName }]
}

const byNameThenToken = (a: LeaseRecord, b: LeaseRecord): number =>
  a.lockName === b.lockName ? a.fencingToken - b.fencingToken : a.lockName < b.lockName ? -1 : 1

/** The comment lists all leases and requests of the connection. The row is about one of its locks. */
function entriesOf(row: Row): readonly ActivityEntry[] {
  const entries = readActivityComment(row['query'] as string | null) ?? []
  return entries.filter(({ lockName, shared }) => shared === row['shared'] && advisoryKey(lockName) === row['key'])
}

function leasesIn(row: Row): LeaseRecord[] {
  const entries = entriesOf(row)
  if (entries.length === 0) return [unnamed(row)]
  return entries.map(({ fencingToken, acquiredAtMs, ...entry }) => ({
    ...claimPart(entry),
    // The comment was sent with the statement that requested this lock. So the server's columns have its token, and the
    // time of the request. The comment of the next heartbeat has the time of the grant.
    fencingToken: fencingToken ?? Number(row['token']),
    acquiredAtMs: acquiredAtMs ?? Number(row['asked_at']),
    session: sessionOf(row),
  }))
}

const sessionOf = (row: Row): string => `pid ${row['pid']}`

const waitersIn = (row: Row): WaiterRecord[] =>
  entriesOf(row)
    .slice(0, 1)
    .map((entry) => ({ ...claimPart(entry), waitingSinceMs: Number(row['asked_at']) }))

const claimPart = ({ lockName, claimId, holderId, shared }: ActivityEntry) =>
  ({ lockName, claimId, holderId, mode: shared ? 'shared' : 'exclusive', permits: 1 }) as const

/** There was no room in the comment, this role may not see the statement, or the holder does not use Holdfast. */
const unnamed = (row: Row): LeaseRecord => ({
  ...claimPart({
    lockName: `#${row['key']}`,
    claimId: `pid:${row['pid']}:${row['key']}`,
    holderId: sessionOf(row),
    shared: row['shared'] === true,
  }),
  fencingToken: 0,
  acquiredAtMs: Number(row['asked_at'] ?? 0),
  session: sessionOf(row),
})
