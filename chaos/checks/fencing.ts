import type { LeaseHistory } from '../history.ts'
import { isExcused, type Loss } from './losses.ts'

export interface FallingToken {
  /** The grant with the largest token that was known before. */
  before: LeaseHistory
  /** The grant that came later, with a token that is not larger. */
  after: LeaseHistory
}

/**
 * Finds grants of one name whose token is too small.
 *
 * A grant must have a larger token than every grant that was known before its claim was made, and than every grant
 * whose interval had ended before its own began. The second rule applies if one of the two is exclusive: two shared
 * leases may be granted in one order and be known in the other. It does not apply across a loss: an answer that was in
 * flight when its server was lost may arrive after the successor's grants, and its smaller token shows that it is old.
 */
export function fallingOf(leases: readonly LeaseHistory[], losses: readonly Loss[]): FallingToken[] {
  const found = new Map<LeaseHistory, LeaseHistory>()
  const knownBefore = largestToken(leases, ({ knownAt }) => knownAt)
  for (const after of [...leases].sort((a, b) => a.askedAt - b.askedAt)) {
    const before = knownBefore(after.askedAt)
    if (before !== undefined && !(after.token > before.token)) found.set(after, before)
  }
  const endOf = ({ knownAt, heldUntil = knownAt }: LeaseHistory): number => heldUntil
  const endedBefore = largestToken(leases, endOf)
  const exclusiveBefore = largestToken(
    leases.filter(({ mode }) => mode !== 'shared'),
    endOf,
  )
  for (const after of [...leases].sort((a, b) => a.knownAt - b.knownAt)) {
    const [any, exclusive] = [endedBefore(after.knownAt), exclusiveBefore(after.knownAt)]
    const before = after.mode === 'shared' ? exclusive : any
    // A grant that its holder never saw held proves nothing by its late arrival.
    if (after.heldUntil === undefined) continue
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
