import type { LeaseHistory } from '../history.ts'

export interface Overlap {
  /** The lease that was known first. */
  first: LeaseHistory
  second: LeaseHistory
  /** For how long both believed that they hold the lock. */
  forMs: number
}

/**
 * Finds two holders of one name, of which at least one is exclusive.
 *
 * A holder's interval begins when it knew of the grant, and ends when it last relied on the lease. There is no
 * tolerance: a lease ends for its holder before it ends in the store.
 */
export function overlapsOf(leases: readonly LeaseHistory[]): Overlap[] {
  const overlaps: Overlap[] = []
  let holders: LeaseHistory[] = []
  for (const second of [...leases].sort((a, b) => a.knownAt - b.knownAt)) {
    const until = second.heldUntil ?? Number.NEGATIVE_INFINITY
    if (until <= second.knownAt) continue
    holders = holders.filter(({ heldUntil = 0 }) => heldUntil > second.knownAt)
    for (const first of holders) {
      if (first.mode === 'shared' && second.mode === 'shared') continue
      overlaps.push({ first, second, forMs: Math.min(first.heldUntil ?? 0, until) - second.knownAt })
    }
    holders.push(second)
  }
  return overlaps
}

/** Too many permits of one name: more than the limit of the last claim that was granted. */
export interface Excess {
  /** The leases that were held at the same time. The last one was known last. */
  holders: LeaseHistory[]
  permits: number
  limit: number
}

/** Finds the grants of permits that were above their limit. */
export function excessesOf(leases: readonly LeaseHistory[]): Excess[] {
  const found: Excess[] = []
  let holders: LeaseHistory[] = []
  for (const last of [...leases].sort((a, b) => a.knownAt - b.knownAt)) {
    if ((last.heldUntil ?? Number.NEGATIVE_INFINITY) <= last.knownAt) continue
    holders = [...holders.filter(({ heldUntil = 0 }) => heldUntil > last.knownAt), last]
    const permits = permitsOf(holders)
    const { limit = Number.POSITIVE_INFINITY } = last
    if (permits > limit) found.push({ holders, permits, limit })
  }
  return found
}

export const permitsOf = (leases: readonly LeaseHistory[]): number =>
  leases.reduce((sum, lease) => sum + (lease.permits ?? 1), 0)
