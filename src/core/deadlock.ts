import { chainIdOf } from './chain.ts'
import { circleNumbers, groupBy } from './circles.ts'
import { linesOf } from './deadlock-lines.ts'
import type { InspectPage, LeaseRecord, WaiterRecord } from './driver.ts'
import { DeadlockError } from './errors.ts'
import { fitsBeside } from './share.ts'

/** Leases and waiters, as far as they were looked at. What is missing can hide a deadlock, but never make one up. */
export type Seen = Pick<InspectPage, 'leases' | 'waiters'>

/** One step of a circle: a claim that waits, and what stands in its way. */
export interface Blocked {
  readonly waiter: WaiterRecord
  readonly by: LeaseRecord | WaiterRecord
}

/**
 * The circles there are, each by the id of the claim that has to leave it, and beginning with that one.
 *
 * Of all the claims that wait for each other it is the youngest: everybody who looks comes to the same one, and what is lost is the work of whoever came
 * last. A claim that merely waits behind a circle is not in it.
 */
export function circlesToLeave(blocked: readonly Blocked[]): ReadonlyMap<string, readonly Blocked[]> {
  const chains = new Map<string, string>()
  const chainOf = ({ claimId }: LeaseRecord | WaiterRecord): string => {
    const known = chains.get(claimId)
    if (known !== undefined) return known
    const chain = chainIdOf(claimId)
    chains.set(claimId, chain)
    return chain
  }
  const steps = blocked.map((each) => ({ each, from: chainOf(each.waiter), to: chainOf(each.by) }))
  const numbers = circleNumbers(steps)
  const inCircles = steps.filter(({ from, to }) => numbers.get(from) === numbers.get(to))
  const found = new Map<string, readonly Blocked[]>()
  for (const group of groupBy(inCircles, ({ from }) => numbers.get(from)).values()) {
    const circle = group.map(({ each }) => each)
    const [youngest] = circle.map(({ waiter }) => waiter).toSorted(youngestFirst)
    const { claimId } = youngest as WaiterRecord
    found.set(claimId, shortestCircle(circle, claimId))
  }
  return found
}

/** Two looks that saw the same: every one of these waited, and held, all the time between them. */
export const circleKey = (circle: readonly Blocked[]): string =>
  circle.map(({ waiter, by }) => `${waiter.claimId} ${by.claimId}`).join(' ')

export function deadlockError(circle: readonly Blocked[]): DeadlockError {
  const { lockName } = (circle[0] as Blocked).waiter
  const steps = circle.map(({ waiter, by }) => {
    const how = 'fencingToken' in by ? `which ${by.holderId} holds` : `behind ${by.holderId}`
    return `${waiter.holderId} waits for "${waiter.lockName}", ${how}`
  })
  const more = steps.length > MOST_TOLD ? `; and ${steps.length - MOST_TOLD} more` : ''
  return new DeadlockError(
    `waiting for "${lockName}" would never end: ${steps.slice(0, MOST_TOLD).join('; ')}${more}`,
    lockName,
    circle.map(({ waiter, by }) => ({ holderId: waiter.holderId, lockName: waiter.lockName, heldBy: by.holderId })),
  )
}

/**
 * Who is in the way of every claim that can never be granted, if nobody gives up.
 *
 * A chain that waits for nothing goes on, and will give back what it holds. So does one whose claims can all be granted once such leases are gone; and so
 * on, until nothing changes. What is left waits for what is left: that one of several permits is held in a circle does no harm if another comes free.
 */
export function blockedClaims({ leases, waiters }: Seen): readonly Blocked[] {
  const lines = linesOf(leases, waiters)
  return [...lines.values()].flatMap(({ kept, queue, next }) => {
    const inTheWay = [...kept]
    const stuck = queue.slice(next)
    return stuck.flatMap((waiter, index) => {
      const ahead = stuck[index - 1]
      // Whoever is not the first gets to all of them through those ahead.
      const looked = ahead === undefined ? inTheWay : inTheWay.slice(0, MOST_NAMED)
      const by = looked.filter((lease) => waiter.limit !== undefined || !fitsBeside(waiter, [lease]))
      return [...by, ...(ahead === undefined ? [] : [ahead])].map((each) => ({ waiter, by: each }))
    })
  })
}

/** From a claim back to its own chain. */
function shortestCircle(circle: readonly Blocked[], claimId: string): readonly Blocked[] {
  const stepsOf = groupBy(circle, ({ waiter }) => chainIdOf(waiter.claimId))
  const own = chainIdOf(claimId)
  const ways: Way[] = circle.flatMap((step) => (step.waiter.claimId === claimId ? [{ step, before: undefined }] : []))
  const seen = new Set<string>()
  // A list that grows while it is walked: the shortest come first.
  for (const way of ways) {
    const chain = chainIdOf(way.step.by.claimId)
    if (chain === own) return stepsTo(way)
    if (seen.has(chain)) continue
    seen.add(chain)
    for (const step of stepsOf.get(chain) ?? []) ways.push({ step, before: way })
  }
  return circle
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

/** How many steps of a circle an error's message tells; its `cycle` has them all. */
const MOST_TOLD = 20
/** How many leases a waiter that has others ahead names as being in its way. */
const MOST_NAMED = 16
