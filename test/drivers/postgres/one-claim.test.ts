import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { claimOn, granted, leasesOn, unique, until } from '../../harness/postgres-context.ts'

/** A claim on a free name: it may have to wait for a row that is not committed, and to raise the counter. */

const schema = `one_${randomBytes(6).toString('hex')}`
let pool: pg.Pool
let driver: Driver

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: inject('servers').postgres ?? '', max: 4 })
  await migratePostgres({ client: pool, schema })
  // So that a slow machine does not end the wait.
  await pool.query(`ALTER FUNCTION ${schema}.holdfast_acquire SET lock_timeout = '20s'`)
  driver = postgresDriver({ client: pool, schema })
})
afterAll(async () => {
  await driver.close()
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

describe('postgres: one claim', () => {
  it('rules 1 and 8: a grant that waited for its row has a later time and token than a holder in between', async () => {
    const claim = claimOn(unique('overtaken'))
    const open = await pool.connect()
    await open.query(`BEGIN; SET LOCAL search_path TO ${schema}`)
    await open.query(`SELECT acquire_lock($1, 'open')`, [claim.lockName])
    const acquiring = granted(driver, claim)
    const { pid } = (await open.query('SELECT pg_backend_pid() AS pid')).rows[0]
    const blocked = 'SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))'
    await until('it to wait, with its token drawn', async () => (await pool.query(blocked, [pid])).rowCount)
    await sleep(50) // so that early and late differ
    const force = `SELECT fencing_token::float8 AS token, extract(epoch FROM clock_timestamp())::float8 * 1000 AS now
      FROM holdfast_acquire_by_force($1, 'between', 'open', 60000, NULL, false, NULL)`
    const { token, now } = (await open.query(force, [claim.lockName])).rows[0]
    await open.query(`SELECT holdfast_change_leases(ARRAY[$1], '{between}', ARRAY[$2::bigint], NULL, false)`, [
      claim.lockName,
      token,
    ])
    await open.query('COMMIT')
    open.release()
    const grant = await acquiring
    assert.ok(grant.fencingToken > token, `${grant.fencingToken} after ${token}`)
    assert.ok(Number(grant.acquiredAtMs) >= now, `${grant.acquiredAtMs} after ${now}`)
    const [lease] = await leasesOn(driver, claim.lockName)
    assert.equal(lease?.fencingToken, grant.fencingToken)
    assert.ok(Number(lease?.expiresAtMs) >= now + claim.ttlMs)
  })

  it('rule 8: a free name gets no token from a counter that was not raised in this run of the server', async () => {
    const before = await granted(driver, claimOn(unique('before')))
    // As on a replica that lagged when it was promoted: the counter and the run are older.
    await pool.query(`SELECT setval('${schema}.holdfast_tokens', $1::bigint - 50000000)`, [before.fencingToken])
    await pool.query(`SELECT setval('${schema}.holdfast_raised', 1)`)
    const after = await granted(driver, claimOn(unique('after')))
    assert.ok(after.fencingToken > before.fencingToken, `${after.fencingToken} after ${before.fencingToken}`)
  })
})
