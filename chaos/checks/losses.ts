import { clientOf, type LeaseHistory } from '../history.ts'

/** A time in which a store lost leases. Each fault that does so declares it, as narrowly as it can. */
export interface Loss {
  fromMs: number
  toMs: number
  /** The store has lost the leases of these clients only. Absent: of all clients. */
  clients?: readonly number[]
  /** Also leases that a replica had confirmed: all copies were lost, or the clock has ended them. */
  isOfConfirmed?: boolean
}

/** The first lease was granted before a loss that includes it, and the second one after the loss had begun. */
export function isExcused(
  { first, second }: { first: LeaseHistory; second: LeaseHistory },
  losses: readonly Loss[],
): boolean {
  const client = clientOf(first.id)
  return losses.some(
    ({ fromMs, toMs, clients, isOfConfirmed = false }) =>
      first.askedAt <= toMs &&
      second.knownAt >= fromMs &&
      (isOfConfirmed || !first.confirmed) &&
      (clients?.includes(client) ?? true),
  )
}
