import { describe, expect, it } from 'vitest'
import { madeBefore } from '../../../src/core/lease/chain.ts'
import { systemRandom } from '../../../src/core/time/random.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, OnceOnly } from '../../../src/index.ts'

/** A memory driver, and the ids of the claims that it got, by lock name. */
function spyOnClaims() {
  const driver = memoryDriver()
  const idOf = new Map<string, string>()
  const acquire: typeof driver.acquire = (claims, call) => {
    for (const { lockName, claimId } of claims) idOf.set(lockName, claimId)
    return driver.acquire(claims, call)
  }
  return { driver: { ...driver, acquire }, idOf }
}

/** `protocol/README.md`: a prefix and at most eight parts, each with a count and 72 random bits. */
const ID = /^[\w-]{6}(?:\.[0-9a-z]+-[\w-]{12}){1,8}(?:\+[0-9a-z]+-[\w-]{12})?$/

describe('a claim’s id', () => {
  it('has a prefix and one part for each lock around it, and at any depth at most eight parts', async () => {
    const { driver, idOf } = spyOnClaims()
    await using lock = new DistributedLock({ driver })
    const nest = async (depth: number): Promise<void> => {
      if (depth > 12) return
      await lock.withLock(`depth ${depth}`, () => nest(depth + 1))
      await lock.withLocks([`several ${depth} a`, `several ${depth} b`], () => undefined)
    }
    await nest(1)
    const parts = (name: string): string[] => (idOf.get(name) ?? '').split('.').slice(1)
    for (let depth = 1; depth <= 12; depth += 1) {
      for (const name of [`depth ${depth}`, `several ${depth} a`, `several ${depth} b`]) {
        expect(idOf.get(name)).toMatch(ID)
        expect(parts(name)).toHaveLength(Math.min(depth, 8))
      }
      // Each id continues the id of the lock around it. Below depth eight it is a sibling of that lock's id.
      const outer = parts(`depth ${depth - 1}`).slice(0, 7)
      if (depth > 1) expect(parts(`depth ${depth}`).slice(0, outer.length)).toEqual(outer)
    }
  })

  it('of a once-only run and of its result has the same form, also inside a lock', async () => {
    const { driver, idOf } = spyOnClaims()
    await using lock = new DistributedLock({ driver })
    await using jobs = new OnceOnly({ driver })
    await jobs.once('outside', () => 1, { forSeconds: 60 })
    await lock.withLock('around', () => jobs.once('inside', () => 1, { forSeconds: 60 }))
    for (const name of ['outside:run', 'outside:done', 'inside:run', 'inside:done']) {
      expect(idOf.get(`once:${name}`)).toMatch(ID)
    }
    // A run ends before the lock around it can be released. A result does not end with it.
    expect(idOf.get('once:inside:run')).toContain(`${idOf.get('around')}.`)
    expect(idOf.get('once:inside:done')).not.toContain(idOf.get('around'))
  })

  it('rule 15: cannot be guessed from earlier ids, not even from those of the same callback', async () => {
    const driver = memoryDriver()
    const ids: string[] = []
    const spy = {
      ...driver,
      acquire: (...[claims, call]: Parameters<typeof driver.acquire>) => {
        ids.push(...claims.map(({ claimId }) => claimId))
        return driver.acquire(claims, call)
      },
    }
    await using lock = new DistributedLock({ driver: spy })
    for (let turn = 0; turn < 300; turn += 1) {
      await lock.withLock(`outer ${turn}`, async () => {
        await lock.withLock(`inner ${turn}`, async () => {})
        await lock.withLock(`inner ${turn}`, async () => {})
      })
    }
    expect(ids).toHaveLength(900)
    const parts = ids.map((id) => id.split('.'))
    const secrets = parts.map((part) => /^[0-9a-z]+-([\w-]{12})$/.exec(part.at(-1) ?? '')?.[1])
    expect(secrets).not.toContain(undefined)
    expect(new Set(secrets).size).toBe(900)
    // `prefix.n` and `prefix.n.m`: the id of a claim that is made under a lease begins with the id of that lease.
    for (let at = 0; at < 900; at += 3) {
      expect(parts[at]).toHaveLength(2)
      for (const inner of [at + 1, at + 2]) expect(parts[inner]?.slice(0, 2)).toEqual(parts[at])
    }
  })

  it('tells which of two claims of one instance was made first', async () => {
    const made = ['p.9-zzzzzzzzzzzz', 'p.a-000000000000', 'p.10--000000000-']
    for (const [at, id] of made.entries()) {
      for (const [otherAt, other] of made.entries()) expect(madeBefore(id, other)).toBe(at < otherAt)
    }
    expect(madeBefore('p.1-aaaaaaaaaaaa', 'q.2-aaaaaaaaaaaa')).toBe(undefined)
    expect(madeBefore('p.1-aaaaaaaaaaaa', 'p.2-aaaaaaaaaaaa.1-aaaaaaaaaaaa')).toBe(undefined)
  })

  it('random ids have 96 bits and are unique', () => {
    const drawn = Array.from({ length: 10_000 }, () => systemRandom.id())
    expect(new Set(drawn).size).toBe(10_000)
    for (const id of drawn) expect(id).toMatch(/^[\w-]{16}$/)
  })
})
