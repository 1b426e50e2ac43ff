import { chainIdOf, chainIdsOf } from '../claim/chain.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from '../driver.ts'
import { DeadlockError } from '../errors.ts'
import { fitsBeside } from '../lock-share.ts'
import { componentNumbers, groupBy, type Step } from './components.ts'
import { stuckQueues } from './stuck-queues.ts'

/** Leases and waiters, as far as they were looked at. What is missing can hide a deadlock, but never make one up. */
export type Seen = Pick<InspectPage, 'leases' | 'waiters'>

/** One step of a cycle: a claim that waits, and what stands in its way. */
export interface Blocked {
  readonly waiter: WaiterRecord
  readonly by: LeaseRecord | WaiterRecord
}

/**
 * The cycles there are, each by the id of the claim that has to leave it, and beginning with that one.
 *
 * Of all the claims that wait for each other it is the youngest: everybody who looks comes to the same one, and what is lost is the work of whoever came
 * last. A claim that merely waits behind a cycle is not in it.
 */
export function cyclesToLeave(blocked: readonly Blocked[]): ReadonlyMap<string, readonly Blocked[]> {
  const steps = blocked.map((each) => ({ each, from: chainIdOf(each.waiter.claimId), to: chainIdOf(each.by.claimId) }))
  const numbers = componentNumbers([...steps, ...inwardSteps(blocked)])
  const inCycles = steps.filter(({ from, to }) => numbers.get(from) === numbers.get(to))
  const found = new Map<string, readonly Blocked[]>()
  for (const group of groupBy(inCycles, ({ from }) => numbers.get(from)).values()) {
    const cycle = group.map(({ each }) => each)
    const [youngest] = cycle.map(({ waiter }) => waiter).toSorted(youngestFirst)
    const { claimId } = youngest as WaiterRecord
    found.set(claimId, shortestCycle(cycle, claimId))
  }
  return found
}

/** A callback goes on when everything inside of it does: from each chain to those right inside of it in which something waits. */
function inwardSteps(blocked: readonly Blocked[]): readonly Step[] {
  const outer = new Map<string, string>()
  for (const { waiter } of blocked) {
    const ids = chainIdsOf(waiter.claimId)
    for (const [index, to] of ids.entries()) {
      const from = ids[index + 1]
      if (from === undefined || outer.has(to)) break
      outer.set(to, from)
    }
  }
  return Array.from(outer, ([to, from]) => ({ from, to }))
}

/** Two looks that saw the same: every one of these waited, and held, all the time between them. */
export const cycleKey = (cycle: readonly Blocked[]): string =>
  cycle.map(({ waiter, by }) => `${waiter.claimId} ${by.claimId}`).join(' ')

export function deadlockError(cycle: readonly Blocked[]): DeadlockError {
  const { lockName } = (cycle[0] as Blocked).waiter
  const steps = cycle.map(({ waiter, by }) => {
    const how = 'fencingToken' in by ? `which ${by.holderId} holds` : `behind ${by.holderId}`
    return `${waiter.holderId} waits for "${waiter.lockName}", ${how}`
  })
  const more = steps.length > MAX_TOLD ? `; and ${steps.length - MAX_TOLD} more` : ''
  return new DeadlockError(
    `waiting for "${lockName}" would never end: ${steps.slice(0, MAX_TOLD).join('; ')}${more}`,
    lockName,
    cycle.map(({ waiter, by }) => ({ holderId: waiter.holderId, lockName: waiter.lockName, heldBy: by.holderId })),
  )
}

/**
 * Who is in the way of every claim that can never be granted, if nobody gives up.
 *
 * A callback inside of which nothing waits goes on, and its lease will be given back. So does one whose inner claims can all be granted once such leases are
 * gone; and so on, until nothing changes. What is left waits for what is left: that one of several permits is held in a cycle does no harm if another comes free.
 */
export function blockedClaims({ leases, waiters }: Seen): readonly Blocked[] {
  const queues = stuckQueues(leases, waiters)
  return [...queues.values()].flatMap(({ kept, queue, next }) => {
    const inTheWay = [...kept]
    const stuck = queue.slice(next)
    return stuck.flatMap((waiter, index) => {
      const ahead = stuck[index - 1]
      // Whoever is not the first gets to all of them through those ahead.
      const looked = ahead === undefined ? inTheWay : inTheWay.slice(0, MAX_NAMED)
      const by = looked.filter((lease) => waiter.limit !== undefined || !fitsBeside(waiter, [lease]))
      return [...by, ...(ahead === undefined ? [] : [ahead])].map((each) => ({ waiter, by: each }))
    })
  })
}

/** From a claim back to a lease that it is made under. */
function shortestCycle(cycle: readonly Blocked[], claimId: string): readonly Blocked[] {
  const stepsIn = new Map<string, Blocked[]>()
  for (const step of cycle) {
    for (const id of chainIdsOf(step.waiter.claimId)) {
      const known = stepsIn.get(id)
      if (known === undefined) stepsIn.set(id, [step])
      else known.push(step)
    }
  }
  const own = new Set(chainIdsOf(claimId))
  const ways: Way[] = cycle.flatMap((step) => (step.waiter.claimId === claimId ? [{ step, before: undefined }] : []))
  const seen = new Set<string>()
  // A list that grows while it is walked: the shortest come first.
  for (const way of ways) {
    const chain = chainIdOf(way.step.by.claimId)
    if (own.has(chain)) return stepsTo(way)
    if (seen.has(chain)) continue
    seen.add(chain)
    for (const step of stepsIn.get(chain) ?? []) ways.push({ step, before: way })
  }
  return cycle
}

interface Way {
  readonly step: Blocked
  readonly before: Way | undefined
}

function stepsTo(end: Way): readonly Blocked[] {
  const steps: Blocked[] = []
  for (let way: Way | undefined = end; way !== undefined; way = way.before) steps.push(way.step)
  return steps.reverse()
}

function youngestFirst(a: WaiterRecord, b: WaiterRecord): number {
  return b.waitingSinceMs - a.waitingSinceMs || (a.claimId < b.claimId ? 1 : -1)
}

/** How many steps of a cycle an error's message tells; its `cycle` has them all. */
const MAX_TOLD = 20
/** How many leases a waiter that has others ahead names as being in its way. */
const MAX_NAMED = 16
