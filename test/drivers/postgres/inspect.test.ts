import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { postgresAdvisoryDriver } from '../../../src/drivers/postgres-advisory.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, unique } from '../../harness/postgres-context.ts'

const schema = `inside_${randomBytes(6).toString('hex')}`
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

describe('postgres: inspecting with SQL', () => {
  it('holdfast_locks shows holders and waiters with their times, and nothing that has ended', async () => {
    const [name, shared] = [unique('held'), unique('read')]
    const holder = { ...claimOn(name), holderId: 'a', metadata: { job: 7 } }
    const { fencingToken } = await granted(driver(), holder)
    await driver().acquire([{ ...claimOn(name, 30_000), holderId: 'b' }], newCall())
    await driver().acquire(
      ['c', 'd'].map((holderId) => ({ ...claimOn(shared), mode: 'shared' as const, holderId })),
      newCall(),
    )
    await pool.query(`SELECT acquire_lock($1, 'psql', 60)`, [unique('plain')])
    await pool.query(
      `INSERT INTO distributed_locks VALUES ('ended', 'x', now() - interval '1 hour', clock_timestamp(), NULL)`,
    )
    const { rows } =
      await pool.query(`SELECT split_part(lock_name, ':', 1) AS lock_name, state, mode, holder_id, metadata,
      fencing_token::float8, age >= interval '0' AND age < interval '20 s' AS is_young,
      round(extract(epoch FROM expires_in + age))::int AS lasts
      FROM holdfast_locks ORDER BY state, lock_name, holder_id`)
    const row = { metadata: null, is_young: true, lasts: 60 }
    const tokens = rows.map(({ fencing_token }) => fencing_token)
    assert.equal(tokens[0], fencingToken)
    assert.deepEqual(
      rows.map(({ fencing_token: _, ...rest }) => rest),
      [
        { ...row, lock_name: 'held', state: 'holds', mode: 'exclusive', holder_id: 'a', metadata: { job: 7 } },
        { ...row, lock_name: 'plain', state: 'holds', mode: 'exclusive', holder_id: 'psql', metadata: {} },
        { ...row, lock_name: 'read', state: 'holds', mode: 'shared', holder_id: 'c' },
        { ...row, lock_name: 'read', state: 'holds', mode: 'shared', holder_id: 'd' },
        { ...row, lock_name: 'held', state: 'waits', mode: 'exclusive', holder_id: 'b', lasts: 30 },
      ],
    )
    assert.ok(tokens.slice(0, 4).every(Number.isSafeInteger) && tokens[4] === null)
  })

  it('acquire_lock refuses arguments that it cannot store, and names them', async () => {
    const acquire = (...values: unknown[]) => pool.query('SELECT acquire_lock($1, $2, $3)', values)
    for (const wrong of [null, '', 'x'.repeat(256)]) {
      await assert.rejects(acquire(wrong, 'h', 1), { code: '22023', message: /^p_lock_name must be 1 to 255/ })
      await assert.rejects(acquire('a', wrong, 1), { code: '22023', message: /^p_holder_id must be 1 to 255/ })
    }
    for (const wrong of [null, 0, -1]) {
      await assert.rejects(acquire('a', 'h', wrong), { code: '22023', message: /^p_ttl_seconds must be positive/ })
    }
    const longest = 'ü'.repeat(255)
    assert.equal((await acquire(longest, longest, 1)).rowCount, 1)
  })

  it('every SELECT in the docs runs as it is written there', async () => {
    const advisory = postgresAdvisoryDriver({ client: pool })
    const name = unique('shown')
    await granted(advisory, claimOn(name))
    const shown: unknown[] = []
    for (const file of ['postgres.md', 'postgres-advisory.md']) {
      const text = readFileSync(new URL(`../../../docs/drivers/${file}`, import.meta.url), 'utf8')
      const blocks = [...text.matchAll(/```sql\n(.*?)```/gs)].map(([, sql]) => sql as string)
      const statements = blocks
        .join('\n')
        .split(/;[^\n]*\n/)
        .map((sql) => sql.replaceAll(/^--.*$/gm, '').trim())
      for (const sql of statements.filter((each) => each.startsWith('SELECT'))) {
        const client = await pool.connect()
        const { rows } = await client.query(sql)
        shown.push(...rows.map(({ leases }) => leases))
        client.release(true) // This also releases what it has locked.
      }
    }
    assert.ok(shown.some((leases) => String(leases).includes(name)))
    await advisory.close()
  })
})

const driver = () => postgresDriver({ client: pool, schema })
