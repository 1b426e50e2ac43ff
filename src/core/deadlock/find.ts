import type { InspectPage, LeaseRecord, WaiterRecord } from '../driver.ts'
import { DeadlockError } from '../errors.ts'
import { chainIdOf, chainIdsOf } from '../lease/chain.ts'
import { fitsBeside } from '../lock-share.ts'
import { componentNumbers, type Edge, groupBy } from './components.ts'
import { stuckQueues } from './stuck-queues.ts'

/** The leases and waiters that were read. What is missing can hide a deadlock, but never invent one. */
export type Snapshot = Pick<InspectPage, 'leases' | 'waiters'>

/** An edge of the wait-for graph: a claim that waits, and a lease or an earlier waiter that blocks it. */
export interface WaitEdge {
  readonly waiter: WaiterRecord
  readonly blocker: LeaseRecord | WaiterRecord
}

/** A cycle of the wait-for graph. It starts with the victim. */
export type Cycle = readonly WaitEdge[]

/**
 * Finds the cycles, each by the claim id of its victim, the claim that has to give up.
 *
 * The victim is the youngest of the claims that wait for each other. So all processes choose the same victim, and the
 * work that is lost is that of the claim that came last. A claim that only waits behind a cycle is not part of it.
 */
export function findCycles(waits: readonly WaitEdge[]): ReadonlyMap<string, Cycle> {
  const edges = waits.map((wait) => ({
    wait,
    from: chainIdOf(wait.waiter.claimId),
    to: chainIdOf(wait.blocker.claimId),
  }))
  const numbers = componentNumbers([...edges, ...nestingEdges(waits)])
  const inCycles = edges.filter(({ from, to }) => numbers.get(from) === numbers.get(to))
  const found = new Map<string, Cycle>()
  for (const group of groupBy(inCycles, ({ from }) => numbers.get(from)).values()) {
    const component = group.map(({ wait }) => wait)
    const [youngest] = component.map(({ waiter }) => waiter).toSorted(youngestFirst)
    const { claimId } = youngest as WaiterRecord
    found.set(claimId, shortestCycle(component, claimId))
  }
  return found
}

/**
 * A callback continues when everything inside it does. So there is an edge from each chain to the chains directly
 * inside it in which a claim waits.
 */
function nestingEdges(waits: readonly WaitEdge[]): readonly Edge[] {
  const outer = new Map<string, string>()
  for (const { waiter } of waits) {
    const ids = chainIdsOf(waiter.claimId)
    for (const [index, to] of ids.entries()) {
      const from = ids[index + 1]
      if (from === undefined || outer.has(to)) break
      outer.set(to, from)
    }
  }
  return Array.from(outer, ([to, from]) => ({ from, to }))
}

/** If two snapshots contain a cycle with the same key, all its claims waited and held from the first to the second. */
export const cycleKey = (cycle: Cycle): string =>
  cycle.map(({ waiter, blocker }) => `${waiter.claimId} ${blocker.claimId}`).join(' ')

export function deadlockError(cycle: Cycle): DeadlockError {
  const { lockName } = (cycle[0] as WaitEdge).waiter
  const waits = cycle.map(({ waiter, blocker }) => {
    const how = 'fencingToken' in blocker ? `which ${blocker.holderId} holds` : `behind ${blocker.holderId}`
    return `${waiter.holderId} waits for "${waiter.lockName}", ${how}`
  })
  const more = waits.length > MAX_WAITS_IN_MESSAGE ? `; and ${waits.length - MAX_WAITS_IN_MESSAGE} more` : ''
  return new DeadlockError(
    `waiting for "${lockName}" would never end: ${waits.slice(0, MAX_WAITS_IN_MESSAGE).join('; ')}${more}`,
    lockName,
    cycle.map(({ waiter, blocker }) => ({
      holderId: waiter.holderId,
      lockName: waiter.lockName,
      heldBy: blocker.holderId,
    })),
  )
}

/**
 * The wait-for graph of all claims that can never be granted unless one of them gives up.
 *
 * A callback inside which no claim waits continues, and its lease will be released. The same is true for a callback
 * whose inner claims can all be granted once such leases are released, and so on until nothing changes. The remaining
 * claims wait for each other. So a permit that is held in a cycle does no harm if another permit of the semaphore
 * becomes free.
 */
export function waitForGraph({ leases, waiters }: Snapshot): readonly WaitEdge[] {
  const queues = stuckQueues(leases, waiters)
  return [...queues.values()].flatMap(({ held, waiters: queue, next }) => {
    const holders = [...held]
    const stuck = queue.slice(next)
    return stuck.flatMap((waiter, index) => {
      const ahead = stuck[index - 1]
      // Only the first waiter needs an edge to every holder. The others reach all of them through the waiters ahead.
      const considered = ahead === undefined ? holders : holders.slice(0, MAX_BLOCKERS)
      const blockers = considered.filter((holder) => waiter.limit !== undefined || !fitsBeside(waiter, [holder]))
      return [...blockers, ...(ahead === undefined ? [] : [ahead])].map((blocker) => ({ waiter, blocker }))
    })
  })
}

/** Breadth-first search from the waits of a claim back to a lease under which the claim is made. */
function shortestCycle(component: readonly WaitEdge[], claimId: string): Cycle {
  const waitsInside = new Map<string, WaitEdge[]>()
  for (const wait of component) {
    for (const id of chainIdsOf(wait.waiter.claimId)) {
      const known = waitsInside.get(id)
      if (known === undefined) waitsInside.set(id, [wait])
      else known.push(wait)
    }
  }
  const own = new Set(chainIdsOf(claimId))
  const paths: Path[] = component.flatMap((wait) =>
    wait.waiter.claimId === claimId ? [{ last: wait, before: undefined }] : [],
  )
  const visited = new Set<string>()
  // The list grows during the loop, so shorter paths come first.
  for (const path of paths) {
    const chain = chainIdOf(path.last.blocker.claimId)
    if (own.has(chain)) return edgesOf(path)
    if (visited.has(chain)) continue
    visited.add(chain)
    for (const wait of waitsInside.get(chain) ?? []) paths.push({ last: wait, before: path })
  }
  return component
}

interface Path {
  readonly last: WaitEdge
  readonly before: Path | undefined
}

function edgesOf(end: Path): Cycle {
  const edges: WaitEdge[] = []
  for (let path: Path | undefined = end; path !== undefined; path = path.before) edges.push(path.last)
  return edges.reverse()
}

function youngestFirst(a: WaiterRecord, b: WaiterRecord): number {
  return b.waitingSinceMs - a.waitingSinceMs || (a.claimId < b.claimId ? 1 : -1)
}

/** How many waits of a cycle an error message lists. The `cycle` of the error has all of them. */
const MAX_WAITS_IN_MESSAGE = 20
/** To how many holders a waiter that is not the first of its queue has an edge. */
const MAX_BLOCKERS = 16
