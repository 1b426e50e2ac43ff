import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { FORMAT } from '../../../src/drivers/postgres/migrate.ts'
import {
  migratePostgres,
  migrationScript,
  openPostgres,
  postgresDriver,
  postgresFence,
} from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/postgres-context.ts'
import { type Server, startPostgres } from '../../harness/servers.ts'

let server: Server
let pool: pg.Pool
beforeAll(async () => {
  server = await startPostgres()
  pool = new pg.Pool({ connectionString: server.url, max: 10 })
})
afterAll(async () => {
  await pool.end()
  await server[Symbol.asyncDispose]()
})

describe.concurrent('postgres: migrations', () => {
  it('50 instances that start at once create one schema, without an error', async () => {
    const schema = unique()
    const ran = await Promise.all(Array.from({ length: 50 }, () => migratePostgres({ client: pool, schema })))
    assert.equal(ran.filter(Boolean).length, 1)
    const drivers = Array.from({ length: 50 }, () => postgresDriver({ client: pool, schema }))
    const grants = (await Promise.all(drivers.map((driver) => grantOn(driver, 'one')))).filter(Boolean)
    assert.equal(grants.length, 1)
  })

  it('50 first calls at once migrate by themselves', async () => {
    const schema = unique()
    const drivers = Array.from({ length: 50 }, () => postgresDriver({ client: pool, schema }))
    const grants = (await Promise.all(drivers.map((driver) => grantOn(driver, 'one')))).filter(Boolean)
    assert.equal(grants.length, 1)
  })

  it('50 instances that start at once migrate one after the other, also if SERIALIZABLE is the default', async () => {
    const options = '-c default_transaction_isolation=serializable'
    const strict = new pg.Pool({ connectionString: server.url, max: 10, options })
    const schema = unique()
    const drivers = Array.from({ length: 50 }, () => postgresDriver({ client: strict, schema }))
    const grants = (await Promise.all(drivers.map((driver) => grantOn(driver, 'one')))).filter(Boolean)
    assert.equal(grants.length, 1)
    await strict.end()
  })

  it('the fence can be migrated alone, repeatedly, and the rest later', async () => {
    const schema = unique()
    const tablesOf = async (): Promise<unknown[]> => {
      const text = 'SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY tablename'
      return (await pool.query(text, [schema])).rows.map(({ tablename }) => tablename)
    }
    // A client of its own: one of the pool that a failed test does not return would keep the pool from ending.
    const client = new pg.Client({ connectionString: server.url })
    await client.connect()
    const fence = (token: number): Promise<void> => postgresFence(client, 'account:7', token, { schema })
    await client.query('BEGIN')
    await assert.rejects(fence(1), {
      code: 'STORE_UNAVAILABLE',
      retryable: false,
      message: new RegExp(
        `has no holdfast_fence, or an old one: run "holdfast migrate --only fence --schema ${schema}"`,
      ),
    })
    await client.query('ROLLBACK')
    assert.equal(await migratePostgres({ client: pool, schema, only: 'fence' }), true)
    assert.equal(await migratePostgres({ client: pool, schema, only: 'fence' }), true)
    assert.deepEqual(await tablesOf(), ['holdfast_fences'])
    await client.query('BEGIN')
    await fence(7)
    await client.query('COMMIT; BEGIN')
    await assert.rejects(fence(6), { code: 'STALE_TOKEN' })
    await client.query('ROLLBACK')
    assert.equal(await migratePostgres({ client: pool, schema }), true)
    assert.ok((await tablesOf()).includes('distributed_locks'))
    await client.query('BEGIN')
    await assert.rejects(fence(6), { code: 'STALE_TOKEN' }, 'the largest token is remembered')
    await client.query('ROLLBACK')
    await client.end()
    assert.equal(await migratePostgres({ client: pool, schema, only: 'fence' }), false)
    await assert.rejects(migratePostgres({ client: pool, schema, only: 'locks' as never }), { argument: 'only' })
  })

  it('the printed SQL can be run again', async () => {
    const schema = unique()
    await runScript(migrationScript(schema))
    await runScript(migrationScript(schema))
    assert.equal(await migratePostgres({ client: pool, schema }), false)
  })

  it('tables of a newer version are used as they are, and no script brings them back', async () => {
    const schema = unique()
    await migratePostgres({ client: pool, schema })
    await pool.query(`UPDATE ${schema}.holdfast_format SET version = version + 1`)
    const driver = postgresDriver({ client: pool, schema })
    assert.ok((await grantOn(driver, 'a')) !== undefined)
    assert.equal(await migratePostgres({ client: pool, schema }), false)
    await assert.rejects(runScript(migrationScript(schema)), /version 2, and this script would bring them back to/)
    // A newer version may have replaced a procedure.
    await pool.query(`DROP PROCEDURE ${schema}.holdfast_call_acquire`)
    await assert.rejects(grantOn(driver, 'a'), { code: 'STORE_UNAVAILABLE', message: /Upgrade Holdfast/ })
  })

  it('the version of the files is the one that a client looks for', async () => {
    const schema = unique()
    await migratePostgres({ client: pool, schema })
    const { rows } = await pool.query(`SELECT version FROM ${schema}.holdfast_format`)
    assert.deepEqual(rows, [{ version: FORMAT }])
  })

  it('the printed SQL is ASCII, and a database in LATIN1 can be migrated', async () => {
    // biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII
    assert.match(migrationScript('public'), /^[\x00-\x7f]*$/)
    const database = unique()
    await pool.query(`CREATE DATABASE ${database} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0`)
    const latin = new pg.Pool({ connectionString: server.url.replace(/\/[^/]*$/, `/${database}`), max: 2 })
    const driver = postgresDriver({ client: latin })
    assert.ok((await grantOn(driver, 'caf\u00e9')) !== undefined)
    await latin.end()
  })

  it('a plain table with live rows and the two old functions is brought up to date, and keeps its rows', async () => {
    const schema = unique()
    await pool.query(PLAIN(schema))
    const old = async (call: string) => Object.values((await pool.query(`SELECT ${schema}.${call}`)).rows[0])[0]
    assert.equal(await old(`acquire_lock('held', 'old-client', 60, '{"job": 1}')`), true)
    assert.equal(await old(`acquire_lock('ended', 'old-client', -1)`), true)
    const before = await rowsOf(schema)

    const driver = postgresDriver({ client: pool, schema })
    const { leases } = await driver.inspect({})
    assert.deepEqual(
      leases.map(({ lockName, holderId, metadata }) => ({ lockName, holderId, metadata })),
      [{ lockName: 'held', holderId: 'old-client', metadata: { job: 1 } }],
    )
    assert.deepEqual(await rowsOf(schema), before)
    assert.equal(await grantOn(driver, 'held'), undefined)
    const token = await grantOn(driver, 'ended')
    assert.ok(token !== undefined && token > Date.now() * 1_000, 'tokens start above the clock in microseconds')
    assert.equal(await old(`acquire_lock('held', 'old-client', 60)`), true)
    assert.equal(await old(`release_lock('held', 'old-client')`), true)
    assert.ok((await grantOn(driver, 'held')) !== undefined)
    assert.equal(await old(`acquire_lock('held', 'old-client')`), false)
  })

  it('failure 46: a transaction that has read the table delays the migration, but no plain client', async () => {
    const schema = unique()
    await pool.query(PLAIN(schema))
    const reader = await pool.connect()
    await reader.query(`BEGIN; SELECT FROM ${schema}.distributed_locks`)
    let migrated = false
    const migrating = migratePostgres({ client: pool, schema }).then(() => {
      migrated = true
    })
    const blocked = `SELECT FROM pg_locks WHERE relation = '${schema}.distributed_locks'::regclass AND NOT granted`
    for (let tries = 0; tries < 3; tries += 1) {
      await until('the migration to wait for the table', async () => ((await pool.query(blocked)).rowCount ?? 0) > 0)
      const { rows } = await pool.query(`SELECT ${schema}.acquire_lock('held', 'old-client') AS got`)
      assert.deepEqual(rows, [{ got: true }])
    }
    assert.equal(migrated, false)
    await reader.query('COMMIT')
    reader.release()
    await migrating
    assert.equal(await migratePostgres({ client: pool, schema }), false)
  })

  it('old functions that took text instead of varchar do not stay beside the new ones', async () => {
    const schema = unique()
    await pool.query(PLAIN(schema).replaceAll('VARCHAR,', 'TEXT,'))
    await migratePostgres({ client: pool, schema })
    const { rows } = await pool.query(`SELECT ${schema}.acquire_lock('a', 'b') AS got`)
    assert.equal(rows[0].got, true)
  })

  it('functions of the application with the same name but other arguments stay', async () => {
    const schema = unique()
    await pool.query(`CREATE SCHEMA ${schema};
      CREATE FUNCTION ${schema}.acquire_lock(bigint) RETURNS text LANGUAGE sql AS 'SELECT $1::text';
      CREATE FUNCTION ${schema}.release_lock(text, integer) RETURNS boolean LANGUAGE sql AS 'SELECT true';
      CREATE FUNCTION ${schema}.release_lock(text) RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
    await migratePostgres({ client: pool, schema })
    const text = `SELECT ${schema}.acquire_lock(7::bigint) AS a,
      ${schema}.release_lock('x', 1) AS b, ${schema}.release_lock('x') AS c`
    assert.deepEqual((await pool.query(text)).rows, [{ a: '7', b: true, c: true }])
  })

  it('a role without CREATE works after the migration, and before it the error says what to run', async () => {
    const [schema, role] = [unique(), unique()]
    await pool.query(`CREATE ROLE ${role} LOGIN; CREATE SCHEMA ${schema}; GRANT USAGE ON SCHEMA ${schema} TO ${role}`)
    const url = `${server.url.replace('postgres@', `${role}@`)}?holdfast_schema=${schema}`
    const early = await openPostgres(url)
    await assert.rejects(early.inspect({}), /holdfast migrate --schema/)
    await runScript(migrationScript(schema))
    await assert.rejects(early.inspect({}), /A role of its own/)
    await pool.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO ${role};
      GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role}`)
    assert.ok((await grantOn(early, 'a')) !== undefined)
    await early.close()
  })

  it('a driver that may not migrate says so', async () => {
    const driver = postgresDriver({ client: pool, schema: unique(), migrate: false })
    await assert.rejects(driver.inspect({}), { code: 'STORE_UNAVAILABLE', message: /holdfast migrate/ })
  })

  it.each(['"quoted"', '$$', '$holdfast$', '$holdfast_$ $holdfast$', "'; --", 'two\nlines', ':"schema"', '%1$I \\'])(
    'a schema can have a name with %j in it',
    async (odd) => {
      const schema = `${odd} ${unique()}`
      await runScript(migrationScript(schema))
      assert.equal(await migratePostgres({ client: pool, schema }), false)
      const driver = postgresDriver({ client: pool, schema })
      assert.ok((await grantOn(driver, 'a')) !== undefined)
      await pool.query(`DROP SCHEMA "${schema.replaceAll('"', '""')}" CASCADE`)
      assert.ok((await grantOn(postgresDriver({ client: pool, schema }), 'a')) !== undefined)
    },
  )

  it('a dropped schema is created again with higher tokens', async () => {
    const schema = unique()
    const driver = postgresDriver({ client: pool, schema })
    const first = await grantOn(driver, 'a')
    await pool.query(`DROP SCHEMA "${schema.replaceAll('"', '""')}" CASCADE`)
    await assert.rejects(grantOn(driver, 'a'), { code: 'STORE_UNAVAILABLE' })
    const second = await grantOn(driver, 'a')
    assert.ok(first !== undefined && second !== undefined && second > first)
  })

  it('a raise of the counter that is canceled at the moment of its turn keeps no lock, in 200 rounds', async () => {
    const schema = unique()
    await migratePostgres({ client: pool, schema })
    const [holder, raiser] = [new pg.Client(server.url), new pg.Client(server.url)]
    await Promise.all([holder.connect(), raiser.connect()])
    await raiser.query(`SET search_path TO ${schema}`)
    const { pid } = (await raiser.query('SELECT pg_backend_pid() AS pid')).rows[0]
    for (let round = 0; round < 200; round += 1) {
      await holder.query(`SELECT setval('${schema}.holdfast_tokens', 1), pg_advisory_lock(7813544519228563561)`)
      const raised = raiser.query('SELECT holdfast_raise_tokens()').catch(() => {})
      const waits = `SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = $1`
      while ((await holder.query(waits, [pid])).rowCount === 0);
      // In one statement, so that both reach the other session together.
      await holder.query('SELECT pg_advisory_unlock(7813544519228563561), pg_cancel_backend($1)', [pid])
      await raised
      const held = `SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = $1`
      assert.equal((await holder.query(held, [pid])).rowCount, 0, `round ${round}`)
    }
    await Promise.all([holder.end(), raiser.end()])
  })

  it('tokens rise for 20 connections at once, over a raise of the counter, and none is given twice', async () => {
    const schema = unique()
    const driver = postgresDriver({ client: pool, schema })
    await driver.inspect({})
    // As if the second by which the counter is ahead were over: the next draw has to raise it.
    const lower = `SELECT setval('${schema}.holdfast_tokens',
      (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 5000)`
    const seen: number[] = []
    await pool.query(lower)
    const drawers = Array.from({ length: 20 }, () => postgresDriver({ client: pool, schema }))
    await Promise.all(
      drawers.map(async (drawer, index) => {
        for (let round = 0; round < 5; round += 1) seen.push((await grantOn(drawer, `${index}:${round}`)) ?? 0)
      }),
    )
    assert.equal(new Set(seen).size, 100)
    assert.ok(Math.min(...seen) > Date.now() * 1_000)
  })
})

const unique = (): string => `s_${randomBytes(6).toString('hex')}`

let claims = 0
async function grantOn(driver: Driver, lockName: string): Promise<number | undefined> {
  claims += 1
  const claim = {
    lockName,
    claimId: `c${claims}`,
    holderId: 'h',
    mode: 'exclusive',
    permits: 1,
    ttlMs: 60_000,
    waiterTtlMs: 0,
  } as const
  const [answer] = await driver.acquire([claim], newCall())
  return answer && 'granted' in answer && answer.granted ? answer.fencingToken : undefined
}

/** As psql or a migration tool would run it: after a lock timeout it is run again. */
async function runScript(script: string): Promise<void> {
  const client = await pool.connect()
  try {
    for (;;) {
      const error: unknown = await client.query(script).then(
        () => undefined,
        (reason: unknown) => reason,
      )
      if (error === undefined) return
      await client.query('ROLLBACK')
      if ((error as { code?: string }).code !== '55P03') throw error
    }
  } finally {
    client.release()
  }
}

const rowsOf = async (schema: string) =>
  (
    await pool.query(
      `SELECT lock_name, holder_id, acquired_at, expires_at, metadata
       FROM ${schema}.distributed_locks ORDER BY lock_name`,
    )
  ).rows

/** The hand-written table and functions that many teams have. */
const PLAIN = (schema: string): string => `
  CREATE SCHEMA ${schema};
  SET LOCAL search_path TO ${schema};
  CREATE TABLE distributed_locks (lock_name VARCHAR(255) PRIMARY KEY, holder_id VARCHAR(255) NOT NULL,
    acquired_at TIMESTAMPTZ NOT NULL DEFAULT NOW(), expires_at TIMESTAMPTZ NOT NULL, metadata JSONB);
  CREATE INDEX idx_distributed_locks_expires_at ON distributed_locks (expires_at);
  CREATE FUNCTION acquire_lock(
    p_lock_name VARCHAR, p_holder_id VARCHAR, p_ttl_seconds INTEGER DEFAULT 30, p_metadata JSONB DEFAULT '{}')
  RETURNS BOOLEAN LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
  BEGIN
    DELETE FROM distributed_locks WHERE lock_name = p_lock_name AND expires_at < NOW();
    INSERT INTO distributed_locks
    VALUES (p_lock_name, p_holder_id, NOW(), NOW() + p_ttl_seconds * interval '1 second', p_metadata)
    ON CONFLICT (lock_name) DO UPDATE SET expires_at = excluded.expires_at
    WHERE distributed_locks.holder_id = p_holder_id;
    RETURN FOUND;
  END $$;
  CREATE FUNCTION release_lock(p_lock_name VARCHAR, p_holder_id VARCHAR)
  RETURNS BOOLEAN LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
  BEGIN
    DELETE FROM distributed_locks WHERE lock_name = p_lock_name AND holder_id = p_holder_id;
    RETURN FOUND;
  END $$;`
