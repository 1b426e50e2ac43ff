import { chooseUrl } from '../connect.ts'
import { type Cycle, findCycles, type Snapshot, waitForGraph } from '../core/deadlock/find.ts'
import { readSnapshot } from '../core/deadlock/snapshot.ts'
import type { Driver, LeaseRecord } from '../core/driver.ts'
import { chainIdOf, chainIdsOf } from '../core/lease/chain.ts'
import type { PageBounds } from '../core/pages.ts'
import { type ForcedReleaseRecord, forcedReleasesOf, recordPrefix } from '../primitives/lock/forced-release-record.ts'
import { inspectStore, storeClientOf } from '../primitives/on-driver.ts'
import { durationText, isoTime } from './duration.ts'
import { argumentsOf, FLAG, leaseJson, oneName, outputWidth, type Seen, waiterJson, withDriver } from './store.ts'
import { tableOf } from './table.ts'
import { paintFor, printable, printableJson, type Style } from './text.ts'

export function main(args: readonly string[]): Promise<number> {
  const { values, positionals } = argumentsOf(args, { json: FLAG })
  const lockName = oneName('show', positionals)
  return withDriver(chooseUrl(values.url), async (driver) => {
    const shown = await examine(driver, lockName)
    process.stdout.write(values.json ? shownJson(shown) : shownText(shown))
    return 0
  })
}

function shownText(shown: Shown): string {
  const paint = paintFor(process.stdout)
  const lines = shownLines(shown, { nowMs: Date.now(), width: outputWidth() })
  return lines.map(({ text, style }) => `${style === undefined ? text : paint(style, text)}\n`).join('')
}

/**
 * Reads one lock, and what its holders wait for. Forced releases that are known already are not read again: some stores
 * search all names for them.
 */
export async function examine(
  driver: Driver,
  lockName: string,
  known: { bounds?: PageBounds; forcedReleases?: readonly ForcedReleaseRecord[] } = {},
): Promise<Shown> {
  const [{ leases, waiters, complete }, around, forcedReleases] = await Promise.all([
    inspectStore(driver, { lockName }, known.bounds),
    readSnapshot(storeClientOf(driver), [lockName]),
    known.forcedReleases ?? readForcedReleases(driver, lockName, known.bounds),
  ])
  const deadlock = cycleWith(around, lockName)
  return {
    lockName,
    leases,
    waiters,
    holdersWaitFor: leases.map((lease) => waitsUnder(lease, around)),
    ...(deadlock && { deadlock }),
    forcedReleases,
    complete,
  }
}

const readForcedReleases = async (
  driver: Driver,
  lockName: string,
  bounds?: PageBounds,
): Promise<ForcedReleaseRecord[]> =>
  forcedReleasesOf(lockName, (await inspectStore(driver, { prefix: recordPrefix(lockName) }, bounds)).leases)

/** The claims that were made inside the callback of this lease and wait. Their ids begin with its id. */
function waitsUnder(lease: LeaseRecord, { waiters }: Snapshot): Wait[] {
  const own = chainIdOf(lease.claimId)
  return waiters
    .filter(({ claimId }) => chainIdsOf(claimId).slice(1).includes(own))
    .map(({ lockName, waitingSinceMs }) => ({ lockName, sinceMs: waitingSinceMs }))
}

function cycleWith(snapshot: Snapshot, lockName: string): Cycle | undefined {
  const cycles = [...findCycles(waitForGraph(snapshot)).values()]
  return cycles.find((cycle) => cycle.some(({ waiter }) => waiter.lockName === lockName))
}

/** What is known of one lock. */
export interface Shown extends Seen {
  readonly lockName: string
  /** What the holders themselves wait for, in the order of the leases. */
  readonly holdersWaitFor: readonly (readonly Wait[])[]
  /** Claims that wait for each other, and of which one has to give up. The lock is part of it. */
  readonly deadlock?: Cycle
  /** The last ones first. */
  readonly forcedReleases: readonly ForcedReleaseRecord[]
  /** False if the lock has more leases and waiters than were read. */
  readonly complete: boolean
}

export interface Wait {
  readonly lockName: string
  readonly sinceMs: number
}

/** For people: the holders, the queue in its order, a deadlock, and earlier forced releases. */
export function shownLines(
  { lockName, leases, waiters, holdersWaitFor, deadlock, forcedReleases, complete }: Shown,
  { nowMs, width }: { nowMs: number; width: number },
): Line[] {
  const lines: string[] = []
  if (leases.length === 0) lines.push('', 'it is free')
  leases.forEach((lease, at) => {
    lines.push('', ...holderLines(lease, holdersWaitFor[at] ?? [], nowMs))
  })
  if (waiters.length > 0) {
    const rows = waiters.map(({ holderId, mode, permits, waitingSinceMs }, at) => [
      `${at + 1}`,
      printable(holderId),
      permits > 1 ? `${mode}, ${permits} permits` : mode,
      durationText(nowMs - waitingSinceMs),
    ])
    const columns = [{ title: 'QUEUE' }, { title: 'WAITER', shrinks: true }, { title: 'MODE' }, { title: 'WAITING' }]
    lines.push('', ...tableOf(columns, rows, width))
  }
  if (deadlock !== undefined) {
    lines.push('', DEADLOCK)
    for (const { waiter, blocker } of deadlock) {
      const how = 'fencingToken' in blocker ? 'which is held by' : 'behind'
      lines.push(printable(`  ${waiter.holderId} waits for ${waiter.lockName}, ${how} ${blocker.holderId}`))
    }
  }
  if (forcedReleases.length > 0) lines.push('', 'force-released before')
  for (const { by, reason, at, ended } of forcedReleases) {
    const ago = durationText(nowMs - at.getTime())
    lines.push(printable(`  ${ago} ago by ${by}: ${reason} (held by ${ended.join(', ')})`))
  }
  if (!complete) lines.push('', `only the first ${leases.length + waiters.length} holders and waiters are shown`)
  return [
    { text: printable(lockName), style: 'bold' },
    ...lines.map((text): Line => (text === DEADLOCK ? { text, style: 'red' } : { text })),
  ]
}

/** A line of text, and how it is drawn on a terminal. */
interface Line {
  readonly text: string
  readonly style?: Style
}

const DEADLOCK = 'deadlock: none of these can go on until one gives up'

function holderLines(lease: LeaseRecord, waits: readonly Wait[], nowMs: number): string[] {
  const { holderId, mode, permits, limit, acquiredAtMs, expiresAtMs, fencingToken, metadata } = lease
  const share = limit === undefined ? mode : `${permits} of ${limit} permits`
  const fields: [string, string][] = [['held by', `${holderId} (${share})`]]
  if (acquiredAtMs > 0) fields.push(['since', `${durationText(nowMs - acquiredAtMs)} (${isoTime(acquiredAtMs)})`])
  if (expiresAtMs === undefined) fields.push(['ends', 'with its session'])
  else fields.push(['ends in', `${durationText(expiresAtMs - nowMs)}, unless it is renewed`])
  if (fencingToken > 0) fields.push(['token', `${fencingToken}`])
  if (metadata !== undefined) fields.push(['metadata', JSON.stringify(metadata)])
  for (const { lockName, sinceMs } of waits) {
    fields.push(['waits for', `${lockName}, for ${durationText(nowMs - sinceMs)}`])
  }
  return fields.map(([name, text]) => `${name.padEnd(11)}${printable(text)}`)
}

/** One object. Times are absolute. */
function shownJson({ lockName, leases, waiters, holdersWaitFor, deadlock, forcedReleases }: Shown): string {
  const value = {
    lockName,
    leases: leases.map((lease, at) => ({
      ...leaseJson(lease),
      lockName: undefined,
      waitsFor: (holdersWaitFor[at] ?? []).map((wait) => ({ lockName: wait.lockName, since: isoTime(wait.sinceMs) })),
    })),
    waiters: waiters.map((waiter) => ({ ...waiterJson(waiter), lockName: undefined })),
    ...(deadlock && {
      deadlock: deadlock.map(({ waiter, blocker }) => ({
        holderId: waiter.holderId,
        lockName: waiter.lockName,
        heldBy: blocker.holderId,
      })),
    }),
    forcedReleases,
  }
  return `${printableJson(value)}\n`
}
