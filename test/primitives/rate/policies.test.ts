import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import { Redis } from 'ioredis'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import type { Driver, RateAnswer, RateLimit, RateRequest } from '../../../src/core/driver.ts'
import { createRates } from '../../../src/drivers/memory/rates.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { limitId, policyFor } from '../../../src/drivers/shared/consume-step.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { OverloadError, RateLimiter } from '../../../src/index.ts'
import { VirtualTime } from '../../../src/testing/virtual-clock.ts'
import { shiftedClock } from '../../harness/clock-shim.ts'
import { startPostgres, startRedis } from '../../harness/servers.ts'
import { createContext } from '../../harness/sqlite-context.ts'
import { startWorker } from '../../harness/worker.ts'

const HOUR_MS = 3_600_000
/** Some tests start a server, and the machine may be busy. */
const SLOW = { timeout: 60_000 }

const TEN_AN_HOUR = { limit: 10, periodMs: HOUR_MS, burst: 10 }
const TWENTY_A_DAY = { limit: 20, periodMs: 24 * HOUR_MS, burst: 20 }

describe('several policies on one key, resets and blocks behave as if each limit were the only one', SLOW, () => {
  it('in memory', async () => {
    const time = new VirtualTime()
    const store = createMemoryStore(time.clock())
    await checkModel(memoryDriver({ store }), { runs: 200, advance: (ms) => jump(time, ms) })
  })

  it('in Redis', async () => {
    using clock = await shiftedClock()
    await using server = await startRedis({ clock })
    await using redis = openRedis(server.url)
    await checkModel(redis.driver, { runs: 30, advance: forward(clock) })
  })

  it('in PostgreSQL', async () => {
    using clock = await shiftedClock()
    await using server = await startPostgres({ clock })
    await using postgres = openPostgres(server.url)
    await checkModel(postgres.driver, { runs: 10, advance: forward(clock) })
  })

  it('in SQLite, while no time passes', async () => {
    await using scene = createContext()
    await checkModel(await scene.opened(openSqlite(`sqlite:${scene.path}`)), { runs: 50 })
  })
})

/** All spacings are whole hours, and time passes in whole hours: the seconds that a test takes change no answer. */
const LIMITS: readonly RateLimit[] = [
  { limit: 1, periodMs: HOUR_MS, burst: 2 },
  { limit: 1, periodMs: HOUR_MS, burst: 3 },
  { limit: 2, periodMs: 2 * HOUR_MS, burst: 3 },
  { limit: 1, periodMs: 2 * HOUR_MS, burst: 2 },
  { limit: 1, periodMs: 4 * HOUR_MS, burst: 4 },
  { limit: 3, periodMs: 3 * HOUR_MS, burst: 6 },
]

interface Act {
  /** How many hours pass first. */
  readonly hours: number
  /** What is then requested in one list. */
  readonly asked: readonly Asked[]
}

type Asked = Omit<RateRequest, 'name'>

const policies = fc.shuffledSubarray([...LIMITS], { minLength: 1, maxLength: 4 })
const steps: fc.Arbitrary<Asked> = fc.record({ limits: policies, cost: fc.constantFrom(0, 1, 1, 1, 2) })
const changes: fc.Arbitrary<Asked> = fc.record({
  limits: policies,
  cost: fc.constant(0),
  change: fc.oneof(
    fc.constant('reset' as const),
    fc.nat(4).map((hours) => ({ blockMs: hours * HOUR_MS })),
  ),
})
const asked = fc.oneof({ weight: 5, arbitrary: steps }, { weight: 1, arbitrary: changes })
const actOf = (mostHours: number) =>
  fc.record({
    hours: fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.nat(mostHours) }),
    asked: fc.array(asked, { minLength: 1, maxLength: 4 }),
  })

interface ModelOptions {
  readonly runs: number
  advance?(ms: number): unknown
}

async function checkModel(driver: Driver, { runs, advance }: ModelOptions): Promise<void> {
  const acts = fc.array(actOf(advance === undefined ? 0 : 6), { minLength: 1, maxLength: 30 })
  const property = fc.asyncProperty(acts, async (list: readonly Act[]) => {
    const name = randomBytes(6).toString('hex')
    const model = new Model()
    for (const { hours, asked } of list) {
      if (hours > 0) await advance?.(hours * HOUR_MS)
      model.nowHours += hours
      const answers = await consume(driver, ...asked.map((each) => ({ name, ...each })))
      for (const [index, request] of asked.entries()) {
        const { allowed, remaining, usedMs, blockedMs = 0 } = answers[index] as RateAnswer
        const expected = model.take(request)
        assert.deepEqual({ allowed, remaining }, { allowed: expected.allowed, remaining: expected.remaining })
        for (const [at, hours] of [...expected.aheadHours, expected.blockedHours].entries()) {
          const offMs = (usedMs[at] ?? blockedMs) - hours * HOUR_MS
          assert.ok(offMs <= 1 && offMs > -60_000, `limit ${at} is ${offMs} ms off`)
        }
      }
    }
  })
  await fc.assert(property, { numRuns: runs })
}

/** The model: each limit separately, in whole hours. */
class Model {
  nowHours = 0
  readonly #momentHours = new Map<string, number>()
  readonly #untilHours = new Map<string, number>()

  take({ limits, cost, change }: Asked) {
    for (const id of change === undefined ? [] : limits.map(limitId)) {
      if (change === 'reset') this.#momentHours.delete(id)
      this.#untilHours.set(id, change === 'reset' ? 0 : this.nowHours + (change?.blockMs ?? 0) / HOUR_MS)
    }
    const untilHours = limits.map((limit) => this.#untilHours.get(limitId(limit)) ?? 0)
    const blockedHours = Math.max(0, Math.max(...untilHours) - this.nowHours)
    const fits = limits.every((limit) => this.#ahead(limit) + cost * spacingHours(limit) <= fullHours(limit))
    const allowed = cost === 0 || (fits && blockedHours === 0)
    const charged = allowed ? cost : 0
    for (const limit of limits) {
      this.#momentHours.set(limitId(limit), this.nowHours + this.#ahead(limit) + charged * spacingHours(limit))
    }
    const remaining = limits.map((limit) => Math.floor((fullHours(limit) - this.#ahead(limit)) / spacingHours(limit)))
    const aheadHours = limits.map((limit) => this.#ahead(limit))
    return { allowed, remaining: blockedHours > 0 ? 0 : Math.min(...remaining), aheadHours, blockedHours }
  }

  #ahead(limit: RateLimit): number {
    return Math.max(0, (this.#momentHours.get(limitId(limit)) ?? 0) - this.nowHours)
  }
}

const spacingHours = ({ limit, periodMs }: RateLimit): number => periodMs / limit / HOUR_MS
const fullHours = (limit: RateLimit): number => spacingHours(limit) * limit.burst

/** Jumps ahead and then runs what is due: one sweep. Second by second there would be thousands. */
async function jump(time: VirtualTime, ms: number): Promise<void> {
  time.stall(ms)
  await time.run(0)
}

function forward(clock: { shift(offsetMs: number): void }): (ms: number) => void {
  let aheadMs = 0
  return (ms) => {
    aheadMs += ms
    clock.shift(aheadMs)
  }
}

describe('a rolling deployment that adds a limit', () => {
  it('all instances together keep the old limit, and the new ones keep the new limit, over days', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    const store = createMemoryStore(clock)
    const open = (limits: readonly RateLimit[]): RateLimiter => {
      const options = limits.map(({ limit, periodMs }) => ({ limit, periodSeconds: periodMs / 1_000 }))
      return new RateLimiter({ driver: memoryDriver({ store }), clock, limits: options })
    }
    await using old = open([TEN_AN_HOUR])
    await using fresh = open([TEN_AN_HOUR, TWENTY_A_DAY])
    let [ofAll, ofNew] = [0, 0]
    for (let minute = 0; minute < 2 * 24 * 60; minute += 5) {
      for (const limiter of [fresh, old]) {
        if (!(await limiter.consume('key')).allowed) continue
        ofAll += 1
        if (limiter === fresh) ofNew += 1
      }
      await jump(time, 5 * 60_000)
    }
    // A burst at the beginning, then the rate of each limit: 10 an hour, 20 a day.
    assert.ok(ofAll <= 10 + 48 * 10, `${ofAll} in two days`)
    assert.ok(ofNew <= 20 + 2 * 20, `${ofNew} of the new ones in two days`)
    assert.ok(ofNew >= 20, `${ofNew}`)
  })
})

describe('a look writes nothing', SLOW, () => {
  const take = (limit: RateLimit): RateRequest => ({ name: 'key', cost: 1, limits: [limit] })
  const looks: readonly RateRequest[] = [
    { name: 'key', cost: 0, limits: [TEN_AN_HOUR] },
    { name: 'key', cost: 0, limits: [TWENTY_A_DAY, TEN_AN_HOUR] },
    { name: 'other', cost: 0, limits: [TEN_AN_HOUR] },
  ]

  it('in memory', () => {
    const rates = createRates(new VirtualTime().clock())
    rates.consume([take(TEN_AN_HOUR)])
    rates.consume(looks)
    assert.equal(rates.size, 1)
  })

  it('in Redis', async () => {
    await using server = await startRedis()
    await using redis = openRedis(server.url)
    const { client, driver } = redis
    await consume(driver, take(TEN_AN_HOUR))
    const changes = async () => /rdb_changes_since_last_save:(\d+)/.exec(await client.info('persistence'))?.[1]
    const before = await changes()
    const answers = await consume(driver, ...looks)
    assert.deepEqual(
      answers.map(({ remaining }) => remaining),
      [9, 9, 10],
    )
    assert.equal(await changes(), before)
  })

  it('in SQLite, and does not wait for a process that writes', async () => {
    await using scene = createContext()
    const driver = await scene.opened(openSqlite(`sqlite:${scene.path}`))
    await consume(driver, take(TEN_AN_HOUR))
    const writer = await scene.database()
    writer.exec('BEGIN IMMEDIATE')
    const answers = await consume(driver, ...looks)
    writer.exec('ROLLBACK')
    assert.deepEqual(
      answers.map(({ remaining }) => remaining),
      [9, 9, 10],
    )
    const rows = writer.prepare('SELECT name, limit_id FROM holdfast_rates').all()
    assert.deepEqual(
      rows.map((row) => ({ ...(row as object) })),
      [{ name: 'key', limit_id: '10/3600000000/10' }],
    )
  })

  it('in PostgreSQL, and does not wait for a transaction that has the row', async () => {
    await using scene = openPostgres()
    await consume(scene.driver, take(TEN_AN_HOUR))
    const rows = async () => (await scene.pool.query(`SELECT *, xmin, ctid FROM ${scene.schema}.holdfast_rates`)).rows
    const blocker = await scene.pool.connect()
    try {
      await blocker.query(`BEGIN; SELECT 1 FROM ${scene.schema}.holdfast_rates FOR UPDATE`)
      const before = await rows()
      assert.equal(before.length, 1)
      const remaining = (await consume(scene.driver, ...looks)).map((answer) => answer.remaining)
      assert.deepEqual(remaining, [9, 9, 10])
      assert.deepEqual(await rows(), before)
      // Also next to a step in the same list.
      const step = { ...take(TEN_AN_HOUR), name: 'a step' }
      const mixed = (await consume(scene.driver, ...looks, step)).map((answer) => answer.remaining)
      assert.deepEqual(mixed, [9, 9, 10, 9])
      assert.deepEqual(
        (await rows()).filter(({ name }) => name !== 'a step'),
        before,
      )
    } finally {
      await blocker.query('ROLLBACK')
      blocker.release()
    }
  })
})

describe('a reset of another limit in PostgreSQL', SLOW, () => {
  it('does not affect a call that had to wait for the row', async () => {
    await using scene = openPostgres()
    const { driver, pool, schema } = scene
    const brief: RateRequest = { name: 'key', cost: 1, limits: [{ limit: 1, periodMs: 1_500, burst: 1 }] }
    await consume(driver, { name: 'key', cost: 1, limits: [TEN_AN_HOUR] })
    const blocker = await pool.connect()
    try {
      assert.equal((await consume(driver, brief))[0]?.allowed, true)
      await blocker.query(`BEGIN; SELECT 1 FROM ${schema}.holdfast_rates FOR UPDATE`)
      const waits = `SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%${schema}%'`
      const waiting = async (count: number): Promise<void> => {
        while ((await pool.query(waits)).rowCount !== count) await sleep(5)
      }
      const reset = consume(driver, { name: 'key', cost: 0, limits: [TEN_AN_HOUR], change: 'reset' })
      await waiting(1)
      const late = consume(driver, brief)
      await waiting(2)
      await sleep(1_600) // until units would be available
      await blocker.query('COMMIT')
      await reset
      const answers = [...(await late), ...(await consume(driver, brief))].map(({ allowed }) => allowed)
      assert.notDeepEqual(answers, [true, true])
    } finally {
      blocker.release()
    }
  })
})

describe('many different limits on one key of PostgreSQL', SLOW, () => {
  const limitOf = (burst: number): RateLimit => ({ limit: 1, periodMs: HOUR_MS, burst })
  const request = (...limits: RateLimit[]): RateRequest => ({ name: 'key', cost: 1, limits })

  it('at most 32 are kept; one more is an error for its own call only, and none is forgotten', async () => {
    await using scene = openPostgres()
    const { driver } = scene
    for (let burst = 1; burst <= 29; burst += 4) {
      await consume(driver, request(...[0, 1, 2, 3].map((more) => limitOf(burst + more))))
    }
    const [refused, beside] =
      (await driver.consume?.([request(limitOf(33)), { ...request(limitOf(33)), name: 'other' }])) ?? []
    assert.ok(refused instanceof OverloadError, `${refused}`)
    assert.match(refused.message, /"key" has too many different limits/)
    assert.ok(!(beside instanceof Error) && beside?.remaining === 32)
    for (let burst = 1; burst <= 32; burst += 1) {
      const [look] = await consume(driver, { ...request(limitOf(burst)), cost: 0 })
      assert.equal(look?.remaining, burst - 1)
    }
    assert.equal((await consume(driver, request(limitOf(2))))[0]?.remaining, 0)
  })

  it('expired limits make room', async () => {
    await using scene = openPostgres()
    const { driver, pool, schema } = scene
    for (let burst = 1; burst <= 32; burst += 1) await consume(driver, request(limitOf(burst)))
    // As if the first limit had expired, and the margin of ten seconds had passed. The limit of the last step comes
    // first.
    await pool.query(`UPDATE ${schema}.holdfast_rates SET state[cardinality(state)] = 0`)
    assert.equal((await consume(driver, request(limitOf(33))))[0]?.remaining, 32)
    const { rows } = await pool.query(`SELECT state[3] AS limits FROM ${schema}.holdfast_rates`)
    assert.deepEqual(rows, [{ limits: 32 }])
  })
})

describe('the machine’s clock is set back by an hour', SLOW, () => {
  it('in SQLite: a refused call succeeds after retryAfter, and a look changes nothing', async () => {
    await using scene = createContext()
    using clock = await shiftedClock()
    await using worker = await startWorker(
      {
        source: `
          import { connect, RateLimiter } from 'holdfast'
          const driver = await connect(process.env.RATES_URL)
          const limits = { limit: 10, periodSeconds: 1, burst: 2 }
          // A new limiter for each call, because it remembers no refusal.
          const limiter = () => new RateLimiter({ driver, limits })
          expose({ consume: (key, options) => limiter().consume(key, options), peek: (key) => limiter().peek(key) })`,
      },
      { env: { ...clock.env, RATES_URL: `sqlite:${scene.path}` } },
    )
    const ask = (method: 'consume' | 'peek', options = {}) =>
      worker.call(method, 'key', options) as Promise<{ allowed: boolean; retryAfterSeconds: number }>
    const database = await scene.database()
    const moment = () => (database.prepare('SELECT reset_at_ms FROM holdfast_rates').all() as Moment[])[0]?.reset_at_ms
    interface Moment {
      readonly reset_at_ms: number
    }
    await ask('consume', { cost: 2 })
    clock.shift(-HOUR_MS)
    const before = moment()
    const look = await ask('peek')
    assert.equal(look.allowed, false)
    assert.equal(moment(), before)
    const refused = await ask('consume')
    assert.equal(refused.allowed, false)
    assert.ok(refused.retryAfterSeconds <= 0.101, `${refused.retryAfterSeconds}`)
    await new Promise((resolve) => setTimeout(resolve, refused.retryAfterSeconds * 1_020 + 10))
    assert.equal((await ask('consume')).allowed, true)
  })

  it('in memory: a bucket drains as time passes, whether calls are allowed or refused', async () => {
    const time = new VirtualTime()
    let setBackMs = 0
    const virtual = time.clock()
    const clock = {
      now: () => ({ ...virtual.now(), wallMs: virtual.now().wallMs - setBackMs }),
      setTimer: virtual.setTimer.bind(virtual),
    }
    const driver = memoryDriver({ store: createMemoryStore(clock) })
    const narrow = { limit: 10, periodMs: 1_000, burst: 2 }
    for (const limits of [[narrow], [narrow, TWENTY_A_DAY]]) {
      const request = { name: `${limits.length}`, cost: 1, limits }
      await consume(driver, request, request)
      setBackMs += HOUR_MS
      for (let refusals = 0; refusals < 3; refusals += 1) {
        const [look] = await consume(driver, { ...request, cost: 0 })
        const [refused] = await consume(driver, request)
        assert.equal(refused?.allowed, false)
        assert.ok(Math.abs((refused?.retryAfterMs ?? 0) - (100 - 30 * refusals)) < 2, `${refused?.retryAfterMs}`)
        assert.equal(look?.usedMs[0], refused?.usedMs[0])
        await time.run(30)
      }
      await time.run(10)
      assert.equal((await consume(driver, request))[0]?.allowed, true)
    }
  })
})

describe('the stored format', () => {
  it('the id, spacing and reach of a limit match the test vectors', () => {
    const file = new URL('../../../protocol/vectors/rate-limits.json', import.meta.url)
    const { vectors } = JSON.parse(readFileSync(file, 'utf8')) as { vectors: Vector[] }
    for (const { limit, periodMs, burst, ...expected } of vectors) {
      const { ids, spacingsMs, fullsMs } = policyFor({ name: '', cost: 1, limits: [{ limit, periodMs, burst }] })
      assert.deepEqual({ id: ids[0], spacingMs: spacingsMs[0], fullMs: fullsMs[0] }, expected)
    }
  })
})

interface Vector extends RateLimit {
  readonly id: string
  readonly spacingMs: number
  readonly fullMs: number
}

async function consume(driver: Driver, ...requests: RateRequest[]): Promise<RateAnswer[]> {
  const answers = (await driver.consume?.(requests)) ?? []
  return answers.map((answer) => {
    if (answer instanceof Error) throw answer
    return answer
  })
}

function openRedis(url: string) {
  const client = new Redis(url)
  const driver = redisDriver({ client, onWarning() {} })
  return {
    client,
    driver,
    async [Symbol.asyncDispose]() {
      await driver.close()
      client.disconnect()
    },
  }
}

/** A new schema on the shared server or another one. It is dropped with the test. */
function openPostgres(url = inject('servers').postgres as string) {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  const schema = `rate_${randomBytes(6).toString('hex')}`
  const driver = postgresDriver({ client: pool, schema })
  return {
    pool,
    schema,
    driver,
    async [Symbol.asyncDispose]() {
      await driver.close()
      await pool.query(`DROP SCHEMA ${schema} CASCADE`)
      await pool.end()
    },
  }
}
