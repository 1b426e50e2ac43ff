import type { LeaseRecord, WaiterRecord } from '../driver.ts'
import { chainIdOf, chainIdsOf } from '../lease/chain.ts'
import { fitsBeside, type LockShare } from '../lock-share.ts'

/** The state of a lock name after everything that can continue has continued. */
export interface StuckQueue {
  /**
   * What cannot be released because a claim waits inside its callback: leases, and waiters that were granted during the
   * simulation.
   */
  readonly held: ReadonlySet<LeaseRecord | WaiterRecord>
  readonly waiters: readonly WaiterRecord[]
  /** How many waiters, from the first one on, can be granted. Those behind them are stuck. */
  readonly next: number
}

/**
 * Simulates what happens if no claim gives up. Each lease and each waiter is processed once, in any order: a snapshot
 * of ten thousand records must not block the event loop, and with it the renewals of the leases of this process.
 */
export function stuckQueues(
  leases: readonly LeaseRecord[],
  waiters: readonly WaiterRecord[],
): ReadonlyMap<string, StuckQueue> {
  const queues = new Map<string, SimulatedQueue>()
  const chains = new Map<string, ChainState>()
  const queueOf = (lockName: string): SimulatedQueue => getOrAdd(queues, lockName, () => new SimulatedQueue())
  const chainOf = (id: string): ChainState => getOrAdd(chains, id, () => ({ waitsFor: 0, holds: [] }))
  const hold = (queue: SimulatedQueue, record: LeaseRecord | WaiterRecord): void => {
    queue.hold(record)
    chainOf(chainIdOf(record.claimId)).holds.push({ queue, record })
  }
  for (const lease of leases) hold(queueOf(lease.lockName), lease)
  for (const waiter of waiters) {
    queueOf(waiter.lockName).waiters.push(waiter)
    for (const id of chainIdsOf(waiter.claimId)) chainOf(id).waitsFor += 1
  }

  const unprocessed = new Set(queues.values())
  const releaseIfFree = ({ waitsFor, holds }: ChainState): void => {
    if (waitsFor > 0) return
    for (const { queue, record } of holds.splice(0)) {
      queue.release(record)
      unprocessed.add(queue)
    }
  }
  for (const chain of chains.values()) releaseIfFree(chain)
  for (const queue of unprocessed) {
    // It is added again if one of its leases is released later.
    unprocessed.delete(queue)
    for (let waiter = queue.grantable; waiter !== undefined; waiter = queue.grantable) {
      queue.next += 1
      hold(queue, waiter)
      for (const id of chainIdsOf(waiter.claimId)) {
        const chain = chainOf(id)
        chain.waitsFor -= 1
        releaseIfFree(chain)
      }
    }
  }
  return queues
}

interface ChainState {
  /** How many claims of this chain, and of chains inside it at any depth, have not been granted. */
  waitsFor: number
  readonly holds: { readonly queue: SimulatedQueue; readonly record: LeaseRecord | WaiterRecord }[]
}

class SimulatedQueue implements StuckQueue {
  readonly held = new Set<LeaseRecord | WaiterRecord>()
  readonly waiters: WaiterRecord[] = []
  next = 0
  #exclusive = 0
  #permits = 0

  /** The next waiter, if it can be granted. */
  get grantable(): WaiterRecord | undefined {
    const waiter = this.waiters[this.next]
    return waiter !== undefined && fitsBeside(waiter, this.#total) ? waiter : undefined
  }

  hold(record: LeaseRecord | WaiterRecord): void {
    this.held.add(record)
    this.#count(record, 1)
  }

  release(record: LeaseRecord | WaiterRecord): void {
    if (this.held.delete(record)) this.#count(record, -1)
  }

  #count({ mode, permits }: LockShare, sign: 1 | -1): void {
    if (mode === 'exclusive') this.#exclusive += sign
    this.#permits += sign * permits
  }

  /** Everything that is held as a single share, which `fitsBeside` treats like the separate ones. */
  get #total(): readonly LockShare[] {
    if (this.held.size === 0) return []
    return [{ mode: this.#exclusive > 0 ? 'exclusive' : 'shared', permits: this.#permits }]
  }
}

function getOrAdd<Key, Value>(map: Map<Key, Value>, key: Key, create: () => Value): Value {
  const known = map.get(key)
  if (known !== undefined) return known
  const created = create()
  map.set(key, created)
  return created
}
