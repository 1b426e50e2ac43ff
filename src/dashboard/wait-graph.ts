import { stepsOf } from './detail.ts'
import type { LockView, StoreView } from './lock-view.ts'
import type { GraphEdge, GraphNode, WaitGraph } from './wire.ts'

/**
 * Who waits for what, and who holds that. Cycles come first, then the longest queues, until the graph has as many locks
 * as a person can read.
 */
export function waitGraphOf({ locks, cycles, deadlocked }: StoreView): WaitGraph {
  const withWaiters = [...locks.values()].filter(({ waiters }) => waiters.length > 0)
  const rank = ({ name, waiters }: LockView): number => (deadlocked.has(name) ? 1e9 : 0) + waiters.length
  const shown = withWaiters.sort((a, b) => rank(b) - rank(a)).slice(0, MAX_LOCKS)
  const inCycle = cycleEdges(cycles.map(stepsOf))
  const nodes = new Map<string, GraphNode>()
  const edges = new Map<string, GraphEdge>()
  const addHolder = (holder: string): string => {
    const id = `h:${holder}`
    nodes.set(id, { id, kind: 'holder', label: holder, inCycle: inCycle.has(id) })
    return id
  }
  const addEdge = (from: string, to: string, kind: GraphEdge['kind']): void => {
    const key = `${from}\0${to}`
    edges.set(key, { from, to, kind, inCycle: inCycle.has(key) })
  }
  for (const { name, leases, waiters } of shown) {
    const id = `l:${name}`
    nodes.set(id, { id, kind: 'lock', label: name, inCycle: inCycle.has(id), waiters: waiters.length })
    for (const { holderId } of leases.slice(0, MAX_OF_LOCK)) addEdge(id, addHolder(holderId), 'held')
    for (const { holderId } of waiters.slice(0, MAX_OF_LOCK)) addEdge(addHolder(holderId), id, 'waits')
  }
  return {
    nodes: [...nodes.values()],
    edges: [...edges.values()],
    cycles: cycles.map(stepsOf),
    more: withWaiters.length - shown.length,
  }
}

/** The ids of the nodes and edges in cycles. A claim that waits behind another one waits for the lock, too. */
function cycleEdges(cycles: readonly ReturnType<typeof stepsOf>[]): ReadonlySet<string> {
  const found = new Set<string>()
  for (const { waiter, lock, blocker } of cycles.flat()) {
    for (const id of [`h:${waiter}`, `l:${lock}`, `h:${blocker}`]) found.add(id)
    found.add(`h:${waiter}\0l:${lock}`)
    found.add(`l:${lock}\0h:${blocker}`)
  }
  return found
}

const MAX_LOCKS = 40
/** How many holders and waiters of one lock are in the graph. The node of the lock has their number. */
const MAX_OF_LOCK = 8
