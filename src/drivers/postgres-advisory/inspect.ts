import type { CheckedInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import type { Row } from '../postgres/connections.ts'
import { type BoardEntry, readBoard } from './activity-comment.ts'
import { advisoryKey } from './key.ts'

/** Who holds a name: one of ours by its board, anybody else by what the server tells. */
export function holderOf(lockName: string, rows: readonly Row[]): LeaseRecord | undefined {
  const key = advisoryKey(lockName)
  const held = rows.filter((row) => row['granted'] && row['key'] === key)
  for (const row of held) {
    const [lease] = leasesIn(row).filter((lease) => lease.lockName === lockName)
    if (lease !== undefined) return lease
  }
  const [row] = held
  return row && { ...unnamed(row), lockName }
}

export function inspectLocks(
  { lockName, prefix, after, pageSize }: CheckedInspectQuery,
  rows: readonly Row[],
): InspectPage {
  const isAsked = (name: string): boolean =>
    (lockName === undefined || name === lockName) && name.startsWith(prefix) && (after === undefined || name > after)
  const ours = rows.filter((row) => readBoard(row['board'] as string | null) !== undefined)
  const leases = ours
    .filter((row) => row['granted'])
    .flatMap(leasesIn)
    .filter((lease) => isAsked(lease.lockName))
  const waiters = ours
    .filter((row) => !row['granted'])
    .flatMap(waitersIn)
    .filter((waiter) => isAsked(waiter.lockName))
  const names = [...new Set([...leases, ...waiters].map((each) => each.lockName))].sort()
  const page = new Set(names.slice(0, pageSize))
  const next = names.length > pageSize ? names[pageSize - 1] : undefined
  return {
    leases: leases.filter((lease) => page.has(lease.lockName)).sort(byNameThenToken),
    waiters: waiters.filter((waiter) => page.has(waiter.lockName)).sort((a, b) => a.waitingSinceMs - b.waitingSinceMs),
    ...(next !== undefined && { next }),
  }
}

const byNameThenToken = (a: LeaseRecord, b: LeaseRecord): number =>
  a.lockName === b.lockName ? a.fencingToken - b.fencingToken : a.lockName < b.lockName ? -1 : 1

/** The board says what is held or being asked for; the lock that the row is about says which of it is. */
function entriesOf(row: Row): readonly BoardEntry[] {
  const board = readBoard(row['board'] as string | null) ?? []
  return board.filter(({ lockName, shared }) => shared === row['shared'] && advisoryKey(lockName) === row['key'])
}

function leasesIn(row: Row): LeaseRecord[] {
  const entries = entriesOf(row)
  if (entries.length === 0) return [unnamed(row)]
  return entries.map(({ lockName, claimId, holderId, shared, fencingToken, acquiredAtMs }) => ({
    lockName,
    claimId,
    holderId,
    mode: shared ? 'shared' : 'exclusive',
    permits: 1,
    // Of what the board's own statement asked for, the server tells: its token, and since when it was asked for. The
    // next heartbeat writes on the board since when it is held.
    fencingToken: fencingToken ?? Number(row['token']),
    acquiredAtMs: acquiredAtMs ?? Number(row['asked_at']),
  }))
}

const waitersIn = (row: Row): WaiterRecord[] =>
  entriesOf(row)
    .slice(0, 1)
    .map(({ lockName, claimId, holderId, shared }) => ({
      lockName,
      claimId,
      holderId,
      mode: shared ? 'shared' : 'exclusive',
      permits: 1,
      waitingSinceMs: Number(row['asked_at']),
    }))

/** No room on the board, a role whose statements this one may not see, or somebody who is not Holdfast. */
const unnamed = (row: Row): LeaseRecord => ({
  lockName: `#${row['key']}`,
  claimId: `pid:${row['pid']}:${row['key']}`,
  holderId: `pid ${row['pid']}`,
  mode: row['shared'] ? 'shared' : 'exclusive',
  permits: 1,
  fencingToken: 0,
  acquiredAtMs: Number(row['asked_at']),
})
