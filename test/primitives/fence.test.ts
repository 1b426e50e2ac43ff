import { Redis } from 'ioredis'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { type PostgresFence, postgresDriver, postgresFence } from '../../src/drivers/postgres.ts'
import { redisFence } from '../../src/drivers/redis.ts'
import {
  DistributedLock,
  Fence,
  type FencingGuard,
  InvalidArgumentError,
  OverloadError,
  StaleTokenError,
} from '../../src/index.ts'

let pool: pg.Pool
let redis: Redis

beforeAll(async () => {
  const { redis: urls, postgres } = inject('servers')
  redis = new Redis(urls?.[0] ?? '')
  pool = new pg.Pool({ connectionString: postgres, max: 2 })
  await postgresDriver({ client: pool }).inspect({})
})

afterAll(async () => {
  redis.disconnect()
  await pool.end()
})

interface ResettableGuard extends FencingGuard {
  reset(resource: string): boolean | Promise<boolean>
}

/** Each guard as a user calls it: in its own transaction if it has one. */
const guards: Record<string, () => ResettableGuard> = {
  Fence: () => new Fence(),
  redisFence: () => redisFence({ client: redis }),
  postgresFence: () => ({
    accept: (resource, token) => inTransaction((guard) => guard.accept(resource, token)),
    reset: (resource) => inTransaction((guard) => guard.reset(resource)),
  }),
}

async function inTransaction<T>(work: (guard: PostgresFence) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    const result = await work(postgresFence(client))
    await client.query('COMMIT')
    return result
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}

describe.each(Object.entries(guards))('%s as a guard', (name, open) => {
  const resource = `fence test:${name}:${process.pid}:${Date.now()}`

  it('accepts the same and a larger token, and rejects a smaller one', async () => {
    const guard = open()
    for (const token of [5, 5, 7, { fencingToken: 7 }, { fencingToken: 9 }]) await guard.accept(resource, token)
    for (const token of [8, 1, { fencingToken: 5 }]) {
      const refused = await attempt(guard, resource, token)
      expect(refused).toBeInstanceOf(StaleTokenError)
      expect(refused).toMatchObject({ code: 'STALE_TOKEN', resource })
    }
    await guard.accept(resource, 9)
    await guard.accept(`${resource}:another`, 1)
  })

  it('reset forgets the largest token of one resource, so that it accepts tokens of another store', async () => {
    const guard = open()
    const [moved, other] = [`${resource}:moved`, `${resource}:other`]
    for (const each of [moved, other]) await guard.accept(each, 1_000_000)
    expect(await attempt(guard, moved, 7)).toBeInstanceOf(StaleTokenError)
    expect([await guard.reset(moved), await guard.reset(moved)]).toEqual([true, false])
    await guard.accept(moved, 7)
    expect(await attempt(guard, moved, 6)).toBeInstanceOf(StaleTokenError)
    expect(await attempt(guard, other, 7)).toBeInstanceOf(StaleTokenError)
    await expect(async () => guard.reset('')).rejects.toMatchObject({ argument: 'resource' })
  })

  it('loses no update if the token is presented before the read, and one if it is not', async () => {
    const guard = open()
    const lost: number[] = []
    for (const presentsFirst of [true, false]) {
      const account = `${resource}:${presentsFirst}`
      let balance = 100
      const begin = async (token: number): Promise<number> => {
        if (presentsFirst) await guard.accept(account, token)
        return balance
      }
      const write = async (value: number, token: number): Promise<void> => {
        await guard.accept(account, token)
        balance = value
      }
      // The first holder reads and is paused. Its lease ends. The second holder reads. Then the first one writes, and
      // then the second.
      const first = await begin(1)
      const second = await begin(2)
      const late = write(first + 10, 1)
      const wasRefused = await late.then(
        () => false,
        (error: unknown) => error instanceof StaleTokenError,
      )
      await write(second + 1, 2)
      const expected = wasRefused ? 101 : 111
      lost.push(expected - balance)
    }
    expect(lost).toEqual([0, 10])
  })

  it('rejects what is not a token before it sends anything', async () => {
    const guard = open()
    for (const token of [0, -1, 1.5, Number.NaN, '7' as never, undefined as never, {} as never]) {
      expect(await attempt(guard, resource, token)).toMatchObject({ argument: 'token' })
    }
    for (const none of ['', undefined as never, 7 as never]) {
      expect(await attempt(guard, none, 1)).toBeInstanceOf(InvalidArgumentError)
    }
  })
})

describe('Fence', () => {
  it('accepts a lease as its token, and returns the largest token', async () => {
    await using lock = new DistributedLock({ url: 'memory:fence' })
    const fence = new Fence()
    await using first = await lock.hold('account:7')
    fence.accept('account:7', first)
    await first.release()
    await using second = await lock.hold('account:7')
    fence.accept('account:7', second)
    expect(() => fence.accept('account:7', first)).toThrow(StaleTokenError)
    expect(fence.largest('account:7')).toBe(second.fencingToken)
    expect(fence.largest('account:8')).toBeUndefined()
  })

  it('rejects a resource beyond its bound, and never forgets one to make room', () => {
    const fence = new Fence({ maxResources: 2 })
    fence.accept('a', 5)
    fence.accept('b', 5)
    expect(() => fence.accept('c', 9)).toThrow(OverloadError)
    expect(() => fence.accept('a', 4)).toThrow(StaleTokenError)
    fence.accept('a', 6)
    expect(fence.reset('b')).toBe(true)
    expect(fence.reset('b')).toBe(false)
    fence.accept('c', 9)
    expect(fence.size).toBe(2)
    expect(() => new Fence({ maxResources: 0 })).toThrow('maxResources must be')
  })
})

describe('redisFence', () => {
  it.each(['', 'nul\0', 'lone \ud800', 7 as never])(
    'a write to the resource %j is refused before anything is sent',
    async (none) => {
      const sent: unknown[] = []
      const client = Object.create(redis, { call: { value: async (...args: unknown[]) => sent.push(args) } }) as Redis
      const fence = redisFence({ client })
      const script = "return redis.call('SET', KEYS[1], ARGV[1])"
      const other = `fence test:${process.pid}`
      for (const write of [
        () => fence.set(none, 'x', 1),
        () => fence.run(script, { token: 1, keys: [none], args: ['x'] }),
        () => fence.run(script, { token: 1, keys: [other], args: ['x'], resource: none }),
        () => fence.run(script, { token: 1, keys: [], resource: none }),
        () => fence.accept(none, 1),
      ]) {
        await expect(write()).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', argument: 'resource' })
      }
      expect(sent).toEqual([])
    },
  )
})

describe('postgresFence as a function', () => {
  it('a missing resource is an error, not a guard without effect', async () => {
    const client = await pool.connect()
    try {
      await expect(postgresFence(client, undefined as never, 7)).rejects.toMatchObject({ argument: 'resource' })
      await expect(postgresFence(client, 'name', undefined as never)).rejects.toMatchObject({ argument: 'token' })
      await expect(postgresFence(client, 'name' as never)).rejects.toMatchObject({ argument: 'token' })
      expect(postgresFence(client, { schema: 'public' })).toHaveProperty('accept')
    } finally {
      client.release()
    }
  })
})

/** Guards throw or reject: an error either way. */
async function attempt(guard: FencingGuard, resource: string, token: Parameters<FencingGuard['accept']>[1]) {
  try {
    await guard.accept(resource, token)
    return undefined
  } catch (error) {
    return error
  }
}
