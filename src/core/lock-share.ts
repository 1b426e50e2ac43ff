/** The part of a lock that a lease has, or that a waiter needs. */
export interface LockShare {
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number
  readonly permits: number
}

/** Whether a claim can be granted beside the leases. Only its own limit counts, never the limits of other clients. */
export function fitsBeside({ mode, limit, permits }: LockShare, held: readonly LockShare[]): boolean {
  if (mode === 'exclusive') return held.length === 0
  if (held.some((other) => other.mode === 'exclusive')) return false
  return limit === undefined || held.reduce((sum, other) => sum + other.permits, permits) <= limit
}
