import type { LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { chainIdOf, chainIdsOf } from '../core/lease/chain.ts'
import { stepsOf } from './detail.ts'
import type { LockView, StoreView } from './lock-view.ts'
import type { GraphEdge, GraphNode, WaitGraph } from './wire.ts'

/**
 * Which task waits for what, and which task holds that. A task is a lease with all claims that were made inside its
 * callback: two tasks of one process do not wait for each other. Cycles come first, then the longest queues, until the
 * graph has as many locks as a person can read.
 */
export function waitGraphOf({ locks, cycles, deadlocked }: StoreView): WaitGraph {
  const withWaiters = [...locks.values()].filter(({ waiters }) => waiters.length > 0)
  const rank = ({ name, waiters }: LockView): number => (deadlocked.has(name) ? 1e9 : 0) + waiters.length
  const shown = withWaiters.sort((a, b) => rank(b) - rank(a)).slice(0, MAX_LOCKS)
  const inCycle = new Set<string>()
  for (const { waiter, blocker } of cycles.flat()) {
    const [from, lock, to] = [taskOf(waiter), lockId(waiter.lockName), taskOf(blocker)]
    for (const id of [from, lock, to, `${from}\0${lock}`, `${lock}\0${to}`]) inCycle.add(id)
  }
  const nodes = new Map<string, GraphNode>()
  const edges = new Map<string, GraphEdge>()
  /** Claim ids must not leave the server, so the page gets numbers. */
  const publicIds = new Map<string, string>()
  const add = (id: string, node: Omit<GraphNode, 'id' | 'inCycle'>): void => {
    if (publicIds.has(id)) return
    const publicId = `${publicIds.size}`
    publicIds.set(id, publicId)
    nodes.set(id, { ...node, id: publicId, inCycle: inCycle.has(id) })
  }
  const addEdge = (from: string, to: string, kind: GraphEdge['kind']): void => {
    const key = `${from}\0${to}`
    const ends = { from: publicIds.get(from) ?? '', to: publicIds.get(to) ?? '' }
    edges.set(key, { ...ends, kind, inCycle: inCycle.has(key) })
  }
  const addTasks = (lock: string, records: readonly (LeaseRecord | WaiterRecord)[], kind: GraphEdge['kind']): void => {
    const isKept = (record: LeaseRecord | WaiterRecord, at: number): boolean =>
      at < MAX_OF_LOCK || inCycle.has(taskOf(record))
    const link = (task: string): void => (kind === 'held' ? addEdge(lock, task, kind) : addEdge(task, lock, kind))
    for (const record of records.filter(isKept)) {
      add(taskOf(record), { kind: 'holder', label: record.holderId })
      link(taskOf(record))
    }
    const more = records.length - records.filter(isKept).length
    if (more === 0) return
    add(`${lock} ${kind}`, { kind: 'holder', label: `and ${more} more` })
    link(`${lock} ${kind}`)
  }
  for (const { name, leases, waiters } of shown) {
    const id = lockId(name)
    add(id, { kind: 'lock', label: name, waiters: waiters.length })
    addTasks(id, leases, 'held')
    addTasks(id, waiters, 'waits')
  }
  return {
    nodes: [...nodes.values()],
    edges: [...edges.values()],
    cycles: cycles.map(stepsOf),
    more: withWaiters.length - shown.length,
  }
}

const lockId = (name: string): string => `lock ${name}`

/** The outermost claim of the callbacks that the claim was made in, or the claim itself. */
const taskOf = ({ claimId }: LeaseRecord | WaiterRecord): string =>
  `task ${chainIdsOf(claimId).findLast((id) => id.includes('.')) ?? chainIdOf(claimId)}`

const MAX_LOCKS = 40
/** How many holders and waiters of one lock are in the graph. One node represents the others. */
const MAX_OF_LOCK = 5
