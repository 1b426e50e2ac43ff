import type { LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { durationText } from './duration.ts'
import type { Seen } from './store.ts'
import { tableOf } from './table.ts'
import { printable, printableJson } from './text.ts'

/** By name; the oldest lease first; the lock with the most waiters first. */
export type Sorting = 'name' | 'age' | 'waiters'

/** One line for each lease, and for each lock that has only waiters. */
export function narrowTable(seen: Seen, sort: Sorting, width: number): string[] {
  const nowMs = Date.now()
  const waiting = countByName(seen.waiters)
  const shown = new Set<string>()
  const rows = sortedLeases(seen, sort).map((lease) => {
    const { lockName, mode, holderId, acquiredAtMs, expiresAtMs } = lease
    const isFirst = !shown.has(lockName)
    shown.add(lockName)
    return [
      printable(lockName),
      mode,
      printable(holderId),
      acquiredAtMs > 0 ? durationText(nowMs - acquiredAtMs) : 'unknown',
      expiresAtMs === undefined ? 'no end' : durationText(expiresAtMs - nowMs),
      // The waiters belong to the lock, not to each of its holders.
      isFirst ? `${waiting.get(lockName) ?? 0}` : '',
    ]
  })
  const free = [...waiting].filter(([lockName]) => !shown.has(lockName)).sort(byName)
  for (const [lockName, count] of free) rows.push([printable(lockName), '', 'none', '', '', `${count}`])
  return tableOf(
    [
      { title: 'LOCK', shrinks: true },
      { title: 'MODE' },
      { title: 'HOLDER', shrinks: true },
      { title: 'AGE' },
      { title: 'LEFT' },
      { title: 'WAITERS' },
    ],
    rows,
    width,
  )
}

/** One line for each lease and each waiter, with everything that does not depend on the clock of this machine. */
export function wideTable(seen: Seen, sort: Sorting, isSession: boolean): string[] {
  const endless = isSession ? 'with its session' : 'no expiry'
  const leases = sortedLeases(seen, sort)
  const order = [...new Set(leases.map(({ lockName }) => lockName))]
  const rows = [
    ...leases.map((lease) => [
      printable(lease.lockName),
      'holds',
      lease.mode,
      printable(lease.holderId),
      lease.acquiredAtMs > 0 ? time(lease.acquiredAtMs) : 'unknown',
      lease.expiresAtMs === undefined ? endless : time(lease.expiresAtMs),
      lease.fencingToken > 0 ? String(lease.fencingToken) : 'none',
    ]),
    ...seen.waiters.map((waiter) => [
      printable(waiter.lockName),
      'waits',
      waiter.mode,
      printable(waiter.holderId),
      time(waiter.waitingSinceMs),
      '',
      '',
    ]),
  ]
  // Waiters come behind the holders of their lock, and locks without a holder at the end.
  const places = new Map(order.map((lockName, place) => [printable(lockName), place]))
  const placeOf = ([name = '']: readonly string[]): number => places.get(name) ?? order.length
  rows.sort((a, b) => placeOf(a) - placeOf(b) || byName([a[0] ?? ''], [b[0] ?? '']))
  const columns = ['LOCK', '', 'MODE', 'HOLDER', 'SINCE', 'EXPIRES', 'TOKEN'].map((title) => ({ title }))
  return tableOf(columns, rows, Number.POSITIVE_INFINITY)
}

/** One object on a line, for each lease and each waiter. */
export function jsonLines(seen: Seen, sort: Sorting): string {
  const lines = [
    ...sortedLeases(seen, sort).map(({ acquiredAtMs, expiresAtMs, ...lease }) => ({
      state: 'holds',
      ...lease,
      // Unknown for a lock that another library took.
      ...(acquiredAtMs > 0 && { acquiredAt: new Date(acquiredAtMs) }),
      ...(expiresAtMs !== undefined && { expiresAt: new Date(expiresAtMs) }),
    })),
    ...seen.waiters.map(({ waitingSinceMs, ...waiter }) => ({
      state: 'waits',
      ...waiter,
      waitingSince: new Date(waitingSinceMs),
    })),
  ]
  return lines.map((line) => `${printableJson(line)}\n`).join('')
}

function sortedLeases({ leases, waiters }: Seen, sort: Sorting): readonly LeaseRecord[] {
  const waiting = countByName(waiters)
  const countOf = ({ lockName }: LeaseRecord): number => waiting.get(lockName) ?? 0
  // An age that is unknown is not the largest.
  const ageOf = ({ acquiredAtMs }: LeaseRecord): number => (acquiredAtMs > 0 ? acquiredAtMs : Number.MAX_VALUE)
  const order = (a: LeaseRecord, b: LeaseRecord): number => {
    const first = sort === 'age' ? ageOf(a) - ageOf(b) : sort === 'waiters' ? countOf(b) - countOf(a) : 0
    return first || byName([a.lockName], [b.lockName])
  }
  return [...leases].sort(order)
}

function countByName(waiters: readonly WaiterRecord[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const { lockName } of waiters) counts.set(lockName, (counts.get(lockName) ?? 0) + 1)
  return counts
}

const byName = ([a]: readonly [string, ...unknown[]], [b]: readonly [string, ...unknown[]]): number =>
  a < b ? -1 : a > b ? 1 : 0

const time = (ms: number): string => new Date(ms).toISOString()
