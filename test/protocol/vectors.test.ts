import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest'
import { vectorFiles } from '../../scripts/vectors/files.mjs'
import { staleVectors } from '../../scripts/vectors.mjs'
import type { Claim } from '../../src/core/driver.ts'
import { acquireArgs, idText } from '../../src/drivers/redis/format.ts'
import { readProtocol } from '../../src/drivers/shared/read-protocol.ts'

const root = join(import.meta.dirname, '../..')
const stored = <Vectors>(name: string): Vectors =>
  JSON.parse(readFileSync(join(root, 'protocol/vectors', name), 'utf8')) as Vectors

describe('the test vectors', () => {
  test('are what the TypeScript client computes', () => {
    expect(staleVectors(vectorFiles()).map(({ file }) => `${file} is out of date: npm run vectors`)).toEqual([])
  })

  test('are in files that say what they show, and that the README names', () => {
    const readme = readFileSync(join(root, 'protocol/README.md'), 'utf8')
    const files = readdirSync(join(root, 'protocol/vectors'))
    expect(files).toEqual(expect.arrayContaining(Object.keys(vectorFiles())))
    for (const file of files) {
      expect(readme).toContain(`(vectors/${file})`)
      const { about, ...lists } = stored<{ about: unknown }>(file)
      expect(about, file).toBeTypeOf('string')
      for (const list of Object.values(lists)) expect(list, file).toBeInstanceOf(Array)
    }
  })
})

/** What only the script decides. The rest of the files is computed by functions that both languages have. */
describe('leases.lua on a server does what the test vectors say', () => {
  let redis: Redis
  const script = readProtocol('redis/leases.lua')

  beforeAll(() => {
    redis = new Redis(inject('servers').redis?.[0] as string)
  })
  afterAll(() => redis?.disconnect())

  /** The keys of one lock that no other test uses. The counter is its own, too: tests may set it. */
  const newKeys = () => {
    const own = `vectors:${randomBytes(6).toString('hex')}`
    return { counter: `${own}:token`, plain: `${own}:plain`, data: `${own}:data`, order: `${own}:order` }
  }

  async function acquire({ counter, plain, data, order }: ReturnType<typeof newKeys>, ...args: string[]) {
    const call = ['acquire', 'holdfast:wake:client', 'secret', ...args]
    const [nowMs, answer] = (await redis.eval(script, 4, counter, plain, data, order, ...call)) as [number, unknown]
    return { nowMs, answer }
  }

  /** By how much the server's clock is ahead of the one of the vectors. */
  async function shiftFrom(nowUs: number): Promise<number> {
    const [seconds, micros] = (await redis.time()) as [number, number]
    return Number(seconds) * 1_000_000 + Number(micros) - nowUs
  }

  type Floor = { last: number; nowUs: number; token: number }
  test.each(stored<{ floors: Floor[] }>('tokens.json').floors)('the token after $last', async (floor) => {
    const keys = newKeys()
    const shift = await shiftFrom(floor.nowUs)
    if (floor.last > 0) await redis.set(keys.counter, `${floor.last + shift}`, 'PX', 60_000)
    const { answer } = await acquire(keys, '"c.1"', '1000', '"holder"', '')
    // The clock goes on. A last token that is not ahead of it has no effect.
    if (floor.last > floor.nowUs) expect(answer).toBe(floor.token + shift)
    else expect(answer).toBeGreaterThanOrEqual(floor.token + shift)
    await redis.del(keys.counter)
  })

  type Ballot = { mark: number; nowUs: number; mostAheadUs: number; proposed: number; answer: 'granted' | 'b' | 'f' }
  test.each(stored<{ ballots: Ballot[] }>('tokens.json').ballots)(
    'the ballot $proposed above $mark',
    async (ballot) => {
      const keys = newKeys()
      const shift = await shiftFrom(ballot.nowUs)
      const proposed = ballot.proposed + shift
      if (ballot.mark > 0) await redis.set(keys.counter, `${ballot.mark + shift}`, 'PX', 60_000)
      const { answer } = await acquire(
        keys,
        '"c.1"',
        '1000',
        '"holder"',
        `[0,0,1,0,${proposed},false,${ballot.mostAheadUs}]`,
      )
      if (ballot.answer === 'granted') expect(answer).toBe(proposed)
      else expect((answer as [string])[0]).toBe(ballot.answer)
      await redis.del(keys.counter)
    },
  )

  type Lease = { claim: Claim; token: number; acquiredAtMs: number; text: string }
  test.each(stored<{ leases: Lease[] }>('redis-values.json').leases)('the stored lease $text', async (lease) => {
    const { claim, text, token, acquiredAtMs } = lease
    const keys = newKeys()
    const { answer, nowMs } = await acquire(keys, ...acquireArgs([claim]))
    const found =
      claim.mode === 'exclusive'
        ? await redis.get(keys.plain)
        : await redis.hget(keys.data, `l${idText(claim.claimId)}`)
    expect(found).toBe(text.replace(`,${token},${acquiredAtMs},`, `,${answer},${nowMs},`))
    await redis.del(...Object.values(keys))
  })

  type Waiter = { claim: Claim; endMs: number; sinceMs: number; text: string }
  test.each(stored<{ waiters: Waiter[] }>('redis-values.json').waiters)('the stored waiter $text', async (waiter) => {
    const { claim, endMs, sinceMs, text } = waiter
    const keys = newKeys()
    await acquire(keys, '"holder"', '10000', '"holder"', '')
    const { nowMs } = await acquire(keys, ...acquireArgs([claim]))
    const found = await redis.hget(keys.data, `w${idText(claim.claimId)}`)
    // No client listens to the channel of this test.
    const hears = [',1,"holdfast:wake', ',0,"holdfast:wake'] as const
    const times = [`[${endMs},${sinceMs},`, `[${nowMs + claim.waiterTtlMs},${nowMs},`] as const
    expect(found).toBe(text.replace(...times).replace(...hears))
    await redis.del(...Object.values(keys))
  })
})
