import { describe, expect, test } from 'vitest'
import { check, type Loss } from '../../chaos/check.ts'
import type { LeaseHistory } from '../../chaos/history.ts'

let last = 0

/** By default, the claim was made when the grant was known. */
function lease(token: number, knownAt: number, heldUntil?: number, more: Partial<LeaseHistory> = {}): LeaseHistory {
  last += 1
  const held = heldUntil !== undefined && { heldUntil }
  return {
    id: `${last}`,
    name: 'order',
    token,
    ttlMs: 1_000,
    askedAt: knownAt,
    knownAt,
    ...held,
    end: 'released',
    ...more,
  }
}

function verdict(leases: LeaseHistory[], losses: Loss[] = []) {
  const { overlaps, excused, falling } = check(leases, losses)
  return {
    overlaps: overlaps.map(({ first, second, forMs }) => [first.token, second.token, forMs]),
    excused: excused.map(({ first, second, forMs }) => [first.token, second.token, forMs]),
    falling: falling.map(({ before, after }) => [before.token, after.token]),
  }
}

const NOTHING = { overlaps: [], excused: [], falling: [] }

describe('the checker finds two holders', () => {
  test('not in leases that follow each other, even at the same time', () => {
    expect(verdict([lease(1, 0, 10), lease(2, 10, 20), lease(3, 25, 30)])).toEqual(NOTHING)
  })

  test('in two intervals that overlap, for as long as both last', () => {
    expect(verdict([lease(1, 0, 10), lease(2, 9.5, 20)]).overlaps).toEqual([[1, 2, 0.5]])
  })

  test('in any order of the records', () => {
    expect(verdict([lease(2, 5, 20), lease(3, 30, 40), lease(1, 0, 10)]).overlaps).toEqual([[1, 2, 5]])
  })

  test('in an interval within another, even with a third one between them', () => {
    const leases = [lease(1, 0, 100), lease(2, 10, 20), lease(3, 50, 60)]
    expect(verdict(leases).overlaps).toEqual([
      [1, 2, 10],
      [1, 3, 10],
    ])
  })

  test('once for each pair of several holders', () => {
    expect(verdict([lease(1, 0, 10), lease(2, 1, 10), lease(3, 2, 10)]).overlaps).toHaveLength(3)
  })

  test('in two that begin at the same time', () => {
    expect(verdict([lease(1, 0, 10), lease(2, 0, 5)]).overlaps).toEqual([[1, 2, 5]])
  })

  test('in a holder that was killed, until its last check', () => {
    const killed = lease(1, 0, 10, { end: 'killed' })
    expect(verdict([killed, lease(2, 9, 20)]).overlaps).toEqual([[1, 2, 1]])
    expect(verdict([killed, lease(2, 11, 20)]).overlaps).toEqual([])
  })

  test('not in a lease that ended before its holder’s first check', () => {
    expect(verdict([lease(1, 0, 10), lease(2, 5)]).overlaps).toEqual([])
  })

  test('not in two readers, but in a reader beside a writer', () => {
    const shared = { mode: 'shared' } as const
    expect(verdict([lease(1, 0, 10, shared), lease(2, 5, 20, shared)])).toEqual(NOTHING)
    expect(verdict([lease(1, 0, 10, shared), lease(2, 5, 20)]).overlaps).toEqual([[1, 2, 5]])
    expect(verdict([lease(1, 0, 10), lease(2, 5, 20, shared)]).overlaps).toEqual([[1, 2, 5]])
  })

  test('not in leases of different names', () => {
    expect(verdict([lease(1, 0, 10), lease(1, 5, 20, { name: 'other' })])).toEqual(NOTHING)
  })

  test('in every name', () => {
    const other = { name: 'other' }
    const leases = [lease(1, 0, 10), lease(1, 0, 10, other), lease(2, 9, 20), lease(2, 8, 20, other)]
    expect(verdict(leases).overlaps).toEqual([
      [1, 2, 1],
      [1, 2, 2],
    ])
  })
})

describe('the checker finds tokens that do not rise', () => {
  test('in leases that follow each other', () => {
    expect(verdict([lease(5, 0, 10), lease(4, 11, 20)]).falling).toEqual([[5, 4]])
  })

  test('in equal tokens', () => {
    expect(verdict([lease(5, 0, 10), lease(5, 11, 20)]).falling).toEqual([[5, 5]])
  })

  test('in every later grant below the largest', () => {
    const leases = [lease(1, 0, 10), lease(9, 11, 20), lease(3, 21, 30), lease(4, 31, 40), lease(10, 41, 50)]
    expect(verdict(leases).falling).toEqual([
      [9, 3],
      [9, 4],
    ])
  })

  test('below a grant that its holder never saw held, if it was known before the claim was made', () => {
    expect(verdict([lease(5, 0), lease(4, 11, 20)]).falling).toEqual([[5, 4]])
  })

  test('in a claim that was made earlier, but granted after the other lease had ended', () => {
    expect(verdict([lease(5, 5, 10), lease(4, 11, 20, { askedAt: 0 })]).falling).toEqual([[5, 4]])
  })

  test('not in two readers whose answers arrive in another order, but in a reader and a writer', () => {
    const shared = { mode: 'shared', askedAt: 0 } as const
    expect(verdict([lease(5, 5, 10, shared), lease(4, 11, 20, shared)])).toEqual(NOTHING)
    expect(verdict([lease(5, 5, 10, { askedAt: 0 }), lease(4, 11, 20, shared)]).falling).toEqual([[5, 4]])
    expect(verdict([lease(5, 5, 10, shared), lease(4, 11, 20, { askedAt: 0 })]).falling).toEqual([[5, 4]])
  })

  test('not in a late answer that its holder never saw held', () => {
    expect(verdict([lease(5, 5, 10), lease(4, 11, undefined, { askedAt: 0 })])).toEqual(NOTHING)
  })

  test('in an answer that was never held, if its claim was made after the other grant was known', () => {
    expect(verdict([lease(5, 5, 10), lease(4, 11, undefined, { askedAt: 6 })]).falling).toEqual([[5, 4]])
  })

  test('in two equal tokens whose order is not known', () => {
    const leases = [lease(5, 5, 10), lease(5, 8, 20, { askedAt: 0 })]
    expect(verdict(leases)).toEqual({ overlaps: [[5, 5, 2]], excused: [], falling: [[5, 5]] })
  })
})

describe('a server that was lost with what it had not replicated', () => {
  const losses = [{ fromMs: 100, toMs: 110 }]

  test('excuses an overlap of a lease from before it with one from after it', () => {
    const leases = [lease(1, 90, 150), lease(2, 120, 140)]
    expect(verdict(leases, losses)).toEqual({ overlaps: [], excused: [[1, 2, 20]], falling: [] })
  })

  test('excuses an overlap with a lease from before it that its client learned of last', () => {
    const leases = [lease(2, 120, 160), lease(1, 140, 150, { askedAt: 90 })]
    expect(verdict(leases, losses)).toEqual({ overlaps: [], excused: [[2, 1, 10]], falling: [] })
    // The newer lease cannot be the one that was lost.
    expect(verdict([lease(1, 120, 160), lease(2, 140, 150, { askedAt: 90 })], losses).overlaps).toEqual([[1, 2, 10]])
  })

  test('excuses no overlap before it', () => {
    expect(verdict([lease(1, 0, 50), lease(2, 40, 99)], losses).overlaps).toEqual([[1, 2, 10]])
  })

  test('excuses no overlap of two leases that were claimed after it', () => {
    expect(verdict([lease(1, 120, 150), lease(2, 130, 160)], losses).overlaps).toEqual([[1, 2, 20]])
  })

  test('excuses no overlap with a lease that is renewed for longer than a lost one could be trusted', () => {
    const leases = (from: number) => [lease(1, 90, 9_000, { ttlMs: 1_000 }), lease(2, from, from + 5)]
    expect(verdict(leases(2_110), losses)).toMatchObject({ overlaps: [], excused: [[1, 2, 5]] })
    expect(verdict(leases(2_111), losses)).toMatchObject({ overlaps: [[1, 2, 5]], excused: [] })
  })

  test('excuses no lease that a replica had confirmed', () => {
    const leases = [lease(1, 90, 150, { confirmed: true }), lease(2, 120, 140)]
    expect(verdict(leases, losses).overlaps).toEqual([[1, 2, 20]])
  })

  test('excuses no falling token', () => {
    expect(verdict([lease(2, 90, 95), lease(1, 120, 140)], losses).falling).toEqual([[2, 1]])
  })

  test('excuses an old answer that arrives after newer leases, because its token is the smaller one', () => {
    expect(verdict([lease(2, 120, 130), lease(1, 140, 150, { askedAt: 95 })], losses)).toEqual(NOTHING)
  })
})

test('a history of 200,000 leases is judged', () => {
  const leases = Array.from({ length: 200_000 }, (_, at) => lease(at, at * 10, at * 10 + 9))
  expect(check(leases)).toEqual({ overlaps: [], excused: [], falling: [] })
})
