import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, leasesOn, unique, until } from '../../harness/postgres-context.ts'

const schema = `force_${randomBytes(6).toString('hex')}`
let pool: pg.Pool
beforeAll(async () => {
  const options = `-c search_path=${schema}`
  pool = new pg.Pool({ connectionString: inject('servers').postgres ?? '', max: 4, options })
  await driver().inspect({})
})
afterAll(async () => {
  await pool.query(`DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

describe('postgres: force_release_lock', () => {
  it('ends every shared lease, records each, and hands over to the waiting writer', async () => {
    const name = unique('readers')
    const readers = [1, 2, 3].map(() => ({ ...claimOn(name), mode: 'shared' as const }))
    const writer = claimOn(name, 60_000)
    await driver().acquire(readers, newCall())
    await driver().acquire([writer], newCall())
    assert.equal(await force(name, 'ada'), 3)
    const leases = await leasesOn(driver(), name)
    assert.deepEqual(
      leases.map(({ claimId, mode }) => ({ claimId, mode })),
      [{ claimId: writer.claimId, mode: 'exclusive' }],
    )
    assert.deepEqual(await recorded(name), readers.map(({ claimId }) => claimId).sort())
  })

  it('does not end leases that are granted while it ends the ones before them', async () => {
    const name = unique('permits')
    const permit = (waiterTtlMs: number) => ({ ...claimOn(name, waiterTtlMs), mode: 'shared' as const, limit: 2 })
    const [first, second] = [
      [permit(0), permit(0)],
      [permit(60_000), permit(60_000)],
    ] as const
    await driver().acquire(first, newCall())
    await driver().acquire(second, newCall())
    assert.equal(await force(name, 'ada'), 2)
    const leases = await leasesOn(driver(), name)
    assert.deepEqual(leases.map(({ claimId }) => claimId).sort(), second.map(({ claimId }) => claimId).sort())
  })

  it('ends the lease of a plain client', async () => {
    const name = unique('plain')
    await pool.query(`SELECT acquire_lock($1, 'psql')`, [name])
    assert.equal(await force(name, 'ada'), 1)
    assert.deepEqual(await leasesOn(driver(), name), [])
    assert.deepEqual(await recorded(name), ['plain:psql'])
  })

  it('returns 0 and records nothing if the lock is free, and does not change the queue', async () => {
    const name = unique('free')
    assert.equal(await force(name, 'ada'), 0)
    await granted(driver(), { ...claimOn(name), ttlMs: 1 })
    await until('its end', async () => (await leasesOn(driver(), name)).length === 0)
    assert.equal(await force(name, 'ada'), 0)
    assert.deepEqual(await recorded(name), [])
  })

  it('reaches a process that listens, because one of its claims waits', async () => {
    const claim = claimOn(unique('heard'))
    const listening = driver()
    await granted(listening, claim)
    const heard: string[] = []
    const lost = (claimId: string): void => void heard.push(claimId)
    const stop = await listening.listen?.({ lost, wake() {}, granted() {}, disconnected: assert.fail })
    await granted(driver(), { ...claimOn(claim.lockName), forceUpTo: Number.MAX_SAFE_INTEGER })
    await until('the report', () => heard.includes(claim.claimId))
    await stop?.()
    await listening.close()
  })

  it('refuses an empty p_by', async () => {
    for (const by of ['', null]) await assert.rejects(force('a', by), { code: '22023', message: /p_by/ })
  })

  it('keeps the last 1,000 records', async () => {
    await pool.query(`INSERT INTO holdfast_forced_releases
      (released_at, released_by, database_role, lock_name, holder_id, claim_id, acquired_at, expires_at)
      SELECT now(), 'bob', 'postgres', 'old', 'h', 'c' || i, now(), now() FROM generate_series(1, 1100) i`)
    const name = unique('bound')
    await pool.query(`SELECT acquire_lock($1, 'psql')`, [name])
    assert.equal(await force(name, 'ada'), 1)
    assert.equal((await recorded(name)).length, 1)
    const { rows } = await pool.query('SELECT count(*)::int FROM holdfast_forced_releases')
    assert.equal(rows[0].count, 1_000)
  })
})

const driver = () => postgresDriver({ client: pool, schema })

const force = async (lockName: string, by: string | null): Promise<number> =>
  (await pool.query('SELECT force_release_lock($1, $2) AS ended', [lockName, by])).rows[0].ended

async function recorded(lockName: string): Promise<string[]> {
  const text = `SELECT claim_id FROM holdfast_forced_releases
    WHERE lock_name = $1 AND released_by = 'ada' ORDER BY claim_id`
  return (await pool.query(text, [lockName])).rows.map(({ claim_id }) => claim_id)
}
