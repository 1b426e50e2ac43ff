import type { Holder } from '../../core/claim/holder.ts'
import { isWaitMarker } from '../../core/deadlock/wait-marker.ts'
import type { LeaseRecord, Metadata, WaiterRecord } from '../../core/driver.ts'
import { madeBefore } from '../../core/lease/chain.ts'
import { fitsBeside, type LockShare } from '../../core/lock-share.ts'
import { readPages } from '../../core/pages.ts'
import type { LockManagerSnapshot, WebLockInfo } from './lock.ts'
import { resourceNameOf } from './names.ts'

export interface SnapshotParts {
  readonly holder: Holder
  readonly prefix: string
  /** The requests of this manager that wait, for a store without a queue. */
  readonly pending: Iterable<Omit<WebLockInfo, 'clientId'>>
  /** This manager's resource names that are too long for a lock name, by lock name. */
  readonly longNames: ReadonlyMap<string, string>
}

/**
 * The leases and waiters of all clients under the prefix. It reads page by page, and may or may not see changes
 * meanwhile.
 */
export async function snapshot({ holder, prefix, pending, longNames }: SnapshotParts): Promise<LockManagerSnapshot> {
  const query = { prefix, pageSize: PAGE_SIZE }
  const { leases: records, waiters } = await readPages((page) => holder.inspect(page), query)
  const leases = records.filter((lease) => !isWaitMarker(lease))

  // Only leases have metadata. A waiter has the same resource name as the lease that it waits for.
  const kept = new Map<string, Metadata>()
  for (const { lockName, metadata } of leases) if (metadata !== undefined) kept.set(lockName, metadata)
  const infoOf = ({ lockName, mode, holderId }: LeaseRecord | WaiterRecord): WebLockInfo => ({
    name: longNames.get(lockName) ?? resourceNameOf(prefix, lockName, kept.get(lockName)),
    mode,
    clientId: holderId,
  })
  const held: (LeaseRecord | WaiterRecord)[] = leases.toSorted((a, b) => a.fencingToken - b.fencingToken)
  const { queue } = holder.capabilities
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
 * How many waiters at the front of a queue can be granted. Some stores grant only when they are asked again, and these
 * waiters have just been woken. None can come before them, and in the specification a lock is held from the step in
 * which it can be granted.
 */
function grantable(waiting: readonly WaiterRecord[], leases: readonly LeaseRecord[]): number {
  // All leases as one: that makes no difference for a claim, and a name may have a hundred thousand readers.
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

/** Merges the queues in the order of the requests, as far as that is known. Each queue stays in its own order. */
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

/** The claims of one client are numbered. Their times may be equal, or in another order, if they came in one list. */
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
