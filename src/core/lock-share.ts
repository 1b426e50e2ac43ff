/** What a lease or a waiter takes of a lock, as far as others are concerned. */
export interface LockShare {
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number
  readonly permits: number
}

/** Judged by the claim's own mode and limit alone, never by what other clients have set for theirs. */
export function fitsBeside({ mode, limit, permits }: LockShare, held: readonly LockShare[]): boolean {
  if (mode === 'exclusive') return held.length === 0
  if (held.some((other) => other.mode === 'exclusive')) return false
  return limit === undefined || held.reduce((sum, other) => sum + other.permits, permits) <= limit
}
