import { madeBefore } from '../../core/claim/chain.ts'
import type { Holder } from '../../core/claim/holder.ts'
import { isWaitMarker } from '../../core/deadlock/wait-marker.ts'
import type { LeaseRecord, Metadata, WaiterRecord } from '../../core/driver.ts'
import { fitsBeside, type LockShare } from '../../core/lock-share.ts'
import { readPages } from '../../core/pages.ts'
import { resourceNameOf } from './names.ts'
import type { LockInfo, LockManagerSnapshot } from './types.ts'

export interface SnapshotParts {
  readonly holder: Holder
  readonly prefix: string
  /** What this manager waits for, where the store has no queue to show. */
  readonly pending: Iterable<Omit<LockInfo, 'clientId'>>
  /** Resource names of this manager's own that their lock names do not tell. */
  readonly longNames: ReadonlyMap<string, string>
}

/** What lies under the prefix, of every client: page by page, so what changes meanwhile may be seen or not. */
export async function snapshot({ holder, prefix, pending, longNames }: SnapshotParts): Promise<LockManagerSnapshot> {
  const query = { prefix, pageSize: PAGE_SIZE }
  const { leases: records, waiters } = await readPages((page) => holder.inspect(page), query)
  const leases = records.filter((lease) => !isWaitMarker(lease))

  // Only leases carry metadata; a waiter's name is the same as that of whom it waits for.
  const kept = new Map<string, Metadata>()
  for (const { lockName, metadata } of leases) if (metadata !== undefined) kept.set(lockName, metadata)
  const infoOf = ({ lockName, mode, holderId }: LeaseRecord | WaiterRecord): LockInfo => ({
    name: longNames.get(lockName) ?? resourceNameOf(prefix, lockName, kept.get(lockName)),
    mode,
    clientId: holderId,
  })
  const held: (LeaseRecord | WaiterRecord)[] = leases.toSorted((a, b) => a.fencingToken - b.fencingToken)
  const { queue } = holder.store.driver.capabilities
  if (!queue) {
    const clientId = holder.holderId
    return { held: held.map(infoOf), pending: Array.from(pending, ({ name, mode }) => ({ name, mode, clientId })) }
  }
  const queues: WaiterRecord[][] = []
  const leasesOn = byName(leases)
  for (const [lockName, waiting] of byName(waiters)) {
    const granted = grantable(waiting, leasesOn.get(lockName) ?? [])
    for (const waiter of waiting.slice(0, granted)) held.push(waiter)
    queues.push(waiting.slice(granted))
  }
  return { held: held.map(infoOf), pending: inOrder(queues).map(infoOf) }
}

/**
 * How many at the front of a queue have their turn. Some stores grant only when they are asked again, and whose turn it is has just been told to; nobody can come before them,
 * and in the specification a lock is held from the step in which its turn has come.
 */
function grantable(waiting: readonly WaiterRecord[], leases: readonly LeaseRecord[]): number {
  // All that is held as one: no claim can tell the difference, and a name may have a hundred thousand readers.
  let together: LockShare | undefined
  const hold = ({ mode, permits }: LockShare): void => {
    const exclusive = mode === 'exclusive' || together?.mode === 'exclusive'
    together = { mode: exclusive ? 'exclusive' : 'shared', permits: (together?.permits ?? 0) + permits }
  }
  for (const lease of leases) hold(lease)
  let granted = 0
  for (const waiter of waiting) {
    if (!fitsBeside(waiter, together === undefined ? [] : [together])) break
    hold(waiter)
    granted += 1
  }
  return granted
}

/** All queues in one, in the order in which the requests were made as far as that can be told. Each of them stays in its own order in any case. */
function inOrder(queues: readonly WaiterRecord[][]): WaiterRecord[] {
  let rest = [...queues]
  while (rest.length > 1) {
    const merging = rest
    rest = merging.flatMap((queue, index) => (index % 2 ? [] : [merged(queue, merging[index + 1] ?? [])]))
  }
  return rest[0] ?? []
}

function merged(a: readonly WaiterRecord[], b: readonly WaiterRecord[]): WaiterRecord[] {
  const all: WaiterRecord[] = []
  let [fromA, fromB] = [0, 0]
  while (fromA < a.length && fromB < b.length) {
    const [x, y] = [a[fromA] as WaiterRecord, b[fromB] as WaiterRecord]
    if (isEarlier(y, x)) {
      all.push(y)
      fromB += 1
    } else {
      all.push(x)
      fromA += 1
    }
  }
  return [...all, ...a.slice(fromA), ...b.slice(fromB)]
}

/** Those of one client are numbered; a store may put what comes in one list down at one moment, or in an order of its own. */
const isEarlier = (a: WaiterRecord, b: WaiterRecord): boolean =>
  madeBefore(a.claimId, b.claimId) ?? a.waitingSinceMs < b.waitingSinceMs

function byName<Each extends { readonly lockName: string }>(records: readonly Each[]): Map<string, Each[]> {
  const groups = new Map<string, Each[]>()
  for (const record of records) {
    const group = groups.get(record.lockName)
    if (group === undefined) groups.set(record.lockName, [record])
    else group.push(record)
  }
  return groups
}

const PAGE_SIZE = 500
