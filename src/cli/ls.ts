import { setTimeout as sleep } from 'node:timers/promises'
import { chooseUrl } from '../connect.ts'
import type { Driver, LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { withoutSecrets } from '../core/secrets.ts'
import { isBookkeeping } from '../primitives/lock/forced-release-record.ts'
import { inspectStore } from '../primitives/on-driver.ts'
import { durationMsFrom, durationText, isoTime } from './duration.ts'
import { UsageError } from './exit-codes.ts'
import {
  argumentsOf,
  FLAG,
  leaseJson,
  onePrefix,
  outputWidth,
  type Seen,
  TEXT,
  waiterJson,
  withDriver,
} from './store.ts'
import { tableOf } from './table.ts'
import { compareTexts, paintFor, printable, printableJson } from './text.ts'

export function main(args: readonly string[]): Promise<number> {
  const options = parse(args)
  return withDriver(options.url, async (driver) => {
    for (;;) {
      const output = outputOf(driver, select(await inspectStore(driver, { prefix: options.prefix }), options), options)
      if (!options.watch) {
        process.stdout.write(output)
        return 0
      }
      process.stdout.write(process.stdout.isTTY ? screenOf(output) : `${output}\n`)
      await sleep(WATCH_EVERY_MS)
    }
  })
}

const WATCH_EVERY_MS = 1_000

/** On a terminal each table replaces the one before it. Cleared line by line, it does not flicker. */
function screenOf(output: string): string {
  const lines = output.trimEnd().split('\n')
  // One more would scroll, and leave its beginning behind. The last row is for the cursor.
  const room = Math.max(2, (process.stdout.rows || 24) - 1)
  const fitting =
    lines.length <= room ? lines : [...lines.slice(0, room - 1), `… ${lines.length - room + 1} more lines`]
  return `\u001b[H${fitting.map((line) => `${line}\u001b[K\n`).join('')}\u001b[J`
}

function parse(args: readonly string[]) {
  const { values, positionals } = argumentsOf(args, {
    json: FLAG,
    wide: FLAG,
    all: FLAG,
    watch: FLAG,
    sort: TEXT,
    'held-longer-than': TEXT,
  })
  const { json, wide, watch, all, 'held-longer-than': heldLongerThan } = values
  if (json && wide) throw new UsageError('--json and --wide exclude each other')
  return {
    url: chooseUrl(values.url),
    prefix: onePrefix('ls', positionals),
    form: json ? 'json' : wide ? 'wide' : 'narrow',
    sort: sortingFrom(values.sort ?? 'name'),
    watch,
    all,
    heldLongerThanMs: heldLongerThan === undefined ? undefined : durationMsFrom('--held-longer-than', heldLongerThan),
  } as const
}

type Options = ReturnType<typeof parse>

function sortingFrom(text: string): Sorting {
  if (text === 'name' || text === 'age' || text === 'waiters') return text
  throw new UsageError(`--sort must be age, waiters or name, but is "${text}"`)
}

function select({ leases, waiters }: Seen, { all, heldLongerThanMs }: Options): Seen {
  const shown = all ? leases : leases.filter((lease) => !isBookkeeping(lease))
  if (heldLongerThanMs === undefined) return { leases: shown, waiters }
  const since = Date.now() - heldLongerThanMs
  // It is unknown since when another client holds its lock.
  const old = shown.filter(({ acquiredAtMs }) => acquiredAtMs > 0 && acquiredAtMs <= since)
  const names = new Set(old.map(({ lockName }) => lockName))
  return { leases: old, waiters: waiters.filter(({ lockName }) => names.has(lockName)) }
}

function outputOf({ capabilities }: Driver, seen: Seen, { prefix, form, sort }: Options): string {
  if (form === 'json') return jsonLines(seen, sort)
  const filter = prefix === '' ? '' : ` whose names begin with "${printable(withoutSecrets(prefix))}"`
  if (seen.leases.length === 0 && seen.waiters.length === 0) return `no locks are held${filter}\n`
  const isSession = capabilities.expiry === 'session'
  const [head = '', ...rows] =
    form === 'wide' ? wideTable(seen, sort, isSession) : narrowTable(seen, sort, outputWidth())
  const lines = [paintFor(process.stdout)('bold', head), ...rows]
  if (filter !== '') lines.push('', `Only locks${filter} are shown.`)
  return `${lines.join('\n')}\n`
}

/** By name; the oldest lease first; the lock with the most waiters first. */
type Sorting = 'name' | 'age' | 'waiters'

/** One line for each lease, and for each lock that has only waiters. */
function narrowTable(seen: Seen, sort: Sorting, width: number): string[] {
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
  const free = [...waiting].filter(([lockName]) => !shown.has(lockName)).sort(([a], [b]) => compareTexts(a, b))
  for (const [lockName, count] of free) rows.push([printable(lockName), '', 'none', '', '', `${count}`])
  const columns = ['LOCK', 'MODE', 'HOLDER', 'AGE', 'LEFT', 'WAITERS'].map((title) => ({
    title,
    shrinks: title === 'LOCK' || title === 'HOLDER',
  }))
  return tableOf(columns, rows, width)
}

/** One line for each lease and each waiter, with everything that does not depend on the clock of this machine. */
function wideTable(seen: Seen, sort: Sorting, isSession: boolean): string[] {
  const endless = isSession ? 'with its session' : 'no expiry'
  const leases = sortedLeases(seen, sort)
  const order = [...new Set(leases.map(({ lockName }) => lockName))]
  const rows = [
    ...leases.map((lease) => [
      printable(lease.lockName),
      'holds',
      lease.mode,
      printable(lease.holderId),
      lease.acquiredAtMs > 0 ? isoTime(lease.acquiredAtMs) : 'unknown',
      lease.expiresAtMs === undefined ? endless : isoTime(lease.expiresAtMs),
      lease.fencingToken > 0 ? String(lease.fencingToken) : 'none',
    ]),
    ...seen.waiters.map((waiter) => [
      printable(waiter.lockName),
      'waits',
      waiter.mode,
      printable(waiter.holderId),
      isoTime(waiter.waitingSinceMs),
      '',
      '',
    ]),
  ]
  // Waiters come behind the holders of their lock, and locks without a holder at the end.
  const places = new Map(order.map((lockName, place) => [printable(lockName), place]))
  const placeOf = ([name = '']: readonly string[]): number => places.get(name) ?? order.length
  rows.sort((a, b) => placeOf(a) - placeOf(b) || compareTexts(a[0] ?? '', b[0] ?? ''))
  const columns = ['LOCK', '', 'MODE', 'HOLDER', 'SINCE', 'EXPIRES', 'TOKEN'].map((title) => ({ title }))
  return tableOf(columns, rows, Number.POSITIVE_INFINITY)
}

/** One object on a line, for each lease and each waiter. */
function jsonLines(seen: Seen, sort: Sorting): string {
  const lines = [
    ...sortedLeases(seen, sort).map((lease) => ({ state: 'holds', ...leaseJson(lease) })),
    ...seen.waiters.map((waiter) => ({ state: 'waits', ...waiterJson(waiter) })),
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
    return first || compareTexts(a.lockName, b.lockName)
  }
  return [...leases].sort(order)
}

function countByName(waiters: readonly WaiterRecord[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const { lockName } of waiters) counts.set(lockName, (counts.get(lockName) ?? 0) + 1)
  return counts
}
