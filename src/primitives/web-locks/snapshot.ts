import type { LeaseRecord, Metadata, WaiterRecord } from '../../core/driver.ts'
import type { Holder } from '../../core/holder.ts'
import { resourceNameOf } from './names.ts'
import type { LockInfo, LockManagerSnapshot } from './types.ts'

export interface SnapshotParts {
  readonly holder: Holder
  readonly prefix: string
  /** What this manager waits for, where the store has no queue to show. */
  readonly pending: Iterable<Omit<LockInfo, 'clientId'>>
}

/** What lies under the prefix, of every client: page by page, so what changes meanwhile may be seen or not. */
export async function snapshot({ holder, prefix, pending }: SnapshotParts): Promise<LockManagerSnapshot> {
  const leases: LeaseRecord[] = []
  const waiters: WaiterRecord[] = []
  let after: string | undefined
  do {
    const page = await holder.inspect({ prefix, pageSize: PAGE_SIZE, ...(after !== undefined && { after }) })
    leases.push(...page.leases)
    waiters.push(...page.waiters)
    after = page.next
  } while (after !== undefined)

  // Only leases carry metadata; a waiter's name is the same as that of whom it waits for.
  const kept = new Map<string, Metadata>()
  for (const { lockName, metadata } of leases) if (metadata !== undefined) kept.set(lockName, metadata)
  const infoOf = ({ lockName, mode, holderId }: LeaseRecord | WaiterRecord): LockInfo => ({
    name: resourceNameOf(prefix, lockName, kept.get(lockName)),
    mode,
    clientId: holderId,
  })
  const { queue } = holder.link.driver.capabilities
  const clientId = holder.holderId
  return {
    held: leases.toSorted((a, b) => a.fencingToken - b.fencingToken).map(infoOf),
    pending: queue ? waiters.map(infoOf) : Array.from(pending, ({ name, mode }) => ({ name, mode, clientId })),
  }
}

const PAGE_SIZE = 500
