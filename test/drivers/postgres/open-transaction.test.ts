import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { migratePostgres, type PostgresClient, postgresDriver } from '../../../src/drivers/postgres.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, leasesOn, unique } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
const schema = `open_${randomBytes(6).toString('hex')}`
let pool: pg.Pool
let other: Driver

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: url, max: 4 })
  await migratePostgres({ client: pool, schema })
  other = postgresDriver({ client: pool, schema })
})
afterAll(async () => {
  await other.close()
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

/** A client whose next statement runs inside a transaction that the caller has begun. */
interface Opened {
  readonly client: PostgresClient
  begin(): Promise<unknown>
  rollback(): Promise<unknown>
  end(): Promise<void>
}

const clients: Record<string, () => Promise<Opened>> = {
  async 'a Client of pg after BEGIN'() {
    const client = new pg.Client(url)
    await client.connect()
    const [begin, rollback] = ['BEGIN', 'ROLLBACK'].map((text) => () => client.query(text)) as [
      () => Promise<unknown>,
      () => Promise<unknown>,
    ]
    return { client, begin, rollback, end: () => client.end() }
  },
  async 'a Pool of pg that was given a client back after BEGIN'() {
    const client = new pg.Pool({ connectionString: url, max: 1 })
    const on = async (text: string): Promise<void> => {
      const taken = await client.connect()
      await taken.query(text)
      taken.release()
    }
    return { client, begin: () => on('BEGIN'), rollback: () => on('ROLLBACK'), end: () => client.end() }
  },
  async 'postgres with one connection after BEGIN'() {
    const client = postgres(url, { max: 1, onnotice: () => {} })
    const on = (text: string) => async () => await client.unsafe(text)
    return { client, begin: on('BEGIN'), rollback: on('ROLLBACK'), end: () => client.end() }
  },
}

const refused = { code: 'STORE_UNAVAILABLE', message: /inside a transaction that your code has begun/ }

describe.each(Object.entries(clients))('postgres: %s', (_, open) => {
  it('failure 40: a grant that the caller could roll back is refused, and nothing is held', async () => {
    const { client, begin, rollback, end } = await open()
    const driver = postgresDriver({ client, schema })
    const claim = claimOn(unique('grant'))
    await driver.inspect({})
    for (const claims of [
      [claim],
      [claim, claimOn(unique('other'))],
      [{ ...claim, forceUpTo: Number.MAX_SAFE_INTEGER }],
    ]) {
      await begin()
      await assert.rejects(async () => {
        for (const answer of await driver.acquire(claims, newCall())) if (answer instanceof Error) throw answer
      }, refused)
      await rollback()
      assert.deepEqual(await leasesOn(other, claim.lockName), [])
    }
    await granted(driver, claim)
    await driver.close()
    await end()
  })

  it('failure 40: the caller cannot roll back a renewal or a release', async () => {
    const { client, begin, rollback, end } = await open()
    const driver = postgresDriver({ client, schema })
    const claim = claimOn(unique('release'))
    const { fencingToken } = await granted(driver, claim)
    const endOf = async () => (await leasesOn(other, claim.lockName))[0]?.expiresAtMs ?? 0
    const beforeMs = await endOf()
    await begin()
    assert.deepEqual(await driver.renew([{ ...claim, fencingToken, ttlMs: 120_000 }]), ['renewed'])
    await rollback()
    assert.ok((await endOf()) >= beforeMs + 50_000)
    await begin()
    assert.deepEqual(await driver.release([{ ...claim, fencingToken }]), [true])
    await rollback()
    assert.deepEqual(await leasesOn(other, claim.lockName), [])
    await driver.close()
    await end()
  })

  it('failure 40: a rate-limiting step that the caller could roll back is refused, and takes nothing', async () => {
    const { client, begin, rollback, end } = await open()
    const driver = postgresDriver({ client, schema })
    const request = { name: unique('rate'), cost: 1, limits: [{ limit: 1, periodMs: 3_600_000, burst: 1 }] }
    const consume = async (): Promise<boolean> => {
      const [answer] = (await driver.consume?.([request])) ?? []
      if (answer instanceof Error) throw answer
      return answer?.allowed === true
    }
    await driver.inspect({})
    await begin()
    await assert.rejects(consume(), refused)
    await rollback()
    assert.equal(await consume(), true)
    assert.equal(await consume(), false)
    await driver.close()
    await end()
  })
})

describe('postgres: transactions of the application', () => {
  it('a claim that waits continues on another connection of the pool', async () => {
    const client = new pg.Pool({ connectionString: url, max: 2 })
    const driver = postgresDriver({ client, schema })
    await driver.inspect({})
    const taken = await client.connect()
    await taken.query('BEGIN')
    taken.release()
    const lock = new DistributedLock({ driver })
    const lease = await lock.hold(unique('retried'), { blockingTimeoutSeconds: 10 })
    assert.equal((await leasesOn(other, lease.lockName))[0]?.fencingToken, lease.fencingToken)
    await lock.close()
    await driver.close()
    await client.end()
  })

  it('a transaction on the Client is left alone, and even a claim that waits gets the error at once', async () => {
    const client = new pg.Client(url)
    await client.connect()
    const driver = postgresDriver({ client, schema })
    const lock = new DistributedLock({ driver })
    await driver.inspect({})
    await client.query('BEGIN')
    await client.query('CREATE TEMP TABLE written (x int)')
    await assert.rejects(lock.hold(unique('client'), { blockingTimeoutSeconds: 600 }), refused)
    await client.query('COMMIT')
    assert.equal((await client.query('SELECT FROM written')).rowCount, 0)
    await lock.close()
    await driver.close()
    await client.end()
  })

  it('a transaction of postgres is refused as a client', async () => {
    const sql = postgres(url, { max: 1, onnotice: () => {} })
    await sql.begin(async (transaction) => {
      const client = transaction as unknown as PostgresClient
      assert.throws(() => postgresDriver({ client, schema }), { code: 'INVALID_ARGUMENT', message: /^client must be/ })
    })
    await sql.end()
  })

  it('acquire_lock as the first statement of a transaction locks only the row of its own name', async () => {
    const own = `${schema}_sweep`
    await migratePostgres({ client: pool, schema: own })
    const ended = ['ended:1', 'ended:2', 'ended:3']
    await pool.query(
      `INSERT INTO ${own}.distributed_locks (lock_name, holder_id, acquired_at, expires_at, contended)
       SELECT name, 'dead', now() - interval '1 minute', now() - interval '30 s', name = 'ended:3'
       FROM unnest($1::text[]) AS name`,
      [ended],
    )
    const client = await pool.connect()
    await client.query('BEGIN')
    const { rows } = await client.query(`SELECT ${own}.acquire_lock('mine', 'psql') AS got`)
    assert.deepEqual(rows, [{ got: true }])
    const free = `SELECT lock_name FROM ${own}.distributed_locks ORDER BY lock_name FOR UPDATE SKIP LOCKED`
    assert.deepEqual(
      (await pool.query(free)).rows.map(({ lock_name }) => lock_name),
      ended,
    )
    await client.query('ROLLBACK')
    client.release()
    await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${own} CASCADE`)
  })

  it('acquire_lock and release_lock run in any transaction', async () => {
    const client = await pool.connect()
    const name = unique('plain')
    await client.query(`BEGIN; SET LOCAL search_path TO ${schema}`)
    const call = async (text: string) => (await client.query(`SELECT ${text} AS was`, [name])).rows[0].was
    assert.equal(await call(`acquire_lock($1, 'psql')`), true)
    assert.equal(await call(`release_lock($1, 'psql')`), true)
    await client.query('COMMIT')
    client.release()
  })
})
