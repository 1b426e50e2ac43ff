import assert from 'node:assert/strict'
import { createServer, type Server as HttpServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { inspect } from 'node:util'
import pg from 'pg'
import postgres from 'postgres'
import { createClientPool } from 'redis'
import { afterAll, beforeAll, describe, it, vi } from 'vitest'
import { connect } from '../../src/connect.ts'
import type { Driver } from '../../src/core/driver.ts'
import { postgresConfig, postgresUrl } from '../../src/drivers/postgres/url.ts'
import { migratePostgresUrl, postgresDriver } from '../../src/drivers/postgres.ts'
import { postgresAdvisoryDriver } from '../../src/drivers/postgres-advisory.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { redlockDriver } from '../../src/drivers/redlock.ts'
import { sqliteDriver } from '../../src/drivers/sqlite.ts'
import { DistributedLock, HoldfastError, type LockEvent, Semaphore, StoreError } from '../../src/index.ts'
import { createStore, type Store } from '../harness/cli.ts'
import { viaNodeRedis } from '../harness/node-redis-driver.ts'
import { rejectionOf } from '../harness/rejection.ts'
import { textsOf } from '../harness/secrets.ts'
import { type Server, startPostgres, startRedis } from '../harness/servers.ts'
import { askRedis } from '../harness/wire.ts'

/**
 * Failure 52: a password never appears in an error or its properties, in an event, in a warning or on the terminal. The
 * test searches for the halves of each password, because the characters between them may be escaped in many ways.
 */
const HALVES = ['Zq7xA', 'Kw9vB']
const between = ['', '/', '@', ':', '?', '#', '%', '&', ' ', '"', "'", '\\', '$', '+', '=', 'ü', '/@:?#%', '@@', '//']
const passwords = between.map((odd) => HALVES.join(odd))

let redis: Server
let disconnected: Server
let database: Server
let http: HttpServer
let store: Store
const warnings: unknown[] = []
const printed: unknown[] = []
const hear = (warning: unknown): unknown => warnings.push(warning)

beforeAll(async () => {
  for (const method of ['log', 'info', 'warn', 'error', 'debug'] as const) {
    vi.spyOn(console, method).mockImplementation((...args) => void printed.push(...args))
  }
  process.on('warning', hear)
  http = createServer((_, response) => response.end('no Redis')).listen(0, '127.0.0.1')
  ;[redis, disconnected, database] = await Promise.all([
    startRedis(),
    // Answers "unknown command" to a login, and repeats its arguments.
    startRedis({ settings: { 'rename-command': 'AUTH ""\nrename-command HELLO ""' } }),
    startPostgres(),
  ])
  await askRedis(redis, 'CONFIG', 'SET', 'requirepass', 'right')
  await askForPasswords(database.url)
  store = createStore()
}, 120_000)

afterAll(async () => {
  process.off('warning', hear)
  vi.restoreAllMocks()
  http.close()
  await Promise.all([redis, disconnected, database, store].map((each) => each[Symbol.asyncDispose]()))
})

type Open = (url: string) => Promise<Driver>

/** Both Redis clients. Cluster and Redlock use the client that a URL opens. */
const redisOpeners: Record<string, readonly [scheme: string, open: Open]> = {
  ioredis: ['redis', connect],
  'node-redis': ['redis', viaNodeRedis],
  'ioredis, Cluster': ['redis+cluster', connect],
  'node-redis, Cluster': ['redis+cluster', viaNodeRedis],
  redlock: ['redlock', connect],
}

const postgresOpeners: Record<string, readonly [scheme: string, open: Open]> = {
  pg: ['postgres', connect],
  postgres: ['postgres', viaPostgres],
  'pg, advisory': ['postgres+advisory', connect],
  'postgres, advisory': ['postgres', (url) => viaPostgres(url, postgresAdvisoryDriver)],
}

/** What fails. `at` is where the server is, `says` is what the error must still say. */
const redisFailures: readonly (readonly [what: string, at: () => string, says: RegExp])[] = [
  ['a wrong password', () => `127.0.0.1:${redis.port}`, /(?:WRONGPASS|NOAUTH).*password is wrong/],
  [
    'a server that knows no login',
    () => `127.0.0.1:${disconnected.port}`,
    /unknown command|NOAUTH|HELLO|cluster support/i,
  ],
  ['nothing there', () => '127.0.0.1:1', /connection refused/],
  ['another protocol', () => `127.0.0.1:${(http.address() as AddressInfo).port}`, /./],
]

const postgresFailures: readonly (readonly [what: string, at: () => string, says: RegExp])[] = [
  ['a wrong password', () => `127.0.0.1:${database.port}/postgres`, /did not accept the user or the password/],
  ['nothing there', () => '127.0.0.1:1/postgres', /connection refused/],
  ['TLS where there is none', () => `127.0.0.1:${database.port}/postgres?sslmode=require`, /./],
]

describe('failure 52: no password in an error', { timeout: 120_000 }, () => {
  for (const [client, [scheme, open]] of Object.entries(redisOpeners)) {
    it.each(redisFailures)(`${client}: %s`, async (_, at, says) => {
      await assertSecret(
        passwords.slice(0, 3),
        (password) => `${scheme}://me:${encodeURIComponent(password)}@${at()}`,
        {
          open,
          says,
        },
      )
    })
  }

  for (const [client, [scheme, open]] of Object.entries(postgresOpeners)) {
    it.each(postgresFailures)(`${client}: %s`, async (_, at, says) => {
      await assertSecret(
        passwords.slice(0, 3),
        (password) => `${scheme}://me:${encodeURIComponent(password)}@${at()}`,
        {
          open,
          says,
        },
      )
    })
  }

  it.each([
    'redis',
    'rediss',
    'redis+cluster',
    'redlock',
    'postgres',
    'postgres+advisory',
    'valkey',
    'mysql',
    'sqlite',
  ])('%s: a URL that is wrong in any way', async (scheme) => {
    for (const password of passwords) {
      const encoded = encodeURIComponent(password)
      for (const url of [
        `${scheme}://me:${password}@127.0.0.1:1/x`, // not encoded
        `${scheme}://me:${password}@127.0.0.1:99999/0`,
        `${scheme}://me:${encoded}@127.0.0.1:99999/0`,
        `${scheme}://me:${encoded}@127.0.0.1:port/0`,
        `${scheme}://me:${encoded}@127.0.0.1:1/a/b`,
        `${scheme}://me:${encoded}@ho st/0`,
        `${scheme}://me:${encoded}@[zz]/0`,
        `${scheme}://me:${encoded}@host/0?nonsense=1`,
        `${scheme}://me:${encoded}@host/0?tls=maybe&sslmode=maybe`,
        `${scheme}://me:${encoded}@host/0#1`,
        `${scheme}://me:${encoded}%@host/0`,
        `${scheme}://me:${encoded}@host/0\n`,
        `${scheme}://${encoded}@:1`,
        `${scheme}://me:${encoded}`,
        ...(scheme === 'sqlite' ? [] : [`${scheme}:me:${password}@host`]), // for SQLite, a path
        ` ${scheme}://me:${password}@host`,
        `me:${password}@127.0.0.1`,
      ]) {
        // Refused before anything is opened. Some of these are valid for some stores.
        const driver = await Promise.resolve(url).then(refusedBy)
        if (driver !== undefined) assertNowhere(driver, url)
      }
    }
  })

  it('arguments: a client, a driver or a URL in the wrong place', async () => {
    const password = HALVES.join('')
    const url = `redis://me:${password}@127.0.0.1:1`
    const driver = await connect(url)
    const twice = await viaNodeRedis(url)
    const pool = createClientPool({ url })
    pool.on('error', () => {})
    const client = new pg.Client({ connectionString: `postgres://me:${password}@127.0.0.1:1/x` })
    const calls: (() => unknown)[] = [
      () => new DistributedLock({ driver, url }),
      () => new DistributedLock({ url: new URL(url) as never }),
      () => new DistributedLock({ driver: connect(url) as never }),
      () => new DistributedLock({ driver: client as never }),
      () => new DistributedLock({ connection: url } as never),
      () => new DistributedLock(url as never),
      () => new DistributedLock({ driver: url as never }),
      () => new DistributedLock({ driver, holderId: url + 'x'.repeat(255) }),
      () => new Semaphore(url as never),
      () => new DistributedLock({ driver }).acquire('a', url as never),
      () => redisDriver(url as never),
      () => redisDriver({ client: url as never }),
      () => redisDriver({ client: url.replace(HALVES[1] ?? '', ' $&') as never }),
      () => redlockDriver({ nodes: [url] as never }),
      () => postgresDriver({ client: url as never }),
      () => postgresAdvisoryDriver({ client: url as never }),
      () => sqliteDriver({ database: url as never }),
      () => redisDriver({ client: pool as never }),
      () => redisDriver({ client: client as never }),
      () => postgresDriver({ client: driver as never }),
      () => redlockDriver({ nodes: [twice, twice] as never }),
      () => redlockDriver({ nodes: [twice], quorum: driver as never } as never),
      () => postgresDriver({ client, schema: driver as never }),
      () => migratePostgresUrl(`postgres://me:${password}@127.0.0.1:1/x`, { schema: '' }),
    ]
    for (const call of calls) {
      const error = await rejectionOf(call)
      assert.ok(error instanceof HoldfastError, `${String(call)} gave ${String(error)}`)
      assertNowhere(error, String(call))
    }
    await Promise.all([driver.close(), twice.close()])
    pool.destroy()
  })

  it('no password was printed or in a warning', () => {
    assertNowhere(warnings, 'warnings')
    assertNowhere(printed, 'the console')
  })
})

describe.concurrent('failure 52: no password on the terminal', { timeout: 120_000 }, () => {
  const password = HALVES.join('/')
  const encoded = encodeURIComponent(password)
  it.each([
    ['run, unreachable', ['run', 'job', '--no-wait', '--url', `redis://me:${encoded}@127.0.0.1:1`, '--', 'true'], 69],
    ['run, not encoded', ['run', 'job', '--url', `redis://me:${password}@127.0.0.1:1`, '--', 'true'], 64],
    ['ls, a bad port', ['ls', '--url', `postgres://me:${encoded}@127.0.0.1:99999/x`], 64],
    ['ls, an unknown scheme', ['ls', '--url', `mysql://me:${password}@127.0.0.1/x`], 64],
    ['ls, two prefixes', ['ls', `redis://me:${password}@h`, `redis://me:${password}@h`], 64],
    ['migrate, unreachable', ['migrate', '--url', `postgres://me:${encoded}@127.0.0.1:1/x`], 69],
    ['migrate, a URL without --url', ['migrate', `postgres://me:${encoded}@127.0.0.1:1/x`], 64],
    ['ls, a URL without --url', ['ls', `redis://me:${password}@127.0.0.1:1`], 64],
    ['a URL with quotes as a command', [`postgres://me:${HALVES.join(`'"`)}@127.0.0.1:1/x`], 64],
    ['a URL as a command', [`postgres://me:${encoded}@127.0.0.1:1/x`], 64],
    ['a URL as a number', ['run', 'job', '--wait', `redis://me:${encoded}@127.0.0.1`, '--', 'true'], 64],
  ])('%s', async (_, args, code) => {
    const run = await store.run(args)
    assert.equal(run.code, code, run.stderr)
    assertNowhere(run, args.join(' '))
  })

  it('a wrong password, of Redis and of PostgreSQL', async () => {
    for (const url of [
      `redis://:${encoded}@127.0.0.1:${redis.port}`,
      `postgres://me:${encoded}@127.0.0.1:${database.port}/postgres`,
    ]) {
      const run = await store.run(['run', 'job', '--url', url, '--', 'true'])
      assert.equal(run.code, 69)
      assert.match(run.stderr, /password/)
      assertNowhere(run, url)
    }
  })
})

const LATE = /in time|did not answer|no answer within/

/** Everything that a caller could log about a failure at this URL. */
async function assertSecret(
  secrets: readonly string[],
  urlOf: (password: string) => string,
  { open, says }: { open: Open; says: RegExp },
): Promise<void> {
  await Promise.all(
    secrets.map(async (password) => {
      const url = urlOf(password)
      const { error, events } = await failureAt(url, open)
      assert.ok(error instanceof StoreError, `${url}: ${inspect(error)}`)
      // On a machine that stalls, the store may not answer in time. That error must not show a password either.
      if (!LATE.test(error.message)) assert.match(error.message, says)
      assertNowhere(error, url)
      assertNowhere(events, `${url}: events`)
    }),
  )
}

const EVENTS: readonly LockEvent[] = [
  ...(['refused', 'waiting', 'acquireFailed', 'storeFailed'] as const),
  ...(['releaseFailed', 'listenFailed', 'renewalFailed', 'lost'] as const),
]

async function failureAt(url: string, open: Open): Promise<{ error: unknown; events: unknown[] }> {
  const events: unknown[] = []
  let driver: Driver | undefined
  try {
    driver = await open(url)
    const lock = new DistributedLock({ driver })
    for (const event of EVENTS) lock.on(event, (told) => events.push(told))
    await lock.acquire('job', { blocking: false })
    return { error: undefined, events }
  } catch (error) {
    events.push(
      await driver?.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} }).catch((reason) => reason),
    )
    events.push(await driver?.inspect({}).catch((reason: unknown) => reason))
    return { error, events }
  } finally {
    await driver?.close()
  }
}

async function viaPostgres(url: string, create = postgresDriver): Promise<Driver> {
  const { url: clientUrl, options } = postgresConfig(postgresUrl(url).target)
  const sql = postgres(clientUrl, { ...options, max: 2, connect_timeout: 5 })
  const driver = create({ client: sql })
  return {
    ...driver,
    async close() {
      await driver.close()
      await sql.end({ timeout: 0 })
    },
  }
}

/** The error for a URL that is refused. Undefined for a valid URL. */
async function refusedBy(url: string): Promise<unknown> {
  const error = await rejectionOf(async () => {
    // A URL that is not refused here is never connected to.
    const driver = await connect(url)
    await driver.close()
  })
  return error
}

function assertNowhere(thing: unknown, what: string): void {
  for (const text of textsOf(thing)) {
    const found = HALVES.find((half) => text.toLowerCase().includes(half.toLowerCase()))
    // Without the text itself, which would show the password again.
    assert.ok(found === undefined, `half of the password is in: ${text.slice(0, 2_000)}\n(${what})`)
  }
}

/** From now on, every user except the superuser needs a password. */
async function askForPasswords(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const { rows } = await client.query(`SHOW hba_file`)
  const lines = ['host all postgres 127.0.0.1/32 trust', 'host all all 127.0.0.1/32 scram-sha-256']
  const list = lines.map((line) => `'${line}'`).join()
  await client.query(`COPY (SELECT unnest(ARRAY[${list}])) TO '${rows[0].hba_file}'`)
  await client.query(`CREATE ROLE me LOGIN PASSWORD 'right'`)
  await client.query('SELECT pg_reload_conf()')
  await client.end()
}
