import { describe, expect, it } from 'vitest'
import { madeBefore } from '../../../src/core/claim/chain.ts'
import { systemRandom } from '../../../src/core/time/random.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'

describe('a claim’s id', () => {
  it('rule 15: ids that were seen do not tell the next one, not even within one line of work', async () => {
    const driver = memoryDriver()
    const ids: string[] = []
    const spy = {
      ...driver,
      acquire: (claims: Parameters<typeof driver.acquire>[0]) => {
        ids.push(...claims.map(({ claimId }) => claimId))
        return driver.acquire(claims)
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
    // `prefix.n` and `prefix.n.m`: what is claimed under a lease names that lease.
    for (let at = 0; at < 900; at += 3) {
      expect(parts[at]).toHaveLength(2)
      for (const inner of [at + 1, at + 2]) expect(parts[inner]?.slice(0, 2)).toEqual(parts[at])
    }
  })

  it('claims of one instance can be put in the order in which they were made', async () => {
    const made = ['p.9-zzzzzzzzzzzz', 'p.a-000000000000', 'p.10--000000000-']
    for (const [at, id] of made.entries()) {
      for (const [otherAt, other] of made.entries()) expect(madeBefore(id, other)).toBe(at < otherAt)
    }
    expect(madeBefore('p.1-aaaaaaaaaaaa', 'q.2-aaaaaaaaaaaa')).toBe(undefined)
    expect(madeBefore('p.1-aaaaaaaaaaaa', 'p.2-aaaaaaaaaaaa.1-aaaaaaaaaaaa')).toBe(undefined)
  })

  it('random ids are 96 bits each, and none comes twice', () => {
    const drawn = Array.from({ length: 10_000 }, () => systemRandom.id())
    expect(new Set(drawn).size).toBe(10_000)
    for (const id of drawn) expect(id).toMatch(/^[\w-]{16}$/)
  })
})
