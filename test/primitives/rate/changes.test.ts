import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { Redis } from 'ioredis'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import type { Driver, RateAnswer, RateRequest } from '../../../src/core/driver.ts'
import { createRates } from '../../../src/drivers/memory/rates.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { RateLimiter, type RateLimiterOptions, type RateLimitResult, StoreError } from '../../../src/index.ts'
import { deferred } from '../../../src/testing/conformance/timing.ts'
import { VirtualTime } from '../../../src/testing/virtual-clock.ts'
import { startRedis } from '../../harness/servers.ts'
import { createContext } from '../../harness/sqlite-context.ts'

/** Limiters of several processes in virtual time, on one store that can be down or slow. */
function scene() {
  const time = new VirtualTime()
  const clock = time.clock()
  const real = memoryDriver({ store: createMemoryStore(clock) })
  const calls: RateRequest[] = []
  const store: {
    fault: ((forward: () => Promise<readonly RateAnswer[]>) => Promise<readonly RateAnswer[]>) | undefined
  } = { fault: undefined }
  const driver: Driver = {
    ...real,
    capabilities: { ...real.capabilities, scope: 'network' },
    consume(requests) {
      calls.push(...requests)
      const forward = async () => (await real.consume?.(requests)) as readonly RateAnswer[]
      return store.fault?.(forward) ?? forward()
    },
  }
  const limiter = (limits: RateLimiterOptions['limits'], options: Partial<RateLimiterOptions> = {}): RateLimiter =>
    new RateLimiter({ driver: { ...driver }, clock, limits, ...options })
  return { time, clock, limiter, calls, store }
}

const HOURLY = { limit: 1, periodSeconds: 3_600 }
const isDown = async (): Promise<never> => {
  throw new StoreError('the store is down')
}

describe('reset', () => {
  it('ends the limiter’s remembered refusals at once, and those of another process within ten seconds', async () => {
    const { limiter, time, calls } = scene()
    const [here, there] = [limiter(HOURLY), limiter(HOURLY)]
    await here.consume('key')
    assert.equal((await here.consume('key')).allowed, false)
    assert.equal((await there.consume('key')).allowed, false)
    await here.reset('key')
    const asked = calls.length
    assert.equal((await there.consume('key')).allowed, false, 'remembered')
    assert.equal(calls.length, asked)
    assert.equal((await here.consume('key')).allowed, true)
    await here.reset('key')
    await time.run(10_001)
    assert.equal((await there.consume('key')).allowed, true)
  })

  it('is not undone by a refusal that was in flight', async () => {
    const { limiter, store } = scene()
    const limited = limiter(HOURLY)
    await limited.consume('key')
    const late = deferred()
    store.fault = async (forward) => {
      const answer = await forward()
      await late.promise
      return answer
    }
    const refused = limited.consume('key')
    await new Promise(setImmediate) // until its list has been sent
    store.fault = undefined
    await limited.reset('key')
    late.resolve()
    assert.equal((await refused).allowed, false)
    assert.equal((await limited.consume('key')).allowed, true)
  })

  it('wakes the calls that wait for the key in this process', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ limit: 1, periodSeconds: 100 })
    await limited.consume('key')
    const first = limited.wait('key', { blockingTimeoutSeconds: 500 })
    const second = limited.wait('key', { blockingTimeoutSeconds: 500 })
    await time.run(1_000)
    await limited.reset('key')
    await time.run(10)
    assert.equal((await first).allowed, true)
    await time.run(100_000)
    assert.equal((await second).allowed, true)
  })

  it('wakes a waiting call also if its refusal was in flight', async () => {
    const { limiter, time, store } = scene()
    const limited = limiter({ limit: 1, periodSeconds: 100 })
    await limited.consume('key')
    let waited: RateLimitResult | undefined
    const waits = limited.wait('key', { blockingTimeoutSeconds: 500 }).then((result) => {
      waited = result
    })
    await time.run(10)
    await limited.block('key', 0) // makes it ask again, although nothing has changed
    const late = deferred()
    store.fault = async (forward) => {
      const answer = await forward()
      await late.promise
      return answer
    }
    await time.run(10)
    store.fault = undefined
    await limited.reset('key')
    late.resolve()
    await time.run(1_000)
    assert.equal(waited?.allowed, true)
    await waits
  })

  it('takes back the rest of a local share', async () => {
    const { limiter, calls } = scene()
    const limited = limiter({ limit: 10, periodSeconds: 3_600 }, { localShare: { units: 5, keepSeconds: 60 } })
    await limited.consume('key')
    await limited.reset('key')
    assert.equal((await limited.peek('key')).remaining, 10)
    calls.length = 0
    assert.equal((await limited.consume('key')).remaining, 9)
    assert.deepEqual(
      calls.map(({ cost }) => cost),
      [5],
    )
  })

  it('does not change other keys or other limits of the key', async () => {
    const { limiter } = scene()
    const [hourly, daily] = [limiter(HOURLY), limiter({ limit: 1, periodSeconds: 86_400 })]
    for (const limited of [hourly, daily]) await limited.consume('key')
    await hourly.consume('other')
    await hourly.reset('key')
    assert.equal((await daily.consume('key')).allowed, false)
    assert.equal((await hourly.consume('other')).allowed, false)
    assert.equal((await hourly.consume('key')).allowed, true)
  })

  it('is an error while the store is down', async () => {
    const { limiter, store } = scene()
    store.fault = isDown
    await assert.rejects(limiter(HOURLY).reset('key'), { code: 'STORE_UNAVAILABLE' })
    await assert.rejects(limiter(HOURLY).block('key', 10), { code: 'STORE_UNAVAILABLE' })
  })
})

describe('block', () => {
  it('refuses all calls in all processes until it ends, and every answer says when that is', async () => {
    const { limiter, time } = scene()
    const limits = [
      { limit: 10, periodSeconds: 10 },
      { limit: 100, periodSeconds: 3_600 },
    ]
    const [here, there] = [limiter(limits), limiter(limits)]
    assert.equal((await there.consume('key')).remaining, 9)
    await here.block('key', 900)
    for (const answer of [await here.consume('key'), await there.consume('key'), await there.peek('key')]) {
      const { allowed, remaining, retryAfterSeconds, resetAfterSeconds } = answer
      assert.deepEqual([allowed, remaining, retryAfterSeconds, resetAfterSeconds], [false, 0, 900, 900])
      for (const each of answer.limits) {
        assert.deepEqual(each, { remaining: 0, nextAfterSeconds: 900, resetAfterSeconds: 900 })
      }
    }
    await assert.rejects(here.consumeOrThrow('key'), { code: 'RATE_LIMITED', retryAfterSeconds: 900 })
    await assert.rejects(there.wait('key', { blockingTimeoutSeconds: 60 }), { code: 'RATE_LIMITED' })
    const waits = there.wait('key', { blockingTimeoutSeconds: 1_000 })
    await time.run(899_000)
    assert.equal((await here.consume('key')).allowed, false)
    await time.run(1_001)
    assert.equal((await waits).allowed, true)
    assert.equal((await here.consume('key')).allowed, true)
  })

  it('gives no units back: units taken before it still count after it', async () => {
    const { limiter, time } = scene()
    const limited = limiter(HOURLY)
    await limited.consume('key')
    await limited.block('key', 1)
    await time.run(1_001)
    const { allowed, retryAfterSeconds } = await limited.consume('key')
    assert.equal(allowed, false)
    assert.ok(Math.abs(retryAfterSeconds - 3_599) < 1, `${retryAfterSeconds}`)
  })

  it('takes back the rest of a local share', async () => {
    const { limiter } = scene()
    const limited = limiter({ limit: 10, periodSeconds: 3_600 }, { localShare: { units: 5, keepSeconds: 60 } })
    await limited.consume('key')
    await limited.block('key', 30)
    assert.equal((await limited.consume('key')).allowed, false)
  })

  it('ends by 0 seconds or a reset, and can be replaced by a shorter one', async () => {
    const { limiter } = scene()
    const limited = limiter({ limit: 10, periodSeconds: 3_600 })
    await limited.consume('key')
    await limited.block('key', 900)
    await limited.block('key', 10)
    assert.equal((await limited.consume('key')).retryAfterSeconds, 10)
    await limited.block('key', 0)
    assert.equal((await limited.consume('key')).remaining, 8)
    await limited.block('key', 900)
    await limited.reset('key')
    assert.equal((await limited.consume('key')).remaining, 9)
  })

  it.each([-1, Number.NaN, 1e9, '10'])('for %o seconds is rejected before anything is sent', async (seconds) => {
    const { limiter, calls } = scene()
    await assert.rejects(limiter(HOURLY).block('key', seconds as number), {
      code: 'INVALID_ARGUMENT',
      argument: 'seconds',
    })
    await assert.rejects(limiter(HOURLY).block('', 1), { code: 'INVALID_ARGUMENT', argument: 'key' })
    await assert.rejects(limiter(HOURLY).reset('nul\0'), { code: 'INVALID_ARGUMENT', argument: 'key' })
    assert.deepEqual(calls, [])
  })

  it('is an error with a driver that ignores it', async () => {
    const real = memoryDriver()
    const driver: Driver = {
      ...real,
      consume: async (requests) =>
        (await real.consume?.(requests.map(({ name, cost, limits }) => ({ name, cost, limits })))) ?? [],
    }
    await using limiter = new RateLimiter({ driver, limits: HOURLY })
    await assert.rejects(limiter.block('key', 10), { code: 'UNSUPPORTED' })
    await limiter.consume('key')
    await assert.rejects(limiter.reset('key'), { code: 'UNSUPPORTED' })
  })
})

describe('a block does not last longer when the clock is set back', { timeout: 30_000 }, () => {
  const HOUR_MS = 3_600_000
  const limits = [{ limit: 10, periodMs: HOUR_MS, burst: 10 }]
  const take: RateRequest = { name: 'key', cost: 1, limits }
  const block: RateRequest = { name: 'key', cost: 0, limits, change: { blockMs: 60_000 } }
  const ask = async (driver: Pick<Driver, 'consume'>, request: RateRequest): Promise<RateAnswer> => {
    const [answer] = (await driver.consume?.([request])) ?? []
    if (answer === undefined || answer instanceof Error) throw answer
    return answer
  }
  const assertBounded = async (driver: Pick<Driver, 'consume'>): Promise<void> => {
    for (const request of [{ ...take, cost: 0 }, take, take]) {
      const { blockedMs = 0 } = await ask(driver, request)
      assert.ok(blockedMs > 0 && blockedMs <= 60_000, `${blockedMs}`)
    }
  }

  it('in memory', async () => {
    const time = new VirtualTime()
    const virtual = time.clock()
    let backMs = 0
    const rates = createRates({
      now: () => ({ ...virtual.now(), wallMs: virtual.now().wallMs - backMs }),
      setTimer: virtual.setTimer.bind(virtual),
    })
    const driver = { consume: async (requests: readonly RateRequest[]) => rates.consume(requests) }
    await ask(driver, block)
    backMs = HOUR_MS
    await assertBounded(driver)
    await time.run(60_001)
    assert.equal((await ask(driver, take)).allowed, true)
    await time.run(10_000_000)
    assert.equal(rates.size, 0, 'and nothing is left behind')
  })

  // For the other stores, the block is written as it would look after the clock was set back.
  it('in Redis', async () => {
    await using server = await startRedis()
    const client = new Redis(server.url)
    const driver = redisDriver({ client, onWarning() {} })
    await ask(driver, block)
    const [key = ''] = await client.keys('holdfast:*')
    const aheadMs = Date.now() + HOUR_MS
    await client.set(key, `${aheadMs} ${aheadMs} 60000`, 'PX', HOUR_MS)
    await assertBounded(driver)
    const [, untilMs] = String(await client.get(key))
      .split(' ')
      .map(Number)
    assert.ok((untilMs as number) < Date.now() + 61_000, 'it is written back')
    await driver.close()
    client.disconnect()
  })

  it('in SQLite', async () => {
    await using scene = createContext()
    const driver = await scene.opened(openSqlite(`sqlite:${scene.path}`))
    await ask(driver, block)
    const database = await scene.database()
    const aheadMs = Date.now() + HOUR_MS
    database.exec(`UPDATE holdfast_rates SET reset_at_ms = ${aheadMs}, block = '0 ${aheadMs} 60000'`)
    await assertBounded(driver)
    const [row] = database.prepare('SELECT block FROM holdfast_rates').all() as { block: string }[]
    assert.ok(Number(row?.block.split(' ')[1]) < Date.now() + 61_000, 'it is written back')
  })

  it('in PostgreSQL', async () => {
    const pool = new pg.Pool({ connectionString: inject('servers').postgres as string, max: 2 })
    const schema = `rate_${randomBytes(6).toString('hex')}`
    const driver = postgresDriver({ client: pool, schema })
    await ask(driver, block)
    await pool.query(`UPDATE ${schema}.holdfast_rates SET state[8] = state[8] + ${HOUR_MS}`)
    await assertBounded(driver)
    await driver.close()
    await pool.query(`DROP SCHEMA ${schema} CASCADE`)
    await pool.end()
  })
})

describe('changes leave nothing behind', { timeout: 30_000 }, () => {
  const limits = [HOURLY, { limit: 20, periodSeconds: 86_400 }]

  it('in Redis: after a reset, a ping and the end of a block', async () => {
    await using server = await startRedis()
    const client = new Redis(server.url)
    await using limiter = new RateLimiter({ driver: redisDriver({ client, onWarning() {} }), limits })
    await limiter.ping()
    await limiter.consume('key')
    await limiter.block('key', 60)
    await limiter.reset('key')
    assert.deepEqual(await client.keys('*'), [])
    await limiter.block('key', 60)
    for (const key of await client.keys('*')) assert.ok((await client.pttl(key)) <= 60_000)
    client.disconnect()
  })

  it('in PostgreSQL', async () => {
    const pool = new pg.Pool({ connectionString: inject('servers').postgres as string, max: 2 })
    const schema = `rate_${randomBytes(6).toString('hex')}`
    await using limiter = new RateLimiter({ driver: postgresDriver({ client: pool, schema }), limits })
    await limiter.ping()
    await limiter.consume('key')
    await limiter.block('key', 60)
    await limiter.reset('key')
    const { rows } = await pool.query(`SELECT * FROM ${schema}.holdfast_rates`)
    assert.deepEqual(rows, [])
    await pool.query(`DROP SCHEMA ${schema} CASCADE`)
    await pool.end()
  })
})

describe('fallback', () => {
  const tag = ({ allowed, remaining, fallback }: RateLimitResult) => [allowed, remaining, fallback]

  function withFallback(options: Partial<RateLimiterOptions> = {}) {
    const parts = scene()
    const { clock } = parts
    const fallback = new RateLimiter({
      driver: memoryDriver({ store: createMemoryStore(clock) }),
      clock,
      limits: { limit: 2, periodSeconds: 3_600 },
    })
    const limited = parts.limiter({ limit: 10, periodSeconds: 3_600 }, { fallback, ...options })
    return { ...parts, fallback, limited }
  }

  it('answers while the store is down, with fallback: true', async () => {
    const { limited, store, time } = withFallback()
    assert.deepEqual(tag(await limited.consume('key')), [true, 9, undefined])
    store.fault = isDown
    assert.deepEqual(tag(await limited.consume('key')), [true, 1, true])
    assert.deepEqual(tag(await limited.peek('key')), [true, 1, true])
    assert.deepEqual(tag(await limited.wait('key')), [true, 0, true])
    assert.deepEqual(tag(await limited.consume('key')), [false, 0, true])
    await assert.rejects(limited.consumeOrThrow('key'), { code: 'RATE_LIMITED' })
    store.fault = undefined
    await time.run(1_001)
    assert.deepEqual(tag(await limited.consume('key')), [true, 8, undefined])
  })

  it('after fallbackSeconds one call tries the store, and the fallback answers the others', async () => {
    const { limited, store, time, calls } = withFallback({ fallbackSeconds: 5 })
    store.fault = isDown
    await limited.consume('key')
    assert.equal(calls.length, 1)
    await time.run(4_990)
    await limited.consume('a')
    assert.equal(calls.length, 1)
    await time.run(20)
    const hangs = deferred<readonly RateAnswer[]>()
    store.fault = () => hangs.promise
    const tries = limited.consume('b')
    assert.deepEqual(tag(await limited.consume('c')), [true, 1, true])
    await new Promise(setImmediate) // until its list has been sent
    assert.equal(calls.length, 2)
    hangs.reject(new StoreError('still down'))
    assert.deepEqual(tag(await tries), [true, 1, true])
    await limited.consume('d')
    assert.equal(calls.length, 2)
  })

  it('a remembered refusal of the store stays in force', async () => {
    const { limiter, fallback, store } = withFallback()
    const limited = limiter(HOURLY, { fallback })
    await limited.consume('key')
    assert.equal((await limited.consume('key')).allowed, false)
    store.fault = isDown
    assert.deepEqual(tag(await limited.consume('other')), [true, 1, true])
    assert.deepEqual(tag(await limited.consume('key')), [false, 0, undefined])
  })

  it('a cost that it can never allow rejects with the store’s error', async () => {
    const { limited, store } = withFallback()
    store.fault = isDown
    await assert.rejects(limited.consume('key', { cost: 3 }), { code: 'STORE_UNAVAILABLE' })
    assert.deepEqual(tag(await limited.consume('key', { cost: 2 })), [true, 0, true])
  })

  it('answers instead of a local share, too', async () => {
    const { limited, store } = withFallback({ localShare: { units: 5, keepSeconds: 60 } })
    store.fault = isDown
    const results = await Promise.all([1, 2, 3].map(() => limited.consume('key')))
    assert.deepEqual(results.map(tag), [
      [true, 1, true],
      [true, 0, true],
      [false, 0, true],
    ])
  })

  it('is reset and blocked with the limiter, also when the store is down', async () => {
    const { limited, store, fallback } = withFallback()
    await limited.block('key', 60)
    store.fault = isDown
    assert.equal((await fallback.consume('key')).retryAfterSeconds, 60)
    await assert.rejects(limited.reset('key'), { code: 'STORE_UNAVAILABLE' })
    assert.equal((await fallback.consume('key')).allowed, true)
  })

  it('is not used for other errors', async () => {
    const { limited, limiter, fallback } = withFallback()
    await limited.close()
    await assert.rejects(limited.consume('key'), { code: 'CLOSED' })
    const driver = { ...memoryDriver(), consume: undefined } as unknown as Driver
    await assert.rejects(limiter(HOURLY, { driver, fallback }).consume('key'), { code: 'UNSUPPORTED' })
    assert.throws(() => limiter(HOURLY, { fallback: {} as RateLimiter }), { argument: 'fallback' })
    assert.throws(() => limiter(HOURLY, { fallback, fallbackSeconds: -1 }), { argument: 'fallbackSeconds' })
  })

  it('answers for a store that cannot be opened', async () => {
    await using fallback = new RateLimiter({ url: 'memory:fallback', limits: HOURLY })
    await using limiter = new RateLimiter({
      url: 'redis://127.0.0.1:1',
      callTimeoutSeconds: 0.5,
      limits: HOURLY,
      fallback,
    })
    assert.deepEqual(tag(await limiter.consume('key')), [true, 0, true])
  })
})
