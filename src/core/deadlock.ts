import { chainIdOf } from './chain.ts'
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
 * The circle that a claim has to leave, beginning with itself; undefined if it is in none, or if another one has to.
 *
 * Of all the claims that wait for each other it is the youngest: everybody who looks comes to the same one, and what is lost is the work of whoever came
 * last. A claim that merely waits behind a circle is not in it.
 */
export function circleToLeave(blocked: readonly Blocked[], claimId: string): readonly Blocked[] | undefined {
  if (!blocked.some(({ waiter }) => waiter.claimId === claimId)) return undefined
  const ownChain = chainIdOf(claimId)
  const after = reached(blocked, ownChain, ({ waiter, by }) => [chainIdOf(waiter.claimId), chainIdOf(by.claimId)])
  const before = reached(blocked, ownChain, ({ waiter, by }) => [chainIdOf(by.claimId), chainIdOf(waiter.claimId)])
  const isInCircle = (record: { readonly claimId: string }): boolean =>
    after.has(chainIdOf(record.claimId)) && before.has(chainIdOf(record.claimId))
  const circle = blocked.filter(({ waiter, by }) => isInCircle(waiter) && isInCircle(by))
  const [youngest] = circle.map(({ waiter }) => waiter).toSorted(youngestFirst)
  return youngest?.claimId === claimId ? shortestCircle(circle, claimId) : undefined
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
  return new DeadlockError(
    `waiting for "${lockName}" would never end: ${steps.join('; ')}`,
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
  const leasesOn = groupBy(leases, ({ lockName }) => lockName)
  const queues = groupBy(waiters, ({ lockName }) => lockName)
  const waitsOf = groupBy(waiters, ({ claimId }) => chainIdOf(claimId))
  const granted = new Set<WaiterRecord>()
  const goesOn = ({ claimId }: { readonly claimId: string }): boolean =>
    (waitsOf.get(chainIdOf(claimId)) ?? []).every((waiter) => granted.has(waiter))
  const keptOn = (lockName: string): (LeaseRecord | WaiterRecord)[] =>
    (leasesOn.get(lockName) ?? []).filter((lease) => !goesOn(lease))

  for (let before = -1; before !== granted.size; ) {
    before = granted.size
    for (const [lockName, queue] of queues) {
      const kept = keptOn(lockName)
      for (const waiter of queue) {
        if (!granted.has(waiter) && !fitsBeside(waiter, kept)) break
        granted.add(waiter)
        if (!goesOn(waiter)) kept.push(waiter)
      }
    }
  }
  return [...queues].flatMap(([lockName, queue]) => {
    const kept = [...keptOn(lockName), ...queue.filter((waiter) => granted.has(waiter) && !goesOn(waiter))]
    const stuck = queue.filter((waiter) => !granted.has(waiter))
    return stuck.flatMap((waiter, index) => {
      const ahead = stuck[index - 1]
      const inTheWay = kept.filter((lease) => waiter.limit !== undefined || !fitsBeside(waiter, [lease]))
      return [...inTheWay, ...(ahead === undefined ? [] : [ahead])].map((by) => ({ waiter, by }))
    })
  })
}

/** The chains that one comes to from a chain in one step or more. */
function reached(blocked: readonly Blocked[], from: string, step: (each: Blocked) => [string, string]): Set<string> {
  const next = groupBy(blocked.map(step), ([start]) => start)
  const found = new Set<string>()
  const open = [from]
  for (let chain = open.pop(); chain !== undefined; chain = open.pop()) {
    for (const [, end] of next.get(chain) ?? []) {
      if (found.has(end)) continue
      found.add(end)
      open.push(end)
    }
  }
  return found
}

/** From a claim back to its own chain. */
function shortestCircle(circle: readonly Blocked[], claimId: string): readonly Blocked[] {
  const stepsOf = groupBy(circle, ({ waiter }) => chainIdOf(waiter.claimId))
  const paths = circle.filter(({ waiter }) => waiter.claimId === claimId).map((step) => [step])
  const seen = new Set<string>()
  for (const path of paths) {
    const chain = chainIdOf((path.at(-1) as Blocked).by.claimId)
    if (chain === chainIdOf(claimId)) return path
    if (seen.has(chain)) continue
    seen.add(chain)
    // A list that grows while it is walked: the shortest come first.
    for (const step of stepsOf.get(chain) ?? []) paths.push([...path, step])
  }
  return circle
}

function youngestFirst(a: WaiterRecord, b: WaiterRecord): number {
  return b.waitingSinceMs - a.waitingSinceMs || (a.claimId < b.claimId ? 1 : -1)
}

/** `Map.groupBy`, which Node 20 does not have. */
function groupBy<Each, Key>(list: readonly Each[], keyOf: (each: Each) => Key): Map<Key, Each[]> {
  const groups = new Map<Key, Each[]>()
  for (const each of list) {
    const group = groups.get(keyOf(each))
    if (group === undefined) groups.set(keyOf(each), [each])
    else group.push(each)
  }
  return groups
}
