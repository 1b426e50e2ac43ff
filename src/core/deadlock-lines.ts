import { chainIdOf, chainIdsOf } from './chain.ts'
import type { LeaseRecord, WaiterRecord } from './driver.ts'
import { fitsBeside, type Share } from './share.ts'

/** A lock name, as it is when everything that can go on has gone on. */
export interface Line {
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
export function linesOf(leases: readonly LeaseRecord[], waiters: readonly WaiterRecord[]): ReadonlyMap<string, Line> {
  const lines = new Map<string, OpenLine>()
  const chains = new Map<string, ChainState>()
  const lineOf = (lockName: string): OpenLine => found(lines, lockName, () => new OpenLine())
  const chainOf = (id: string): ChainState => found(chains, id, () => ({ waitsFor: 0, holds: [] }))
  const hold = (line: OpenLine, record: LeaseRecord | WaiterRecord): void => {
    line.keep(record)
    chainOf(chainIdOf(record.claimId)).holds.push({ line, record })
  }
  for (const lease of leases) hold(lineOf(lease.lockName), lease)
  for (const waiter of waiters) {
    lineOf(waiter.lockName).queue.push(waiter)
    for (const id of chainIdsOf(waiter.claimId)) chainOf(id).waitsFor += 1
  }

  const open = new Set(lines.values())
  const goOn = ({ waitsFor, holds }: ChainState): void => {
    if (waitsFor > 0) return
    for (const { line, record } of holds.splice(0)) {
      line.giveBack(record)
      open.add(line)
    }
  }
  for (const chain of chains.values()) goOn(chain)
  for (const line of open) {
    // It comes again if something on it is given back later.
    open.delete(line)
    for (let waiter = line.first; waiter !== undefined; waiter = line.first) {
      line.next += 1
      hold(line, waiter)
      for (const id of chainIdsOf(waiter.claimId)) {
        const chain = chainOf(id)
        chain.waitsFor -= 1
        goOn(chain)
      }
    }
  }
  return lines
}

interface ChainState {
  /** How many claims, of its own and inside of it at any depth, have not been granted. */
  waitsFor: number
  readonly holds: { readonly line: OpenLine; readonly record: LeaseRecord | WaiterRecord }[]
}

class OpenLine implements Line {
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

  #count({ mode, permits }: Share, sign: 1 | -1): void {
    if (mode === 'exclusive') this.#exclusive += sign
    this.#permits += sign * permits
  }

  /** All that is kept as one: nobody's claim can tell the difference. */
  get #together(): readonly Share[] {
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
