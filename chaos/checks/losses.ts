import { clientOf, type LeaseHistory } from '../history.ts'

/** An extension may be for twice the TTL of its lease: the shortest one is half of the longest. */
const MOST_TTLS = 2

/** A time in which a store lost leases. Each fault that does so declares it, as narrowly as it can. */
export interface Loss {
  fromMs: number
  toMs: number
  /** The store has lost the leases of these clients only. Absent: of all clients. */
  clients?: readonly number[]
  /** The store has lost only leases that were written since then. The clock was right before. */
  writtenFromMs?: number
  /** Also leases that a replica had confirmed: all copies were lost, or the clock has ended them. */
  isOfConfirmed?: boolean
  /** The store has lost all leases that it includes, and none of them may be renewed. */
  endsAll?: boolean
}

/**
 * The lease that was granted first, by the tokens, was granted before a loss that includes it, and the other one after
 * the loss had begun. The client of the older lease may have learned of it later. But no renewal succeeds after the
 * loss: a lease that is held for longer was not lost, and explains nothing.
 */
export function isExcused(overlap: { first: LeaseHistory; second: LeaseHistory }, losses: readonly Loss[]): boolean {
  const [first, second] = [overlap.first, overlap.second].sort((a, b) => a.token - b.token) as [
    LeaseHistory,
    LeaseHistory,
  ]
  const client = clientOf(first.id)
  const bothFrom = Math.max(first.knownAt, second.knownAt)
  return losses.some(
    ({ fromMs, toMs, clients, isOfConfirmed = false, writtenFromMs = Number.NEGATIVE_INFINITY }) =>
      first.askedAt <= toMs &&
      lastWriteOf(first) >= writtenFromMs &&
      second.knownAt >= fromMs &&
      bothFrom <= toMs + MOST_TTLS * first.ttlMs &&
      (isOfConfirmed || !first.confirmed) &&
      (clients?.includes(client) ?? true),
  )
}

/** A process that does not record its renewals may have renewed it at any time. */
const lastWriteOf = ({ knownAt, renewals }: LeaseHistory): number =>
  renewals === undefined ? Number.POSITIVE_INFINITY : Math.max(knownAt, ...renewals)
