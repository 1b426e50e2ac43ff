import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, expect, inject, it } from 'vitest'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { DistributedLock, StoreError } from '../../../src/index.ts'
import { createStore, SLOW } from '../../harness/cli.ts'
import { unique } from '../../harness/postgres-context.ts'

/** Rows that other clients wrote. Found by chaos/fuzz. */

const url = inject('servers').postgres ?? ''
const schema = `odd_${randomBytes(6).toString('hex')}`
let pool: pg.Pool
let lock: DistributedLock
beforeAll(async () => {
  pool = new pg.Pool({ connectionString: url, max: 4 })
  await pool.query(`CREATE SCHEMA ${schema}`)
  lock = new DistributedLock({ driver: postgresDriver({ client: pool, schema }) })
  await migratePostgres({ client: pool, schema })
})
afterAll(async () => {
  await lock.close()
  await pool.query(`DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

it.each([
  [`expires_at = 'infinity'`],
  [`claim_id = NULL, ttl_ms = NULL, expires_at = 'infinity'`],
  [`claim_id = NULL, ttl_ms = NULL, acquired_at = '-infinity', expires_at = 'infinity'`],
  [`expires_at = '294276-12-31', ttl_ms = 'NaN'`],
  [`fencing_token = 9223372036854775807`],
  [`fencing_token = -1`],
  [`metadata = '[1]'`],
  [`metadata = '"text"'`],
  ['metadata of 2,000 levels', `metadata = '${'{"a":'.repeat(2_000)}1${'}'.repeat(2_000)}'`],
  ['a number of 5,000 digits', `metadata = '{"n": ${'7'.repeat(5_000)}, "m": 1}'`],
])(
  'postgres: a lease that another client wrote with %s is contention, and is shown',
  SLOW,
  async (title, set = title) => {
    const name = unique('odd')
    assert.ok((await lock.acquire(name, { timeoutSeconds: 600 })).acquired)
    await pool.query(`UPDATE ${schema}.distributed_locks SET ${set} WHERE lock_name = $1`, [name])
    const refused = await lock.acquire(name)
    assert.ok(!refused.acquired)
    expect(refused.holder?.expiresAt.getTime()).not.toBeNaN()
    const waited = await lock.acquire(name, { blockingTimeoutSeconds: 0.2 })
    expect(waited.acquired).toBe(false)
    const { leases } = await lock.inspect(name)
    expect(leases[0]?.expiresAt?.getTime()).not.toBeNaN()
    expect(Number.isSafeInteger(leases[0]?.fencingToken)).toBe(true)
    expect(Array.isArray(leases[0]?.metadata)).toBe(false)
    await using store = createStore()
    const separator = url.includes('?') ? '&' : '?'
    const { code, stderr, stdout } = await store.run(['ls', '--url', `${url}${separator}holdfast_schema=${schema}`])
    expect(code, stderr).toBe(0)
    expect(stdout).toContain(name)
  },
)

it.each([
  ['no row', []],
  ['a row without a page', [{}]],
  ['a page that is no JSON', [{ page: '\u0000{' }]],
])('postgres: %s as the answer to inspect is an error with a code, also without an instance', async (_, rows) => {
  // The client of a server that answers the right version, and then anything.
  const query = async ({ text }: { text: string }) => ({ rows: text.includes('version') ? [{ version: 99 }] : rows })
  const client = { query, connect: () => {}, on() {}, end: async () => {}, totalCount: 0 }
  const driver = postgresDriver({ client: client as never, migrate: false })
  await expect(driver.inspect({})).rejects.toBeInstanceOf(StoreError)
})
