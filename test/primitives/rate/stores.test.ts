import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Redis } from 'ioredis'
import pg from 'pg'
import { describe, expect, inject, it } from 'vitest'
import type { Driver, RateRequest } from '../../../src/core/driver.ts'
import { createRates } from '../../../src/drivers/memory/rates.ts'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { openDatabase } from '../../../src/drivers/sqlite/client.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { connect, RateLimiter } from '../../../src/index.ts'
import { VirtualTime } from '../../../src/testing/virtual-clock.ts'
import { until } from '../../harness/processes.ts'
import { startRedis } from '../../harness/servers.ts'
import { startWorker } from '../../harness/worker.ts'

/** `HOLDFAST_RATE_CALLS=100000 HOLDFAST_RATE_KEYS=1000000` for the long version. */
const CALLS = Number(process.env['HOLDFAST_RATE_CALLS'] ?? 4_000)
const KEYS = Number(process.env['HOLDFAST_RATE_KEYS'] ?? 5_000)
const PROCESSES = 4
const SLOW = { timeout: 60_000 + 3 * CALLS + KEYS }

/** Two limits that apply in turn: the first after a pause, the second in the long run. */
const LIMITS = [
  { limit: 400, periodSeconds: 0.2, burst: 100 },
  { limit: 4_800, periodSeconds: 4, burst: 1_600 },
]

const WORKER = fileURLToPath(new URL('../../harness/rate-worker.mjs', import.meta.url))

const stores: Record<string, () => { url: string; clean?(): void }> = {
  sqlite() {
    const folder = mkdtempSync(join(tmpdir(), 'holdfast-rate-'))
    return { url: `sqlite:${join(folder, 'rates.db')}`, clean: () => rmSync(folder, { recursive: true }) }
  },
  postgres: () => ({ url: inject('servers').postgres as string }),
  redis: () => ({ url: inject('servers').redis?.[0] as string }),
  'redis cluster': () => ({ url: String(inject('servers').cluster?.[0]).replace('redis:', 'redis+cluster:') }),
}

describe.each(Object.entries(stores))('four processes on %s', (name, open) => {
  it(`no period has more than limit + burst allowed calls, in ${CALLS.toLocaleString('en')} calls`, SLOW, async () => {
    const { url, clean } = open()
    const workers = await Promise.all(
      Array.from({ length: PROCESSES }, () => startWorker({ module: WORKER }, { callTimeoutMs: SLOW.timeout })),
    )
    try {
      await Promise.all(workers.map((worker) => worker.call('open', { url, limits: LIMITS })))
      const key = `rate:${randomBytes(6).toString('hex')}`
      const task = { key, calls: CALLS / PROCESSES }
      const parts = await Promise.all(workers.map((worker) => worker.call('hammer', task)))
      const allowed = (parts as Bracket[][]).flat().sort(([a], [b]) => a - b)
      const elapsedMs = Math.max(...allowed.map(([, answeredMs]) => answeredMs)) - (allowed[0]?.[0] ?? 0)

      let possible = CALLS
      for (const { limit, periodSeconds, burst } of LIMITS) {
        const most = mostWithin(allowed, periodSeconds * 1_000)
        const total = burst + (limit * elapsedMs) / (periodSeconds * 1_000)
        possible = Math.min(possible, total)
        if (process.env['HOLDFAST_RATE_CALLS'] !== undefined) {
          console.log(
            `${name}: ${allowed.length} of ${CALLS} calls allowed in ${(elapsedMs / 1_000).toFixed(1)} s; ` +
              `in any ${periodSeconds} s at most ${most}, bound ${limit + burst}`,
          )
        }
        expect(most).toBeLessThanOrEqual(limit + burst)
        expect(allowed.length).toBeLessThanOrEqual(total * 1.01 + 1)
      }
      // With far fewer allowed calls, the test would prove nothing. A fast machine has less time for them.
      expect(allowed.length).toBeGreaterThan(possible / 2)
    } finally {
      for (const worker of workers) await worker.kill()
      clean?.()
    }
  })
})

/** When a call was sent, and when its answer arrived. The store took its step in between. */
type Bracket = readonly [sentMs: number, answeredMs: number]

/**
 * The largest number of calls that certainly fell into one period, wherever it begins: those sent after its beginning
 * and answered before its end. The period is 0.1 % and 1 ms shorter, because the store's clock may differ from ours.
 */
function mostWithin(sorted: readonly Bracket[], periodMs: number): number {
  const lengthMs = periodMs * 0.999 - 1
  let most = 0
  for (const [index, [beginMs]] of sorted.entries()) {
    let count = 0
    for (let at = index; at < sorted.length; at += 1) {
      const [sentMs, answeredMs] = sorted[at] as Bracket
      if (sentMs > beginMs + lengthMs) break
      if (answeredMs <= beginMs + lengthMs) count += 1
    }
    most = Math.max(most, count)
  }
  return most
}

describe(`${KEYS.toLocaleString('en')} distinct keys leave nothing behind after their period`, () => {
  const brief = { limit: 1, periodMs: 20, burst: 1 }

  async function consumeAll(driver: Driver): Promise<void> {
    for (let first = 0; first < KEYS; first += 1_000) {
      const names = Array.from({ length: Math.min(1_000, KEYS - first) }, (_, key) => `key:${first + key}`)
      await driver.consume?.(names.map((name) => ({ name, cost: 1, limits: [brief] })))
    }
  }

  /** Calls for other keys, which remove what has expired. */
  const traffic = async (driver: Driver): Promise<void> => {
    const limits = [{ limit: 1_000_000, periodMs: 1, burst: 1_000_000 }]
    await driver.consume?.(Array.from({ length: 20 }, (_, key) => ({ name: `other:${key}`, cost: 1, limits })))
  }

  it('in memory', async () => {
    const time = new VirtualTime()
    const rates = createRates(time.clock())
    for (let key = 0; key < KEYS; key += 1) rates.consume([{ name: `key:${key}`, cost: 1, limits: [brief] }])
    expect(rates.size).toBe(KEYS)
    await time.run(1_000 + KEYS)
    expect(rates.size).toBe(0)
  })

  it('in Redis, by themselves', SLOW, async () => {
    await using server = await startRedis()
    const client = new Redis(server.url)
    const driver = redisDriver({ client, onWarning() {} })
    await consumeAll(driver)
    const patience = { timeoutMs: SLOW.timeout - 10_000, failure: () => 'there were still keys' }
    await until(async () => (await client.dbsize()) === 0, patience)
    await driver.close()
    client.disconnect()
  })

  it('in SQLite, with the calls that follow', SLOW, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'holdfast-rate-'))
    const driver = await openSqlite(`sqlite:${join(folder, 'rates.db')}`)
    await consumeAll(driver)
    await sleep(1_100) // sweeps run at most once a second
    for (let calls = 0; calls < KEYS / 200 + 2; calls += 1) await traffic(driver)
    const database = await openDatabase(join(folder, 'rates.db'))
    const [row] = database.prepare("SELECT count(*) AS kept FROM holdfast_rates WHERE name LIKE 'key:%'").all()
    expect(row).toMatchObject({ kept: 0 })
    database.close()
    await driver.close()
    rmSync(folder, { recursive: true })
  })

  it('in PostgreSQL, with the calls that follow', SLOW, async () => {
    const pool = new pg.Pool({ connectionString: inject('servers').postgres as string, max: 2 })
    const schema = `rate_${randomBytes(6).toString('hex')}`
    const driver = postgresDriver({ client: pool, schema })
    await consumeAll(driver)
    // As if the ten seconds had passed for which a row is kept.
    await pool.query(`UPDATE ${schema}.holdfast_rates SET expires_at = expires_at - interval '11 s'`)
    const kept = async () => {
      const { rows } = await pool.query(`SELECT count(*) FROM ${schema}.holdfast_rates WHERE name LIKE 'key:%'`)
      return Number(rows[0]?.count)
    }
    expect(await kept()).toBeLessThanOrEqual(KEYS)
    const bound = KEYS / 20 + 200
    for (let calls = 0; calls < bound && (await kept()) > 0; calls += 10) {
      for (let call = 0; call < 10; call += 1) await traffic(driver)
    }
    expect(await kept()).toBe(0)
    await driver.close()
    await pool.query(`DROP SCHEMA ${schema} CASCADE`)
    await pool.end()
  })
})

describe('a list that waits for a row of PostgreSQL', () => {
  it('does not undo what others took of its other names meanwhile', SLOW, async () => {
    const pool = new pg.Pool({ connectionString: inject('servers').postgres as string, max: 4 })
    const schema = `rate_${randomBytes(6).toString('hex')}`
    const driver = postgresDriver({ client: pool, schema })
    const limits = [{ limit: 10, periodMs: 1_000, burst: 10 }]
    const a = { name: 'a', cost: 1, limits }
    const b = { name: 'b', cost: 1, limits }
    const consume = async (...requests: RateRequest[]) => [...((await driver.consume?.(requests)) ?? [])]
    await consume(a)
    const blocker = await pool.connect()
    await blocker.query(`BEGIN; SELECT 1 FROM ${schema}.holdfast_rates WHERE name = 'a' FOR UPDATE`)
    const late = consume(a, b)
    const waits = `SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%${schema}%'`
    const patience = { timeoutMs: 10_000, failure: () => 'the list never waited' }
    await until(async () => (await pool.query(waits)).rows.length > 0, patience)
    await sleep(1_200) // the list's own time is this late

    const startedMs = performance.now()
    const answers = await consume(...Array.from({ length: 10 }, () => b))
    await blocker.query('COMMIT')
    blocker.release()
    answers.push(...(await late).slice(1), ...(await consume(...Array.from({ length: 20 }, () => b))))
    const allowed = answers.filter((answer) => !(answer instanceof Error) && answer.allowed).length
    expect(allowed).toBeLessThanOrEqual(10 + 10 * ((performance.now() - startedMs) / 1_000) + 1)
    await driver.close()
    await pool.query(`DROP SCHEMA ${schema} CASCADE`)
    await pool.end()
  })
})

describe('every store', () => {
  it.each(Object.entries(stores))(
    'on %s a limiter works by its URL alone, with periods below one second',
    async (_, open) => {
      const { url, clean } = open()
      await using limiter = new RateLimiter({ url, limits: { limit: 5, periodSeconds: 0.1, burst: 5 } })
      const key = `rate:${randomBytes(6).toString('hex')}`
      for (let round = 0; round < 3; round += 1) {
        const results = await Promise.all(Array.from({ length: 5 }, () => limiter.consume(key)))
        expect(results.map(({ allowed }) => allowed)).toEqual([true, true, true, true, true])
        await limiter.wait(key, { cost: 5 })
        await sleep(110) // until the full burst is available again
      }
      await limiter.close()
      clean?.()
    },
  )

  it('without rate limits rejects with the reason', async () => {
    const [host = ''] = inject('servers').redis?.map((url) => new URL(url).host) ?? []
    const driver = await connect(`redlock://${host}`)
    await using limiter = new RateLimiter({ driver, limits: { limit: 1, periodSeconds: 1 } })
    await expect(limiter.consume('key')).rejects.toThrow(/redlock driver does not support rate limits/)
    await driver.close()
  })
})
