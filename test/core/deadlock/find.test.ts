import { describe, expect, it } from 'vitest'
import { chainIdOf, chainIdsOf } from '../../../src/core/claim/chain.ts'
import { blockedClaims, cyclesToLeave, deadlockError, type Seen } from '../../../src/core/deadlock/find.ts'
import { fitsBeside } from '../../../src/core/lock-share.ts'
import { seededRandom } from '../../../src/testing/virtual-clock.ts'

/** `who: 'P.1'` is a claim outside of any callback, `'P.1.1'` one that was made under it, `'P.1+1'` and `'P.1+2'` are taken together. Waiters are in the order of their queues, and younger and younger. */
interface Entry {
  who: string
  on: string
  mode?: 'exclusive' | 'shared'
  limit?: number
  permits?: number
}

function see(held: Entry[], waiting: Entry[]): Seen {
  const claim = ({ who, on, mode = 'exclusive', limit, permits = 1 }: Entry) => ({
    lockName: on,
    claimId: who,
    holderId: `holder of ${who}`,
    mode,
    ...(limit !== undefined && { limit }),
    permits,
  })
  return {
    leases: held.map((entry) => ({ ...claim(entry), fencingToken: 1, acquiredAtMs: 0 })),
    waiters: waiting.map((entry, index) => ({ ...claim(entry), waitingSinceMs: index })),
  }
}

/** Which of those who wait would give up, and over which names. */
function leavers(seen: Seen): Record<string, string[]> {
  const found: Record<string, string[]> = {}
  for (const [claimId, cycle] of cyclesToLeave(blockedClaims(seen))) {
    found[claimId] = cycle.map(({ waiter }) => waiter.lockName)
  }
  return found
}

const shared = 'shared' as const

describe('a cycle is left by one claim, whoever looks', () => {
  it('two chains, in which the younger waiter gives up', () => {
    const held = [
      { who: 'P.1', on: 'x' },
      { who: 'Q.1', on: 'y' },
    ]
    expect(
      leavers(
        see(held, [
          { who: 'P.1.1', on: 'y' },
          { who: 'Q.1.1', on: 'x' },
        ]),
      ),
    ).toEqual({ 'Q.1.1': ['x', 'y'] })
    expect(
      leavers(
        see(held, [
          { who: 'Q.1.1', on: 'x' },
          { who: 'P.1.1', on: 'y' },
        ]),
      ),
    ).toEqual({ 'P.1.1': ['y', 'x'] })
  })

  it('of the same age, the one with the larger claim id', () => {
    const { leases, waiters } = see(
      [
        { who: 'P.1', on: 'x' },
        { who: 'Q.1', on: 'y' },
      ],
      [
        { who: 'Q.1.1', on: 'x' },
        { who: 'P.1.1', on: 'y' },
      ],
    )
    const sameAge = { leases, waiters: waiters.map((waiter) => ({ ...waiter, waitingSinceMs: 7 })) }
    expect(Object.keys(leavers(sameAge))).toEqual(['Q.1.1'])
  })

  it('three chains', () => {
    const held = [
      { who: 'P.1', on: 'x' },
      { who: 'Q.1', on: 'y' },
      { who: 'R.1', on: 'z' },
    ]
    const waiting = [
      { who: 'P.1.1', on: 'y' },
      { who: 'Q.1.1', on: 'z' },
      { who: 'R.1.1', on: 'x' },
    ]
    expect(leavers(see(held, waiting))).toEqual({ 'R.1.1': ['x', 'y', 'z'] })
    expect(leavers(see(held, waiting.slice(0, 2)))).toEqual({})
  })

  it('a chain that waits for itself', () => {
    expect(leavers(see([{ who: 'P.1', on: 'x' }], [{ who: 'P.1.1', on: 'x' }]))).toEqual({ 'P.1.1': ['x'] })
  })

  it('who waits behind a cycle is not in it, however young', () => {
    const seen = see(
      [
        { who: 'P.1', on: 'x' },
        { who: 'Q.1', on: 'y' },
        { who: 'R.1', on: 'z' },
      ],
      [
        { who: 'P.1.1', on: 'y' },
        { who: 'Q.1.1', on: 'x' },
        { who: 'R.1.1', on: 'x' },
        { who: 'S.1', on: 'z' },
      ],
    )
    expect(leavers(seen)).toEqual({ 'Q.1.1': ['x', 'y'] })
  })

  it('who stands before a member of the cycle in its queue is not the one to go', () => {
    const seen = see(
      [
        { who: 'P.1', on: 'x' },
        { who: 'Q.1', on: 'y' },
      ],
      [
        { who: 'R.1', on: 'x' },
        { who: 'P.1.1', on: 'y' },
        { who: 'Q.1.1', on: 'x' },
      ],
    )
    expect(leavers(seen)).toEqual({ 'Q.1.1': ['x', 'y'] })
  })
})

describe('no cycle', () => {
  it('tasks of two instances that cross are no chain', () => {
    const seen = see(
      [
        { who: 'P.1', on: 'x' },
        { who: 'Q.1', on: 'y' },
      ],
      [
        { who: 'P.2', on: 'y' },
        { who: 'Q.2', on: 'x' },
      ],
    )
    expect(leavers(seen)).toEqual({})
  })

  it('claims whose ids are of another form, as other clients have them', () => {
    const seen = see(
      [
        { who: 'plain', on: 'x' },
        { who: 'a.b.c.d', on: 'y' },
      ],
      [
        { who: 'other', on: 'y' },
        { who: 'a.b.c.e', on: 'x' },
      ],
    )
    expect(leavers(seen)).toEqual({})
  })

  it('branches of one callback that wait for each other’s leases', () => {
    const held = [
      { who: 'P.1', on: 'outer' },
      { who: 'P.1.1', on: 'job' },
    ]
    const waiting = ['P.1.2', 'P.1.3', 'P.1.4.1'].map((who) => ({ who, on: 'job' }))
    expect(leavers(see(held, waiting))).toEqual({})
    // Unless the one that holds it waits for what is held around all of them.
    expect(Object.keys(leavers(see(held, [...waiting, { who: 'P.1.1.1', on: 'outer' }])))).toEqual(['P.1.1.1'])
  })

  it('a claim that waits inside one of several locks’ callback, and one that is taken with what it waits for', () => {
    const held = [
      { who: 'P.1+1', on: 'a' },
      { who: 'P.1+2', on: 'b' },
      { who: 'Q.1+1', on: 'c' },
    ]
    const waiting = [
      { who: 'P.1.1', on: 'c' },
      { who: 'Q.1+2', on: 'b' },
    ]
    expect(leavers(see(held, waiting))).toEqual({ 'Q.1+2': ['b', 'c'] })
    expect(leavers(see(held, waiting.slice(1)))).toEqual({})
  })

  it('ids that are deeper than ours stand for themselves', () => {
    const deep = `P${'.1'.repeat(9)}`
    const held = [{ who: deep, on: 'x' }]
    expect(leavers(see(held, [{ who: `${deep}.1`, on: 'x' }]))).toEqual({})
  })

  it('a holder that goes on will free what the others wait for', () => {
    const seen = see(
      [
        { who: 'P.1', on: 'x' },
        { who: 'Q.1', on: 'y' },
      ],
      [{ who: 'P.1.1', on: 'y' }],
    )
    expect(leavers(seen)).toEqual({})
  })

  it('a claim that has been granted, or is over, meanwhile', () => {
    expect(leavers(see([{ who: 'P.1', on: 'x' }], []))).toEqual({})
  })
})

describe('readers, writers and permits', () => {
  it('two readers of one lock who both want to write', () => {
    const held = [
      { who: 'P.1', on: 'x', mode: shared },
      { who: 'Q.1', on: 'x', mode: shared },
    ]
    // Each of them already waits for itself.
    expect(
      leavers(
        see(held, [
          { who: 'P.1.1', on: 'x' },
          { who: 'Q.1.1', on: 'x' },
        ]),
      ),
    ).toHaveProperty('Q.1.1')
  })

  it('a reader behind a writer that waits for the reader’s own chain', () => {
    const seen = see(
      [
        { who: 'P.1', on: 'x', mode: shared },
        { who: 'Q.1', on: 'y' },
      ],
      [
        { who: 'Q.1.1', on: 'x' },
        { who: 'P.1.1', on: 'x', mode: shared },
      ],
    )
    expect(Object.keys(leavers(seen))).toEqual(['P.1.1'])
  })

  it('a reader beside a reader waits for nobody', () => {
    const seen = see(
      [
        { who: 'P.1', on: 'x', mode: shared },
        { who: 'Q.1', on: 'y' },
      ],
      [
        { who: 'P.1.1', on: 'y' },
        { who: 'Q.1.1', on: 'x', mode: shared },
      ],
    )
    expect(leavers(seen)).toEqual({})
  })

  it('one of two permits in a cycle does no harm while the other can come back', () => {
    const permit = (who: string) => ({ who, on: 's', mode: shared, limit: 2 })
    const waiting = [{ who: 'P.1.1', on: 'y' }, permit('Q.1.1')]
    const freed = see([permit('P.1'), permit('R.1'), { who: 'Q.1', on: 'y' }], waiting)
    expect(leavers(freed)).toEqual({})
    const stuck = see([permit('P.1'), permit('Q.1'), { who: 'Q.1', on: 'y' }], waiting)
    expect(Object.keys(leavers(stuck))).toEqual(['Q.1.1'])
  })
})

describe('what a look has not seen', () => {
  it('can hide a cycle, and never makes one up', () => {
    const held = [
      { who: 'P.1', on: 'x' },
      { who: 'Q.1', on: 'y' },
    ]
    const waiting = [
      { who: 'P.1.1', on: 'y' },
      { who: 'Q.1.1', on: 'x' },
    ]
    for (const one of [0, 1]) {
      expect(leavers(see(held.slice(one, one + 1), waiting))).toEqual({})
      expect(leavers(see(held, waiting.slice(one, one + 1)))).toEqual({})
    }
  })

  it('ten thousand in a row, in the worst of orders, are judged in no time, as a cycle too', () => {
    const names = Array.from({ length: 10_000 }, (_, index) => `l${index}`)
    const held = names.map((on, index) => ({ who: `P${index}.1`, on }))
    // Each waits for the next one's; the last goes on.
    const waiting = names.slice(1).map((on, index) => ({ who: `P${index}.1.1`, on }))
    const started = process.cpuUsage()
    expect(leavers(see(held, waiting))).toEqual({})
    const cycle = see(held, [...waiting, { who: 'P9999.1.1', on: 'l0' }])
    expect(leavers(cycle)['P9999.1.1']).toHaveLength(10_000)
    expect(process.cpuUsage(started).user / 1_000, 'ms of computing').toBeLessThan(3_000)
    const error = deadlockError(cyclesToLeave(blockedClaims(cycle)).get('P9999.1.1') ?? [])
    expect(error.cycle).toHaveLength(10_000)
    expect(error.message).toMatch(/holder of P9999\.1\.1 waits for "l0", .*; and 9980 more$/)
  })

  it('a thousand permits and ten thousand who wait for them, too', () => {
    const permit = (who: string) => ({ who, on: 's', mode: shared, limit: 1_000 })
    const held = Array.from({ length: 1_000 }, (_, index) => permit(`P${index}.1`))
    const waiting = Array.from({ length: 10_000 }, (_, index) => permit(`W${index}.1`))
    const started = process.cpuUsage()
    const ends = { who: 'Q.1', on: 'y' }
    const crossing = held.map(({ who }) => ({ who: `${who}.1`, on: 'y' }))
    expect(Object.keys(leavers(see([...held, ends], [...crossing, ...waiting, permit('Q.1.1')])))).toEqual(['Q.1.1'])
    expect(process.cpuUsage(started).user / 1_000, 'ms of computing').toBeLessThan(3_000)
  })

  it('a queue of a thousand is judged in no time', () => {
    const waiting = Array.from({ length: 1_000 }, (_, index) => ({ who: `W${index}.1`, on: 'x' }))
    const started = process.cpuUsage()
    const seen = see(
      [
        { who: 'P.1', on: 'x' },
        { who: 'Q.1', on: 'y' },
      ],
      [{ who: 'P.1.1', on: 'y' }, ...waiting, { who: 'Q.1.1', on: 'x' }],
    )
    expect(leavers(seen)).toEqual({ 'Q.1.1': ['x', 'y'] })
    expect(process.cpuUsage(started).user / 1_000, 'ms of computing').toBeLessThan(1_000)
  })
})

describe('what can go on', () => {
  it.each([1, 2, 3, 4, 5, 6, 7, 8])(
    'is the same as by trying again and again until nothing changes (seed %i)',
    (seed) => {
      const random = seededRandom(seed)
      const below = (count: number): number => Math.floor(random.fraction() * count)
      for (let round = 0; round < 250; round += 1) {
        const [chains, names] = [1 + below(8), 1 + below(5)]
        const entry = (suffix: string): Entry => {
          const kind = below(3)
          const share = kind === 0 ? {} : kind === 1 ? { mode: shared } : { mode: shared, limit: 1 + below(3) }
          return { who: `P${below(chains)}.1${suffix}`, on: `n${below(names)}`, ...share }
        }
        // At any depth; those with the same chain are taken together.
        const place = (): string => Array.from({ length: below(3) }, () => `.${below(2)}`).join('')
        const held = Array.from({ length: below(10) }, (_, index) => entry(`${place()}+${index}`))
        const seen = see(
          held,
          Array.from({ length: below(12) }, (_, index) => entry(`${place()}${below(4) ? '.w' : '+w'}${index}`)),
        )
        const stuck = new Set(blockedClaims(seen).map(({ waiter }) => waiter.claimId))
        expect([...stuck].sort(), JSON.stringify(seen)).toEqual(stuckByTrying(seen).sort())
      }
    },
  )
})

/** The rule, word for word, without a thought for the time it takes. */
function stuckByTrying({ leases, waiters }: Seen): string[] {
  const granted = new Set<(typeof waiters)[number]>()
  const goesOn = ({ claimId }: { claimId: string }): boolean =>
    waiters.every((waiter) => !chainIdsOf(waiter.claimId).includes(chainIdOf(claimId)) || granted.has(waiter))
  for (let before = -1; before !== granted.size; ) {
    before = granted.size
    for (const name of new Set(waiters.map(({ lockName }) => lockName))) {
      const kept: { mode: 'exclusive' | 'shared'; permits: number }[] = leases.filter(
        (lease) => lease.lockName === name && !goesOn(lease),
      )
      for (const waiter of waiters.filter(({ lockName }) => lockName === name)) {
        if (!granted.has(waiter) && !fitsBeside(waiter, kept)) break
        granted.add(waiter)
        if (!goesOn(waiter)) kept.push(waiter)
      }
    }
  }
  return waiters.flatMap((waiter) => (granted.has(waiter) ? [] : [waiter.claimId]))
}
