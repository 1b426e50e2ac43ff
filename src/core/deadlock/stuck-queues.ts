import { chainIdOf, chainIdsOf } from '../claim/chain.ts'
import type { LeaseRecord, WaiterRecord } from '../driver.ts'
import { fitsBeside, type LockShare } from '../lock-share.ts'

/** A lock name, as it is when everything that can go on has gone on. */
export interface StuckQueue {
  /** What cannot be given back, because something inside its callback waits: leases, and waiters that were granted meanwhile. */
  readonly kept: ReadonlySet<LeaseRecord | WaiterRecord>
  readonly queue: readonly WaiterRecord[]
  /** How many of the queue can be granted: those behind them are stuck. */
  readonly next: number
}

/**
 * Plays through what happens if nobody gives up. Each lease and each waiter is looked at once, whatever the order they come in: a look at ten thousand names must not stop the
 * process that looks, and with it the renewals of its leases.
 */
export function stuckQueues(
  leases: readonly LeaseRecord[],
  waiters: readonly WaiterRecord[],
): ReadonlyMap<string, StuckQueue> {
  const queues = new Map<string, SimulatedQueue>()
  const chains = new Map<string, ChainState>()
  const queueOf = (lockName: string): SimulatedQueue => found(queues, lockName, () => new SimulatedQueue())
  const chainOf = (id: string): ChainState => found(chains, id, () => ({ waitsFor: 0, holds: [] }))
  const hold = (stuck: SimulatedQueue, record: LeaseRecord | WaiterRecord): void => {
    stuck.keep(record)
    chainOf(chainIdOf(record.claimId)).holds.push({ stuck, record })
  }
  for (const lease of leases) hold(queueOf(lease.lockName), lease)
  for (const waiter of waiters) {
    queueOf(waiter.lockName).queue.push(waiter)
    for (const id of chainIdsOf(waiter.claimId)) chainOf(id).waitsFor += 1
  }

  const open = new Set(queues.values())
  const goOn = ({ waitsFor, holds }: ChainState): void => {
    if (waitsFor > 0) return
    for (const { stuck, record } of holds.splice(0)) {
      stuck.giveBack(record)
      open.add(stuck)
    }
  }
  for (const chain of chains.values()) goOn(chain)
  for (const stuck of open) {
    // It comes again if something on it is given back later.
    open.delete(stuck)
    for (let waiter = stuck.first; waiter !== undefined; waiter = stuck.first) {
      stuck.next += 1
      hold(stuck, waiter)
      for (const id of chainIdsOf(waiter.claimId)) {
        const chain = chainOf(id)
        chain.waitsFor -= 1
        goOn(chain)
      }
    }
  }
  return queues
}

interface ChainState {
  /** How many claims, of its own and inside of it at any depth, have not been granted. */
  waitsFor: number
  readonly holds: { readonly stuck: SimulatedQueue; readonly record: LeaseRecord | WaiterRecord }[]
}

class SimulatedQueue implements StuckQueue {
  readonly kept = new Set<LeaseRecord | WaiterRecord>()
  readonly queue: WaiterRecord[] = []
  next = 0
  #exclusive = 0
  #permits = 0

  /** The next of the queue, if it can be granted. */
  get first(): WaiterRecord | undefined {
    const waiter = this.queue[this.next]
    return waiter !== undefined && fitsBeside(waiter, this.#together) ? waiter : undefined
  }

  keep(record: LeaseRecord | WaiterRecord): void {
    this.kept.add(record)
    this.#count(record, 1)
  }

  giveBack(record: LeaseRecord | WaiterRecord): void {
    if (this.kept.delete(record)) this.#count(record, -1)
  }

  #count({ mode, permits }: LockShare, sign: 1 | -1): void {
    if (mode === 'exclusive') this.#exclusive += sign
    this.#permits += sign * permits
  }

  /** All that is kept as one: nobody's claim can tell the difference. */
  get #together(): readonly LockShare[] {
    if (this.kept.size === 0) return []
    return [{ mode: this.#exclusive > 0 ? 'exclusive' : 'shared', permits: this.#permits }]
  }
}

function found<Key, Value>(map: Map<Key, Value>, key: Key, make: () => Value): Value {
  const known = map.get(key)
  if (known !== undefined) return known
  const made = make()
  map.set(key, made)
  return made
}
