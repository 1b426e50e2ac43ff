import { parseArgs } from 'node:util'
import { chainIdOf, chainIdsOf } from '../core/claim/chain.ts'
import { type Cycle, findCycles, type Snapshot, waitForGraph } from '../core/deadlock/find.ts'
import { readSnapshot } from '../core/deadlock/snapshot.ts'
import type { Driver, LeaseRecord } from '../core/driver.ts'
import { CALL_TIMEOUT_MS } from '../core/limits.ts'
import { StoreClient } from '../core/store/store-client.ts'
import { systemClock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'
import { breaksOf, recordPrefix } from '../primitives/lock/break-record.ts'
import { type Shown, shownJson, shownText, type Wait } from './show-output.ts'
import { look, oneName, parsing, urlFrom, withDriver } from './store.ts'

export function main(args: readonly string[]): Promise<number> {
  const { url, lockName, json } = parsing(() => parse(args))
  return withDriver(url, async (driver) => {
    const shown = await examine(driver, lockName)
    process.stdout.write(json ? shownJson(shown) : shownText(shown))
    return 0
  })
}

async function examine(driver: Driver, lockName: string): Promise<Shown> {
  const store = new StoreClient(driver, { clock: systemClock, random: systemRandom, callTimeoutMs: CALL_TIMEOUT_MS })
  const [{ leases, waiters }, around, records] = await Promise.all([
    look(driver, { lockName }),
    readSnapshot(store, [lockName]),
    look(driver, { prefix: recordPrefix(lockName) }),
  ])
  const deadlock = cycleWith(around, lockName)
  return {
    lockName,
    leases,
    waiters,
    holdersWaitFor: leases.map((lease) => waitsUnder(lease, around)),
    ...(deadlock && { deadlock }),
    breaks: breaksOf(lockName, records.leases),
  }
}

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
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: { url: { type: 'string' }, json: { type: 'boolean' } },
  })
  const lockName = oneName('show', positionals)
  return { url: urlFrom(values.url), lockName, json: values.json ?? false }
}
