import assert from 'node:assert/strict'
import pg from 'pg'
import { describe, it } from 'vitest'
import {
  migratePostgres,
  migrationScript,
  openPostgres,
  type PostgresTransaction,
  postgresDriver,
  postgresFence,
} from '../../../src/drivers/postgres.ts'
import { openPostgresAdvisory, postgresAdvisoryDriver } from '../../../src/drivers/postgres-advisory.ts'

// Nothing listens on this port: a test that sends something fails with another error than the expected one.
const url = 'postgres://postgres@127.0.0.1:1/postgres'
const client = new pg.Pool({ connectionString: url })
const refused = (argument: string, value: unknown) => ({ code: 'INVALID_ARGUMENT', argument, value })

describe('postgres: bad arguments are refused by name, before anything is sent', () => {
  it('a schema name that PostgreSQL would truncate, or cannot store', async () => {
    for (const schema of ['', 'x'.repeat(64), 'ü'.repeat(32), 'a\0', 'a\ud800', 7, null]) {
      const wrong = refused('schema', schema)
      assert.throws(() => postgresDriver({ client, schema: schema as string }), wrong)
      assert.throws(() => migrationScript(schema as string), wrong)
      await assert.rejects(migratePostgres({ client, schema: schema as string }), wrong)
      const transaction = { query: () => assert.fail('sent') } as unknown as PostgresTransaction
      await assert.rejects(postgresFence(transaction, 'r', 1, { schema: schema as string }), wrong)
    }
    assert.match(migrationScript('ü'.repeat(31)), /"üüü/)
  })

  it('options of a wrong type, and a client of an unknown kind', async () => {
    assert.throws(() => postgresDriver({ client, migrate: 'no' as never }), refused('migrate', 'no'))
    assert.throws(() => postgresDriver({ client, durability: 'on' as never }), refused('durability', 'on'))
    for (const wrong of [null, undefined, 7, {}, 'postgres:']) {
      // The error only describes an object: one that resembles a client may contain a password.
      const shown = typeof wrong === 'object' && wrong !== null ? 'an object (Object)' : wrong
      assert.throws(() => postgresDriver({ client: wrong as never }), refused('client', shown))
      assert.throws(() => postgresAdvisoryDriver({ client: wrong as never }), refused('client', shown))
    }
    for (const create of [postgresDriver, postgresAdvisoryDriver] as (() => unknown)[]) {
      assert.throws(() => create(), refused('options', undefined))
    }
    for (const most of [-1, 1.5, 101, '8']) {
      const options = { client, maxWaitingConnections: most as number }
      assert.throws(() => postgresAdvisoryDriver(options), refused('maxWaitingConnections', most))
    }
  })

  it('unknown parameters of a URL, and those of the other driver', async () => {
    await assert.rejects(openPostgres(`${url}?holdfast_shema=a`), refused('url parameter', 'holdfast_shema'))
    const migrate = refused('url parameter holdfast_migrate', 'no')
    await assert.rejects(openPostgres(`${url}?holdfast_migrate=no`), migrate)
    await assert.rejects(openPostgres(`${url}?holdfast_durability=on`), refused('durability', 'on'))
    await assert.rejects(openPostgresAdvisory(`${url}?holdfast_schema=a`), refused('url parameter', 'holdfast_schema'))
  })

  it('a resource of the fencing guard that cannot be stored unchanged', async () => {
    const transaction = { query: () => assert.fail('sent') } as unknown as PostgresTransaction
    for (const resource of ['', 'a\0', 'a\ud800', 7]) {
      await assert.rejects(postgresFence(transaction, resource as string, 1), refused('resource', resource))
    }
  })
})
