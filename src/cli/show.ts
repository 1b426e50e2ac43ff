import { chainIdOf, chainIdsOf } from '../core/claim/chain.ts'
import { type Cycle, findCycles, type Snapshot, waitForGraph } from '../core/deadlock/find.ts'
import { readSnapshot } from '../core/deadlock/snapshot.ts'
import type { Driver, LeaseRecord } from '../core/driver.ts'
import type { PageBounds } from '../core/pages.ts'
import { type BreakRecord, breaksOf, recordPrefix } from '../primitives/lock/break-record.ts'
import { paintFor } from './colour.ts'
import { type Shown, shownJson, shownLines, type Wait } from './show-output.ts'
import { argumentsOf, FLAG, look, oneName, outputWidth, storeClientOf, urlFrom, withDriver } from './store.ts'

export function main(args: readonly string[]): Promise<number> {
  const { url, lockName, json } = parse(args)
  return withDriver(url, async (driver) => {
    const shown = await examine(driver, lockName)
    process.stdout.write(json ? shownJson(shown) : shownText(shown))
    return 0
  })
}

function shownText(shown: Shown): string {
  const paint = paintFor(process.stdout)
  const lines = shownLines(shown, { nowMs: Date.now(), width: outputWidth() })
  return lines.map(({ text, style }) => `${style === undefined ? text : paint(style, text)}\n`).join('')
}

/**
 * Reads one lock, and what its holders wait for. Breaks that are known already are not read again: some stores search
 * all names for them.
 */
export async function examine(driver: Driver, lockName: string, known: Known = {}): Promise<Shown> {
  const [{ leases, waiters, complete }, around, breaks] = await Promise.all([
    look(driver, { lockName }, known.bounds),
    readSnapshot(storeClientOf(driver), [lockName]),
    known.breaks ?? readBreaks(driver, lockName, known.bounds),
  ])
  const deadlock = cycleWith(around, lockName)
  return {
    lockName,
    leases,
    waiters,
    holdersWaitFor: leases.map((lease) => waitsUnder(lease, around)),
    ...(deadlock && { deadlock }),
    breaks,
    complete,
  }
}

interface Known {
  readonly bounds?: PageBounds
  readonly breaks?: readonly BreakRecord[]
}

const readBreaks = async (driver: Driver, lockName: string, bounds?: PageBounds): Promise<BreakRecord[]> =>
  breaksOf(lockName, (await look(driver, { prefix: recordPrefix(lockName) }, bounds)).leases)

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

function parse(args: readonly string[]): { url: string; lockName: string; json: boolean } {
  const { values, positionals } = argumentsOf(args, { json: FLAG })
  const lockName = oneName('show', positionals)
  return { url: urlFrom(values.url), lockName, json: values.json ?? false }
}
