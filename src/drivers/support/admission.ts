/** What a lease or a waiter takes of a lock, as far as others are concerned. */
export interface Share {
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number
  readonly permits: number
}

/**
 * Those of a queue who may have the lock now: from the front, as many as fit beside the leases that are out and beside each other.
 * Nobody overtakes the first one who does not fit, so a writer is not starved by readers that keep coming.
 */
export function admitted<Waiter>(
  leases: readonly Share[],
  queue: readonly Waiter[],
  shareOf: (waiter: Waiter) => Share,
): Waiter[] {
  const held = [...leases]
  const end = queue.findIndex((waiter) => {
    const share = shareOf(waiter)
    const fits = fitsBeside(share, held)
    if (fits) held.push(share)
    return !fits
  })
  return end === -1 ? [...queue] : queue.slice(0, end)
}

/** Judged by the claim's own mode and limit alone, never by what other clients have set for theirs. */
function fitsBeside({ mode, limit, permits }: Share, held: readonly Share[]): boolean {
  if (mode === 'exclusive') return held.length === 0
  if (held.some((other) => other.mode === 'exclusive')) return false
  return limit === undefined || held.reduce((sum, other) => sum + other.permits, permits) <= limit
}
