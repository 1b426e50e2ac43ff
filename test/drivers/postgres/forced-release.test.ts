import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
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
    await driver().acquire(readers)
    await driver().acquire([writer])
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
    const permit = (waitMs: number) => ({ ...claimOn(name, waitMs), mode: 'shared' as const, limit: 2 })
    const [first, second] = [
      [permit(0), permit(0)],
      [permit(60_000), permit(60_000)],
    ] as const
    await driver().acquire(first)
    await driver().acquire(second)
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

  it('reaches a holder that listens, and no lease of a row that is old', async () => {
    const [name, other] = [unique('heard'), unique('kept')]
    const [watching, claims] = [driver(), [claimOn(name), claimOn(other)] as const]
    for (const claim of claims) await granted(watching, claim)
    await pool.query(
      `INSERT INTO holdfast_forced_releases
        (released_at, released_by, database_role, lock_name, holder_id, claim_id, acquired_at, expires_at)
        VALUES (now() - interval '1 hour', 'bob', 'postgres', $1, 'h', $2, now(), now())`,
      [other, claims[1].claimId],
    )
    const heard: string[] = []
    // Other tests of this file end leases, too.
    const lost = (claimId: string): void => {
      if (claims.some((claim) => claim.claimId === claimId)) heard.push(claimId)
    }
    const listener = { lost, disconnected: assert.fail }
    const stop = await watching.watch?.(listener)
    assert.equal(await force(name, 'ada'), 1)
    await until('the report', () => heard.length > 0)
    // Emptied, and counted from 1 again.
    await pool.query('TRUNCATE holdfast_forced_releases RESTART IDENTITY')
    await until('the next look', async () => {
      await force(other, 'ada')
      return heard.length > 1
    })
    assert.deepEqual(heard, [claims[0].claimId, claims[1].claimId])
    await stop?.()
    await watching.close()
  })

  it('reaches a listener although another one that begins to listen finds it first', async () => {
    const claim = claimOn(unique('two listeners'))
    const watching = driver()
    await granted(watching, claim)
    const heard = [new Set<string>(), new Set<string>()] as const
    const listeners = heard.map((ids) => ({ lost: (id: string) => void ids.add(id), disconnected: assert.fail }))
    for (const listener of listeners) {
      await watching.watch?.(listener)
      await force(claim.lockName, 'ada')
    }
    assert.deepEqual(
      heard.map((ids) => ids.has(claim.claimId)),
      [true, true],
    )
    await watching.close()
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
