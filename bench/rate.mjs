// The cost of a rate-limiting step: 64 calls at once over 1,000 keys, and on one hot key. Compares it with
// rate-limiter-flexible and with bare commands (INCR, upsert) through the same client, in interleaved rounds.
// Run `npm run build` first, then `node bench/rate.mjs [memory,redis,postgres,sqlite] [rounds] [seconds]`.
// Redis is started on a free port unless HOLDFAST_BENCH_REDIS_URL names one. PostgreSQL needs
// HOLDFAST_BENCH_POSTGRES_URL.
import { mkdtempSync, rmSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import pg from 'pg'
import { RateLimiterMemory, RateLimiterPostgres, RateLimiterRedis } from 'rate-limiter-flexible'
import { memoryDriver } from '../dist/drivers/memory.js'
import { postgresDriver } from '../dist/drivers/postgres.js'
import { redisDriver } from '../dist/drivers/redis.js'
import { RateLimiter } from '../dist/index.js'
import { startRedisServer } from './support/redis-server.mjs'
import { median } from './support/statistics.mjs'

const [stores = 'memory,redis,postgres,sqlite', rounds = '5', seconds = '1'] = process.argv.slice(2)
const AT_ONCE = 64
const KEYS = Array.from({ length: 1_000 }, (_, key) => `user:${key}`)
// Large enough that nothing is refused, so that only the step itself is measured.
const MANY = 1_000_000_000
const LIMITS = { limit: MANY, periodSeconds: 60 }
const SHARE = { units: 100, forSeconds: 1 }

const benches = { memory, redis, postgres, sqlite }
for (const name of stores.split(',')) {
  const { subjects, close } = await benches[name]()
  for (const [workload, keyOf] of Object.entries({
    '1,000 keys': (turn) => KEYS[turn % KEYS.length],
    'one hot key': () => 'hot',
  })) {
    await compare(`${name}, ${workload}`, subjects, keyOf)
  }
  await close()
}

async function memory() {
  const ours = new RateLimiter({ driver: memoryDriver(), limits: LIMITS })
  const flexible = new RateLimiterMemory({ points: MANY, duration: 60 })
  return {
    subjects: {
      'rate-limiter-flexible': (key) => flexible.consume(key),
      holdfast: (key) => ours.consume(key),
    },
    async close() {
      await ours.close()
      for (const key of [...KEYS, 'hot']) await flexible.delete(key)
    },
  }
}

async function redis() {
  const given = process.env['HOLDFAST_BENCH_REDIS_URL']
  const server = given === undefined ? await startRedisServer() : { url: given, stop() {} }
  const client = new Redis(server.url)
  const driver = redisDriver({ client, onWarning() {} })
  const ours = new RateLimiter({ driver, limits: LIMITS })
  const shared = new RateLimiter({ driver, limits: LIMITS, localShare: SHARE })
  const flexible = new RateLimiterRedis({ storeClient: client, points: MANY, duration: 60 })
  return {
    subjects: { 'bare INCR': (key) => client.incr(`bare:${key}`), ...limiterSubjects({ flexible, ours, shared }) },
    async close() {
      await ours.close()
      await shared.close()
      client.disconnect()
      server.stop()
    },
  }
}

async function postgres() {
  const url = process.env['HOLDFAST_BENCH_POSTGRES_URL']
  if (url === undefined) throw new Error('set HOLDFAST_BENCH_POSTGRES_URL to the URL of a server')
  const pool = new pg.Pool({ connectionString: url, max: 10 })
  await pool.query('CREATE TABLE IF NOT EXISTS bench_bare (key TEXT PRIMARY KEY, points INTEGER, expire TIMESTAMPTZ)')
  const upsert = `INSERT INTO bench_bare AS b VALUES ($1, 1, clock_timestamp() + interval '60 s')
    ON CONFLICT (key) DO UPDATE SET points = b.points + 1 RETURNING points`
  const driver = postgresDriver({ client: pool })
  const ours = new RateLimiter({ driver, limits: LIMITS })
  const shared = new RateLimiter({ driver, limits: LIMITS, localShare: SHARE })
  const flexible = await new Promise((resolve, reject) => {
    const made = new RateLimiterPostgres(
      { storeClient: pool, points: MANY, duration: 60, tableName: 'bench_flexible' },
      (error) => (error ? reject(error) : resolve(made)),
    )
  })
  return {
    subjects: {
      'bare upsert': (key) => pool.query({ name: 'bare', text: upsert, values: [key] }),
      ...limiterSubjects({ flexible, ours, shared }),
    },
    async close() {
      await ours.close()
      await shared.close()
      await driver.close()
      await pool.query('DROP TABLE bench_bare, bench_flexible')
      await pool.end()
    },
  }
}

async function sqlite() {
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-bench-'))
  const ours = new RateLimiter({ url: `sqlite:${join(folder, 'rates.db')}`, limits: LIMITS })
  return {
    subjects: { holdfast: (key) => ours.consume(key) },
    async close() {
      await ours.close()
      rmSync(folder, { recursive: true })
    },
  }
}

function limiterSubjects({ flexible, ours, shared }) {
  return {
    'rate-limiter-flexible': (key) => flexible.consume(key),
    holdfast: (key) => ours.consume(key),
    'holdfast, local share': (key) => shared.consume(`shared:${key}`),
  }
}

async function compare(title, subjects, keyOf) {
  const measured = Object.fromEntries(Object.keys(subjects).map((name) => [name, []]))
  for (const subject of Object.values(subjects)) await measure(subject, keyOf, 0.3)
  const [loadBefore] = loadavg()
  for (let round = 0; round < Number(rounds); round += 1) {
    for (const [name, subject] of Object.entries(subjects)) {
      measured[name].push(await measure(subject, keyOf, Number(seconds)))
    }
  }
  console.log(
    `${title}: ${AT_ONCE} at once, ${rounds} rounds; load ${loadBefore.toFixed(1)}–${loadavg()[0].toFixed(1)}`,
  )
  const [first] = Object.values(measured)
  for (const [name, list] of Object.entries(measured)) {
    const ratios = list.map(({ rate }, at) => rate / first[at].rate)
    const cpu = median(list.map(({ cpuMicros }) => cpuMicros))
    const rate = Math.round(median(list.map((each) => each.rate))).toLocaleString('en')
    const spread = ratios.map((ratio) => ratio.toFixed(2)).join(' ')
    console.log(
      `  ${name.padEnd(24)} ${rate.padStart(10)}/s  ${median(ratios).toFixed(2)} × (${spread})  ` +
        `${cpu.toFixed(2)} µs of our CPU each`,
    )
  }
}

async function measure(subject, keyOf, forSeconds) {
  let turns = 0
  const usedBefore = process.cpuUsage()
  const startedMs = performance.now()
  const endMs = startedMs + forSeconds * 1_000
  let over = false
  const task = async () => {
    while (!over) {
      turns += 1
      await subject(keyOf(turns))
      if (turns % 64 === 0) over = performance.now() >= endMs
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, task))
  const { user, system } = process.cpuUsage(usedBefore)
  return { rate: turns / ((performance.now() - startedMs) / 1_000), cpuMicros: (user + system) / turns }
}
