import { type Cycle, findCycles, waitForGraph } from '../core/deadlock/find.ts'
import type { LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { chainIdsOf } from '../core/lease/chain.ts'
import { type ForcedReleaseRecord, isBookkeeping, readForcedRelease } from '../primitives/lock/forced-release-record.ts'

/** Everything that was read from a store at one time. */
export interface Reading {
  readonly leases: readonly LeaseRecord[]
  readonly waiters: readonly WaiterRecord[]
  /** False: there is more than the server reads. */
  readonly complete: boolean
  /** The store's clock after the reading. */
  readonly nowMs: number
}

/** One lock name with its holders and its queue. */
export interface LockView {
  readonly name: string
  readonly leases: LeaseRecord[]
  readonly waiters: WaiterRecord[]
}

export interface StoreView {
  readonly reading: Reading
  readonly locks: ReadonlyMap<string, LockView>
  /** By the name of the record without its token: see `recordPrefix`. */
  readonly forcedReleases: ReadonlyMap<string, readonly SeenForcedRelease[]>
  readonly cycles: readonly Cycle[]
  /** The names of the locks in the cycles. */
  readonly deadlocked: ReadonlySet<string>
}

export interface SeenForcedRelease {
  /** The largest token that was ended. */
  readonly token: number
  /** On the store's clock. `record.at` is on the clock of the process that did it. */
  readonly atMs: number
  readonly record: ForcedReleaseRecord
}

export function viewOf(reading: Reading): StoreView {
  const locks = new Map<string, LockView>()
  const forcedReleases = new Map<string, SeenForcedRelease[]>()
  const lockNamed = (name: string): LockView => {
    const known = locks.get(name)
    if (known !== undefined) return known
    const view = { name, leases: [], waiters: [] }
    locks.set(name, view)
    return view
  }
  for (const lease of reading.leases) {
    const record = readForcedRelease(lease)
    if (record !== undefined) addForcedRelease(forcedReleases, lease, record)
    else if (!isBookkeeping(lease)) lockNamed(lease.lockName).leases.push(lease)
  }
  for (const waiter of reading.waiters) lockNamed(waiter.lockName).waiters.push(waiter)
  const cycles = cyclesIn(reading)
  const deadlocked = new Set(cycles.flatMap((cycle) => cycle.map(({ waiter }) => waiter.lockName)))
  return { reading, locks, forcedReleases, cycles, deadlocked }
}

function addForcedRelease(
  forcedReleases: Map<string, SeenForcedRelease[]>,
  lease: LeaseRecord,
  record: ForcedReleaseRecord,
): void {
  const [, prefix = '', digits = ''] = /^(.*:)(\d+)$/s.exec(lease.lockName) ?? []
  const seen = { token: Number(digits), atMs: lease.acquiredAtMs, record }
  const known = forcedReleases.get(prefix)
  if (known === undefined) forcedReleases.set(prefix, [seen])
  else known.push(seen)
}

/**
 * A cycle needs a claim that waits inside a callback, whose id has the id of another claim in it. Without one, the
 * search is left out.
 */
function cyclesIn({ leases, waiters }: Reading): Cycle[] {
  if (!waiters.some(({ claimId }) => chainIdsOf(claimId).length > 2)) return []
  return [...findCycles(waitForGraph({ leases, waiters })).values()]
}
