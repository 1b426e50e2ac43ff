import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'libsql'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { connect } from '../../src/connect.ts'
import type { Driver } from '../../src/core/driver.ts'
import { postgresDriver } from '../../src/drivers/postgres.ts'
import { postgresAdvisoryDriver } from '../../src/drivers/postgres-advisory.ts'
import { sqliteDriver } from '../../src/drivers/sqlite.ts'
import { DistributedLock, StoreError } from '../../src/index.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { type Folder, makeFolder } from '../harness/folders.ts'
import { viaNodeRedis } from '../harness/node-redis-driver.ts'
import { type Server, startPostgres, startPostgresReplica, startRedis } from '../harness/servers.ts'
import { askRedis } from '../harness/wire.ts'

/** A permanent failure is not retried, however long a claim may wait. */
let folder: Folder
let redis: Server
let replica: Server
let primary: Server
let standby: Server
let root: pg.Pool

beforeAll(async () => {
  folder = makeFolder('permanent')
  ;[redis, primary] = await Promise.all([startRedis(), startPostgres()])
  ;[replica, standby] = await Promise.all([
    startRedis({ settings: { replicaof: `127.0.0.1 ${redis.port}` } }),
    startPostgresReplica(primary.port),
  ])
  await askRedis(redis, 'ACL', 'SETUSER', 'guest', 'on', '>right', '+ping', '+info')
  await askRedis(redis, 'CONFIG', 'SET', 'requirepass', 'right')
  root = new pg.Pool({ connectionString: primary.url, max: 2 })
  const { rows } = await root.query('SHOW hba_file')
  const lines = ['host all postgres 127.0.0.1/32 trust', 'host all me 127.0.0.1/32 scram-sha-256']
  const list = lines.map((line) => `'${line}'`).join()
  await root.query(`COPY (SELECT unnest(ARRAY[${list}])) TO '${rows[0].hba_file}'`)
  await root.query(`CREATE ROLE me LOGIN PASSWORD 'right'`)
  await root.query('REVOKE CREATE ON SCHEMA public FROM PUBLIC')
  await root.query('SELECT pg_reload_conf()')
}, 120_000)

afterAll(async () => {
  await root.end()
  await Promise.all([redis, replica, primary, standby].map((each) => each[Symbol.asyncDispose]()))
  folder.remove()
})

const at = ({ port }: Server): string => `127.0.0.1:${port}`

const redisCases: readonly (readonly [what: string, url: () => string, says: RegExp])[] = [
  ['a wrong password', () => `redis://:wrong@${at(redis)}`, /WRONGPASS.*password is wrong/],
  ['no password', () => `redis://${at(redis)}`, /NOAUTH.*password is wrong, or missing/],
  ['a server that was a replica from the start', () => `redis://${at(replica)}`, /READONLY.*connect to the master/],
  ['a user without rights', () => `redis://guest:right@${at(redis)}`, /NOPERM.*it needs the keys lock:\*/],
  ['TLS where there is none', () => `rediss://:right@${at(redis)}`, /does not speak TLS.*Use redis:\/\//],
]

const postgresCases: readonly (readonly [what: string, url: () => string, says: RegExp])[] = [
  ['a wrong password', () => `postgres://me:wrong@${at(primary)}/postgres`, /did not accept the user or the password/],
  ['an unknown user', () => `postgres://stranger:x@${at(primary)}/postgres`, /does not accept this user without TLS/],
  ['an unknown database', () => `postgres://postgres@${at(primary)}/nowhere`, /has no such database/],
  ['a standby from the start', () => `postgres://postgres@${at(standby)}/postgres`, /is a standby, or read-only/],
]

describe('a permanent failure is reported at once, and not retried', { timeout: 60_000 }, () => {
  for (const [client, open] of Object.entries({ ioredis: connect, 'node-redis': viaNodeRedis })) {
    it.each(redisCases)(`redis, ${client}: %s`, async (_, url, says) => {
      await assertPermanent(() => open(url()), says)
    })
  }

  it('redis Cluster: a wrong password', async () => {
    await assertPermanent(() => connect(`redis+cluster://:wrong@${at(redis)}`), /WRONGPASS|NOAUTH/)
  })

  it('redis Cluster: a server that is not a node of a cluster', async () => {
    const url = `redis+cluster://:right@${at(redis)}`
    const says = /cluster support disabled.*use redis:\/\/ instead/
    await assertPermanent(() => connect(url), says)
    await assertPermanent(() => viaNodeRedis(url), says)
  })

  it('redlock: a password that is wrong on a majority of nodes, and TLS that no node supports', async () => {
    await assertPermanent(() => connect(`redlock://:wrong@${at(redis)}`), /WRONGPASS|NOAUTH/)
    await assertPermanent(() => connect(`redlock://:right@${at(redis)}?tls=true`), /does not speak TLS/)
    // If one of two can be reached later, that may be enough.
    await assertRetryable(() => connect(`redlock://:wrong@127.0.0.1:1,127.0.0.1:2,${at(redis)}`))
  })

  for (const [client, open] of Object.entries({ ioredis: connect, 'node-redis': viaNodeRedis })) {
    it(`redis, ${client}: a server that is down is named, with the reason, at any time`, async () => {
      const lock = new DistributedLock({ driver: await open('redis://127.0.0.1:1') })
      for (let turn = 0; turn < 4; turn += 1) {
        await assert.rejects(lock.acquire('a'), /cannot reach redis:\/\/127.0.0.1:1: connection refused/)
      }
      await lock.close({ deadlineSeconds: 0.1 })
    })
  }

  for (const [client, open] of Object.entries({ pg: connect, postgres: viaPostgres })) {
    it.each(postgresCases)(`postgres, ${client}: %s`, async (_, url, says) => {
      await assertPermanent(() => open(url()), says)
    })
    it.each(postgresCases)(`postgres-advisory, ${client}: %s`, async (_, url, says) => {
      const advisory = (): Promise<Driver> =>
        client === 'pg'
          ? connect(url().replace('postgres:', 'postgres+advisory:'))
          : viaPostgres(url(), postgresAdvisoryDriver)
      await assertPermanent(advisory, says)
    })
  }

  it('postgres, postgres: missing TLS is named, although the client does not report it', async () => {
    const driver = await viaPostgres(`postgres://postgres@${at(primary)}/postgres?sslmode=require`)
    const lock = new DistributedLock({ driver })
    await assert.rejects(lock.acquire('a'), /closed during the TLS handshake. Does the server speak TLS on this port\?/)
    await lock.close({ deadlineSeconds: 0.1 })
    await driver.close()
  })

  it('postgres: missing tables that may not be created', async () => {
    const none = `postgres://postgres@${at(primary)}/postgres?holdfast_schema=none&holdfast_migrate=false`
    await assertPermanent(() => connect(none), /are missing or old: run "holdfast migrate --schema none"/)
    const mine = `postgres://me:right@${at(primary)}/postgres`
    await assertPermanent(() => connect(mine), /this role may not create them: run "holdfast migrate/)
  })

  it('sqlite: a folder that cannot be created, a file of another program, a read-only database', async () => {
    writeFileSync(join(folder.path, 'file'), '')
    await assertPermanent(() => connect(`sqlite:${folder.path}/file/locks.db`), /cannot be checked: ENOTDIR/)
    await assertPermanent(() => connect('sqlite:/proc/nowhere/locks.db'), /cannot be created/)
    writeFileSync(join(folder.path, 'text'), 'no database'.repeat(100))
    await assertPermanent(() => connect(`sqlite:${folder.path}/text`), /it is not an SQLite database/)
    const other = new Database(join(folder.path, 'other.db'))
    other.exec('CREATE TABLE theirs (a)')
    await assertPermanent(() => connect(`sqlite:${folder.path}/other.db`), /a database of another program/)
    other.close()
    // Not by the file's mode, which does not prevent root from writing.
    const database = new Database(join(folder.path, 'other.db'))
    database.exec('PRAGMA query_only = 1')
    await assertPermanent(() => sqliteDriver({ database }), /this user cannot write to it/)
    database.close()
  })
})

describe('a server that accepted writes before and accepts none now was demoted: a retry may help', {
  timeout: 60_000,
}, () => {
  it('redis', async () => {
    await using server = await startRedis()
    const driver = await connect(server.url)
    await grant(driver)
    await askRedis(server, 'REPLICAOF', '127.0.0.1', '1')
    const error = await failureOf(() => grant(driver))
    assert.ok(error instanceof StoreError && error.retryable, String(error))
    assert.match(error.message, /READONLY/)
    await driver.close()
  })

  it('postgres', async () => {
    const driver = await connect(`postgres://postgres@${at(primary)}/postgres?holdfast_schema=demoted`)
    await grant(driver)
    await root.query('ALTER DATABASE postgres SET default_transaction_read_only = on')
    await root.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%demoted%'`,
    )
    const error = await failureOf(() => untilReadOnly(driver))
    assert.ok(error instanceof StoreError && error.retryable, String(error))
    const client = new pg.Client({ connectionString: primary.url, options: '-c default_transaction_read_only=off' })
    await client.connect()
    await client.query('ALTER DATABASE postgres RESET default_transaction_read_only')
    await client.end()
    await driver.close()
  })
})

let counter = 0

async function grant(driver: Driver): Promise<void> {
  const id = `${++counter}`
  const plain = { holderId: 'test', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 } as const
  const [answer] = await driver.acquire([{ lockName: `name ${id}`, claimId: id, ...plain }], newCall())
  if (answer instanceof Error) throw answer
}

/** The connections that were terminated fail first. */
async function untilReadOnly(driver: Driver): Promise<void> {
  for (let tries = 0; tries < 20; tries += 1) {
    const error = await failureOf(() => grant(driver))
    if (error instanceof Error && error.message.includes('read-only')) throw error
  }
}

async function failureOf(work: () => Promise<unknown>): Promise<unknown> {
  try {
    await work()
  } catch (error) {
    return error
  }
  return undefined
}

/** A claim that may wait for long, and a ping, fail at once. The store is asked once, and the error is permanent. */
async function assertPermanent(open: () => Promise<Driver>, says: RegExp): Promise<void> {
  for (const use of [claim, ping]) {
    const { error, told } = await useInTime(open, use)
    assert.ok(error instanceof StoreError, String(error))
    assert.match(error.message, says)
    assert.equal(error.retryable, false, error.message)
    const asked = told.filter((message) => !LATE.test(message))
    assert.ok(asked.length <= 1, `asked ${asked.length} times: ${asked.join('\n')}`)
  }
}

const claim = (lock: DistributedLock): Promise<unknown> =>
  lock.acquire(`job ${++counter}`, { blockingTimeoutSeconds: 10 })

const ping = (lock: DistributedLock): Promise<unknown> => lock.ping()

async function assertRetryable(open: () => Promise<Driver>): Promise<void> {
  const { error } = await useOf(open, ping)
  assert.ok(error instanceof StoreError && error.retryable, String(error))
}

interface Used {
  readonly error: unknown
  /** What the driver answered to each call. */
  readonly told: readonly string[]
}

/**
 * On a machine that stalls, the store may not answer in time. That is not permanent, so it is opened and used again.
 */
async function useInTime(open: () => Promise<Driver>, use: Use): Promise<Used> {
  for (;;) {
    const used = await useOf(open, use)
    if (!(used.error instanceof StoreError && LATE.test(used.error.message))) return used
  }
}

const LATE = /in time|did not answer|no answer within/

type Use = (lock: DistributedLock) => Promise<unknown>

async function useOf(open: () => Promise<Driver>, use: Use): Promise<Used> {
  const told: string[] = []
  const note = <T>(answer: T): T => {
    told.push(String(answer))
    return answer
  }
  let driver: Driver | undefined
  try {
    const opened = await open()
    driver = opened
    const counting: Driver = {
      ...opened,
      acquire: (claims, call) =>
        opened.acquire(claims, call).then(note, (error: unknown) => {
          throw note(error)
        }),
    }
    await use(new DistributedLock({ driver: counting }))
    return { error: undefined, told }
  } catch (error) {
    return { error, told }
  } finally {
    await driver?.close()
  }
}

async function viaPostgres(url: string, create = postgresDriver): Promise<Driver> {
  const sql = postgres(url, { max: 2, onnotice: () => {} })
  const driver = create({ client: sql })
  return {
    ...driver,
    async close() {
      await driver.close()
      await sql.end({ timeout: 0 })
    },
  }
}
