import type { LeaseHistory } from './history.ts'

/** A time in which a store lost leases. Each fault that does so declares it, as narrowly as it can. */
export interface Loss {
  fromMs: number
  toMs: number
  /** The store has lost the leases of these clients only. Absent: of all clients. */
  clients?: readonly number[]
  /** Also leases that a replica had confirmed: all copies were lost, or the clock has ended them. */
  isOfConfirmed?: boolean
}

export interface Overlap {
  /** The lease that was known first. */
  first: LeaseHistory
  second: LeaseHistory
  /** For how long both believed that they hold the lock. */
  forMs: number
}

export interface FallingToken {
  /** The grant with the largest token that was known before. */
  before: LeaseHistory
  /** The grant that came later, with a token that is not larger. */
  after: LeaseHistory
}

export interface Verdict {
  overlaps: Overlap[]
  /** Overlaps that a loss explains: the first lease may not have been replicated. */
  excused: Overlap[]
  falling: FallingToken[]
}

/**
 * Judges the leases of a run. Leases of different names are independent.
 *
 * A holder's interval begins when it knew of the grant, and ends when it last saw `held === true`. Two intervals of one
 * name that overlap are two holders. There is no tolerance: a lease ends for its holder before it ends in the store.
 *
 * A grant must have a larger token than every grant that was known before its claim was made, and than every grant
 * whose interval had ended before its own began. The second rule does not apply across a loss: an answer that was in
 * flight when its server was lost may arrive after the successor's grants, and its smaller token shows that it is old.
 */
export function check(leases: readonly LeaseHistory[], losses: readonly Loss[] = []): Verdict {
  const verdict: Verdict = { overlaps: [], excused: [], falling: [] }
  const byName = new Map<string, LeaseHistory[]>()
  for (const lease of leases) {
    const sameName = byName.get(lease.name)
    if (sameName === undefined) byName.set(lease.name, [lease])
    else sameName.push(lease)
  }
  for (const sameName of byName.values()) {
    for (const overlap of overlapsOf(sameName)) {
      verdict[isExcused(overlap, losses) ? 'excused' : 'overlaps'].push(overlap)
    }
    verdict.falling.push(...fallingOf(sameName, losses))
  }
  return verdict
}

function overlapsOf(leases: readonly LeaseHistory[]): Overlap[] {
  const overlaps: Overlap[] = []
  let holders: LeaseHistory[] = []
  for (const second of [...leases].sort((a, b) => a.knownAt - b.knownAt)) {
    const until = second.heldUntil ?? Number.NEGATIVE_INFINITY
    if (until <= second.knownAt) continue
    holders = holders.filter(({ heldUntil = 0 }) => heldUntil > second.knownAt)
    for (const first of holders) {
      overlaps.push({ first, second, forMs: Math.min(first.heldUntil ?? 0, until) - second.knownAt })
    }
    holders.push(second)
  }
  return overlaps
}

/** The first lease was granted before a loss that includes it, and the second one after the loss had begun. */
function isExcused({ first, second }: { first: LeaseHistory; second: LeaseHistory }, losses: readonly Loss[]): boolean {
  const client = Number.parseInt(first.id, 10)
  return losses.some(
    ({ fromMs, toMs, clients, isOfConfirmed = false }) =>
      first.askedAt <= toMs &&
      second.knownAt >= fromMs &&
      (isOfConfirmed || !first.confirmed) &&
      (clients?.includes(client) ?? true),
  )
}

function fallingOf(leases: readonly LeaseHistory[], losses: readonly Loss[]): FallingToken[] {
  const found = new Map<LeaseHistory, LeaseHistory>()
  const knownBefore = largestToken(leases, ({ knownAt }) => knownAt)
  for (const after of [...leases].sort((a, b) => a.askedAt - b.askedAt)) {
    const before = knownBefore(after.askedAt)
    if (before !== undefined && !(after.token > before.token)) found.set(after, before)
  }
  const endedBefore = largestToken(leases, ({ knownAt, heldUntil = knownAt }) => heldUntil)
  for (const after of [...leases].sort((a, b) => a.knownAt - b.knownAt)) {
    // A grant that its holder never saw held proves nothing by its late arrival.
    if (after.heldUntil === undefined) continue
    const before = endedBefore(after.knownAt)
    if (before === undefined || after.token > before.token) continue
    if (!isExcused({ first: after, second: before }, losses)) found.set(after, before)
  }
  // Two grants whose order is not known must have different tokens, too.
  const byToken = new Map<number, LeaseHistory>()
  for (const after of leases) {
    const before = byToken.get(after.token)
    if (before !== undefined && !found.has(after) && found.get(before) !== after) found.set(after, before)
    byToken.set(after.token, after)
  }
  return [...found].map(([after, before]) => ({ before, after }))
}

/** Finds the lease with the largest token among those before a given time. Must be called with rising times. */
function largestToken(
  leases: readonly LeaseHistory[],
  momentOf: (lease: LeaseHistory) => number,
): (beforeMs: number) => LeaseHistory | undefined {
  const inOrder = [...leases].sort((a, b) => momentOf(a) - momentOf(b))
  let largest: LeaseHistory | undefined
  let at = 0
  return (beforeMs) => {
    for (let next = inOrder[at]; next !== undefined && momentOf(next) < beforeMs; next = inOrder[at]) {
      if (largest === undefined || next.token > largest.token) largest = next
      at += 1
    }
    return largest
  }
}
