import assert from 'node:assert/strict'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { connectionsOf, type PostgresClient } from '../../../src/drivers/postgres/client.ts'
import { pgConfig, postgresConfig, postgresUrl } from '../../../src/drivers/postgres/url.ts'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { connect } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, grantOn } from '../../harness/postgres-context.ts'

const database = `urls ${process.pid} 50%/ü "x"`
const quoted = `"${database.replaceAll('"', '""')}"`
let admin: pg.Client
let place: string

beforeAll(async () => {
  const url = inject('servers').postgres ?? ''
  place = url.slice(0, url.lastIndexOf('/'))
  admin = new pg.Client({ connectionString: url })
  await admin.connect()
  await admin.query(`CREATE DATABASE ${quoted}`)
})

afterAll(async () => {
  await admin.query(`DROP DATABASE ${quoted} WITH (FORCE)`)
  await admin.end()
})

describe('postgres: a database whose name needs encoding in a URL', () => {
  it('is opened by both clients', async () => {
    const { target } = postgresUrl(`${place}/${encodeURIComponent(database)}`)
    const pool = new pg.Pool({ ...pgConfig(target), max: 1 })
    const { url, options } = postgresConfig(target)
    const sql = postgres(url, { ...options, max: 1 })
    for (const client of [pool, sql as unknown as PostgresClient]) {
      const [row] = await connectionsOf(client).query('SELECT current_database() AS name', [])
      assert.equal(row?.['name'], database)
    }
    await pool.end()
    await sql.end()
  })

  it('has the locks, and two spellings of its URL exclude each other', async () => {
    const [a, b] = [encodeURIComponent(database), encodeURIComponent(database).replaceAll('%20', ' ')]
    const [one, other] = [await connect(`${place}/${a}`), await connect(`${place.replace('127.0.0.1', '127.1')}/${b}`)]
    assert.ok(await grantOn(one, 'name'))
    const [refused] = await other.acquire([claimOn('name')], newCall())
    assert.ok(refused && 'granted' in refused && !refused.granted, String(refused))
    const elsewhere = new pg.Pool({ connectionString: `${place}/postgres`, max: 1 })
    assert.deepEqual((await postgresDriver({ client: elsewhere }).inspect({ lockName: 'name' })).leases, [])
    await elsewhere.end()
    await one.close()
    await other.close()
  })
})
