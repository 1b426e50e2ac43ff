import { clientOf, type LeaseHistory } from '../history.ts'
import { byName, type Check, claimsOf, clientsOf, leasesOf, type Run } from './run.ts'
import { overlapMs } from './signal.ts'

/** How long a fault can have an effect after its end: connections are opened again, and held back bytes arrive. */
const AFTER_MS = 3_000

/** A waiter that was granted its lock. */
interface Served {
  id: string
  name: string
  token: number
  lease: LeaseHistory
  askedAt: number
  /** From when on it was known to be in the queue. */
  waitingAt: number | undefined
  knownAt: number
}

/**
 * Waiters are served in their order. Their order is known if one was in the queue before the other made its claim, and
 * the order of their tokens is the order in which the store served them. A waiter that a fault may have cost its place
 * in the queue proves nothing.
 */
export const order: Check = {
  name: 'order',
  find: (run) => [
    ...overtaken(run).found.map(({ first, by }) => ({
      text: `${by.id} got "${by.name}" before ${first.id}, which had waited ${ms(by.askedAt - (first.waitingAt ?? 0))}`,
      lockName: by.name,
      fromMs: first.askedAt,
      toMs: first.knownAt,
    })),
    ...(isInOrder(run.queue) ? [] : [{ text: `the clients were served as ${JSON.stringify(run.queue)}` }]),
  ],
}

/** Finds waiters that were overtaken. `pairs` is how many could have been. */
export function overtaken(run: Run): { pairs: number; found: { first: Served; by: Served }[] } {
  const found: { first: Served; by: Served }[] = []
  let pairs = 0
  if (!run.hasQueue) return { pairs, found }
  const leases = byName(leasesOf(run))
  for (const served of byName(servedOf(run)).values()) {
    const byAsked = served.sort((a, b) => a.askedAt - b.askedAt)
    for (const [at, first] of byAsked.entries()) {
      const { waitingAt = Number.POSITIVE_INFINITY } = first
      const later = byAsked.slice(at + 1).filter(({ askedAt }) => askedAt > waitingAt && askedAt < first.knownAt)
      if (later.length === 0 || isDisturbed(run, first)) continue
      pairs += later.length
      for (const by of later) {
        if (by.token < first.token && !fitTogether(first, by, leases.get(first.name) ?? [])) found.push({ first, by })
      }
    }
  }
  return { pairs, found }
}

/**
 * Whether the store could grant both at the same time. Then it may grant the later one first: a driver whose waiters
 * ask by themselves grants all that fit, in the order in which they ask.
 */
function fitTogether(first: Served, by: Served, leases: readonly LeaseHistory[]): boolean {
  const [own, other] = [first.lease, by.lease]
  if (own.mode !== 'shared' || other.mode !== 'shared') return false
  const limit = Math.min(own.limit ?? Number.POSITIVE_INFINITY, other.limit ?? Number.POSITIVE_INFINITY)
  const held = leases.filter(({ knownAt, heldUntil = 0 }) => knownAt <= other.knownAt && heldUntil > other.knownAt)
  const all = new Set([...held, own, other])
  return [...all].reduce((sum, { permits = 1 }) => sum + permits, 0) <= limit
}

function servedOf(run: Run): Served[] {
  const leases = new Map(leasesOf(run).map((lease) => [lease.claim, lease]))
  return claimsOf(run).flatMap(({ id, name, askedAt, waitingAt, answeredAt: knownAt }) => {
    const lease = leases.get(id)
    if (lease === undefined || knownAt === undefined) return []
    return [{ id, name, token: lease.token, lease, askedAt, waitingAt, knownAt }]
  })
}

/** Whether a fault, or a stall that is long for a place in the queue, has hit the waiter while it waited. */
function isDisturbed({ faults, histories, waiterTtlMs }: Run, { id, askedAt, knownAt }: Served): boolean {
  const client = clientOf(id)
  const history = histories.find((each) => id.startsWith(`${each.client}.`))
  const isStalled = history?.stalls.some((stall) => overlapMs(stall, askedAt, knownAt) > waiterTtlMs / 2) ?? true
  return (
    isStalled ||
    faults.some((fault) => {
      const isHit = clientsOf(fault)?.includes(client) ?? true
      return isHit && fault.fromMs < knownAt && fault.toMs + AFTER_MS > askedAt
    })
  )
}

const isInOrder = (queue: Run['queue']): boolean =>
  queue.every(({ token }, at) => at === 0 || token > (queue[at - 1]?.token ?? 0))

const ms = (number: number): string => `${number.toFixed(1)} ms`
