import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, unique, until } from '../../harness/postgres-context.ts'

/** A day has 23 or 25 hours when the clocks change, so no duration may be kept or added in days. */

const HOUR_MS = 3_600_000
const TTL_MS = 30 * HOUR_MS
const schema = `zones_${randomBytes(6).toString('hex')}`
const url = inject('servers').postgres ?? ''

describe.each([
  ['loses an hour', 1],
  ['has an hour twice', 0],
])('postgres: in a time zone whose clock %s tomorrow', (_, first) => {
  let pool: pg.Pool
  let driver: Driver

  beforeAll(async () => {
    // Two rules: one of them applies tomorrow, the other half a year before.
    const days = [0, 183].map((ago) => dayOfYear(Date.now() + 24 * HOUR_MS - ago * 24 * HOUR_MS))
    const [summer, winter] = first === 1 ? days : days.toReversed()
    const zone = `AAA0BBB,J${summer}/3,J${winter}/3`
    pool = new pg.Pool({
      connectionString: url,
      max: 6,
      options: `-c search_path=${schema}_${first} -c timezone=${zone}`,
    })
    await migratePostgres({ client: pool, schema: `${schema}_${first}` })
    driver = postgresDriver({ client: pool, schema: `${schema}_${first}` })
    const { rows } = await pool.query(
      `SELECT extract(epoch FROM now() + interval '2 days')::float8 - extract(epoch FROM now())::float8 AS seconds`,
    )
    assert.equal(rows[0].seconds, 48 * 3_600 + (first === 1 ? -3_600 : 3_600), `the clock changes in ${zone}`)
  })
  afterAll(async () => {
    await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema}_${first} CASCADE`)
    await pool.end()
  })

  /** How long the lease on a name lasts from now on, in hours. */
  async function hoursOn(lockName: string): Promise<number> {
    const { rows } = await pool.query(
      `SELECT round((extract(epoch FROM expires_at) - extract(epoch FROM clock_timestamp())) / 3600)::float8 AS hours
       FROM distributed_locks WHERE lock_name = $1`,
      [lockName],
    )
    return rows[0]?.hours
  }
  const long = (lockName: string) => ({ ...claimOn(lockName), ttlMs: TTL_MS })

  /** Runs a call while another transaction has taken the name, and rolls that back after a while. */
  async function behind<T>(lockName: string, work: () => Promise<T>): Promise<T> {
    const open = await pool.connect()
    await open.query('BEGIN')
    await open.query(`SELECT acquire_lock($1, 'open')`, [lockName])
    const { pid } = (await open.query('SELECT pg_backend_pid() AS pid')).rows[0]
    const done = work()
    const blocked = 'SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))'
    await until('it to wait', async () => ((await pool.query(blocked, [pid])).rowCount ?? 0) > 0)
    await sleep(15) // Longer than the 10 ms after which a lease counts from the end of the wait.
    await open.query('ROLLBACK')
    open.release()
    return done
  }

  it('failure 71: a lease of 30 hours lasts 30 hours, alone, in a list, shared, and after a wait', async () => {
    const [alone, waited, shared, ...list] = ['alone', 'waited', 'shared', 'a', 'b'].map((name) => unique(name))
    assert.ok(alone && waited && shared)
    await granted(driver, long(alone))
    await granted(driver, { ...long(shared), mode: 'shared' })
    const call = `SELECT holdfast_acquire($1, $1, $1, '{f}', '{NULL}', '{1}', '{${TTL_MS}}', '{0}', '{NULL}', 'none',
      false, 20000)`
    await behind(waited, () => pool.query(call, [[waited]]))
    const lists = call.replaceAll(/\{(\w+)\}/g, '{$1,$1}')
    await behind(list[0] as string, () => pool.query(lists, [list]))
    for (const name of [alone, waited, shared, ...list]) assert.equal(await hoursOn(name), 30, name)
  })

  it('failure 71: so does one that is renewed, handed over, by force, in a group, or of acquire_lock', async () => {
    const [renewed, handed, forced, grouped, plain] = ['renewed', 'handed', 'forced', 'grouped', 'plain'].map((name) =>
      unique(name),
    ) as [string, string, string, string, string]
    const lease = claimOn(renewed)
    const { fencingToken } = await granted(driver, lease)
    await driver.renew([{ ...lease, fencingToken, ttlMs: TTL_MS }])
    const holder = claimOn(handed)
    await granted(driver, holder)
    await driver.acquire([{ ...long(handed), waiterTtlMs: TTL_MS }], newCall())
    await driver.release([holder])
    await granted(driver, { ...long(forced), forceUpTo: Number.MAX_SAFE_INTEGER })
    await granted(driver, { ...long(grouped), group: 'g' })
    await pool.query(`SELECT acquire_lock($1, 'psql', ${TTL_MS / 1_000})`, [plain])
    for (const name of [renewed, handed, forced, grouped, plain]) assert.equal(await hoursOn(name), 30, name)
    // A claim that asks for it looks whether its end is too far away.
    for (const name of [renewed, handed, forced, grouped, plain]) {
      await driver.acquire([claimOn(name), claimOn(name, 60_000)], newCall())
      assert.equal(await hoursOn(name), 30, name)
    }
  })
})

/** The day of the year as a POSIX time zone counts it with J: 1 to 365, without 29 February. */
function dayOfYear(ms: number): number {
  const date = new Date(ms)
  const common = Date.UTC(2001, date.getUTCMonth(), Math.min(date.getUTCDate(), date.getUTCMonth() === 1 ? 28 : 31))
  return (common - Date.UTC(2001, 0, 1)) / (24 * HOUR_MS) + 1
}
