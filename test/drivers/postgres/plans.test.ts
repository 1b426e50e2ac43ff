import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import { buffersOf, nodesOf, plansOf, treeOf } from '../../../bench/support/postgres-plans.mjs'
import { leaseArrays, numberArray } from '../../../src/drivers/postgres/arrays.ts'
import { statementsFor } from '../../../src/drivers/postgres/statements.ts'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn } from '../../harness/postgres-context.ts'

/** A small version of bench/postgres-explain.mjs: the plans of the statements inside the functions, as executed. */
describe('postgres: plans', () => {
  it('acquire, renew, release and sweep use only indexes beside 22,000 rows and 3,000 waiters', async () => {
    await using table = await openTable()
    await table.fill({ expired: 20_000, live: 2_000, waiters: 3_000 })
    await table.client.query(`ANALYZE ${table.schema}.distributed_locks, ${table.schema}.holdfast_waiters`)
    await assertByIndex(table)
  })

  it('so they do if the planner believes that the tables are empty', async () => {
    await using table = await openTable()
    await table.client.query(`VACUUM ANALYZE ${table.schema}.distributed_locks, ${table.schema}.holdfast_waiters`)
    await table.fill({ expired: 5_000, live: 500, waiters: 3_000 })
    await assertByIndex(table)
  })

  it('a sweep does not read swept rows again while an open transaction keeps them in the index', async () => {
    await using table = await openTable()
    const old = new pg.Client(inject('servers').postgres ?? '')
    await old.connect()
    await old.query(`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM ${table.schema}.distributed_locks`)
    await table.fill({ expired: 20_000, live: 100, waiters: 0 })
    await table.client.query('SELECT holdfast_sweep(30000)')
    const { rows } = await table.client.query(`SELECT FROM distributed_locks WHERE lock_name LIKE 'expired:%'`)
    assert.equal(rows.length, 0)
    const { plans } = await plansOf(table.client, () => table.client.query('SELECT holdfast_sweep(32)'))
    const pages = plans.reduce((sum, { plan }) => sum + buffersOf(plan), 0)
    assert.ok(plans.length > 0 && pages <= 100, `it touches ${pages} pages`)
    await old.end()
  })

  it('a sweep starts again after its clock was set back, and removes rows that ended meanwhile', async () => {
    await using table = await openTable()
    const { client } = table
    const left = async () => (await client.query(`SELECT FROM distributed_locks`)).rowCount
    await client.query('SELECT holdfast_sweep(32)')
    await table.fill({ expired: 10, live: 0, waiters: 0 })
    // Its row ended before the rows that were swept.
    await client.query('SELECT holdfast_sweep(32)')
    assert.equal(await left(), 10)
    await client.query(
      `UPDATE distributed_locks SET expires_at = clock_timestamp() - interval '5.1 s' WHERE lock_name <> 'expired:1'`,
    )
    await client.query(`SELECT pg_sleep(0.2), set_config(name, ARRAY[
      extract(epoch FROM clock_timestamp()) - 6, extract(epoch FROM clock_timestamp()) - 10]::text, false)
      FROM (SELECT 'holdfast.swept_' || 'distributed_locks'::regclass::oid AS name) AS setting`)
    await client.query('SELECT holdfast_sweep(32)')
    assert.equal(await left(), 1)
    // In the future, as after a clock was set back.
    await client.query(`SELECT set_config(name, ARRAY[
      extract(epoch FROM clock_timestamp()) + 60, extract(epoch FROM clock_timestamp()) + 60]::text, false)
      FROM (SELECT 'holdfast.swept_' || 'distributed_locks'::regclass::oid AS name) AS setting`)
    await client.query('SELECT holdfast_sweep(32)')
    assert.equal(await left(), 0)
  })

  it('failure 45: the last of 3,000 waiters read a bounded part of the queue, and lock no row', async () => {
    await using table = await openTable()
    await table.fill({ expired: 0, live: 1, waiters: 3_000 })
    await table.client.query(
      `UPDATE holdfast_waiters SET lock_name = 'live:1'; UPDATE distributed_locks SET contended = true`,
    )
    const driver = postgresDriver({ client: table.client, schema: table.schema })
    for (const count of [1, 64]) {
      const claims = Array.from({ length: count }, (_, index) => ({
        ...claimOn('live:1', 60_000),
        claimId: `waiter:${3_000 - index}`,
      }))
      const { plans, result } = await plansOf(table.client, () => driver.acquire(claims, newCall()))
      for (const answer of result) assert.equal('ahead' in answer && answer.ahead, 100)
      const nodes = plans.flatMap(({ plan }) => nodesOf(plan))
      const read = nodes
        .filter((node) => node['Relation Name'] === 'holdfast_waiters' && node['Node Type']?.includes('Scan'))
        .reduce((sum, node) => sum + (node['Actual Rows'] ?? 0) * (node['Actual Loops'] ?? 0), 0)
      assert.ok(
        read <= 100 + 4 * count,
        `asking again for ${count} reads ${read} waiters\n${plans.map(({ plan }) => treeOf(plan)).join()}`,
      )
    }
    const locked = `SELECT xmax = '0' AS unlocked FROM distributed_locks WHERE lock_name = 'live:1'`
    await table.client.query(`UPDATE distributed_locks SET contended = contended`)
    await table.client.query('VACUUM distributed_locks')
    await driver.acquire([{ ...claimOn('live:1', 60_000), claimId: 'waiter:7' }], newCall())
    assert.deepEqual((await table.client.query(locked)).rows, [{ unlocked: true }])
  })
})

async function assertByIndex({ client, schema }: Awaited<ReturnType<typeof openTable>>): Promise<void> {
  const driver = postgresDriver({ client, schema })
  for (const count of [1, 64]) {
    // They may wait, so the queues are read, too.
    const claims = Array.from({ length: count }, (_, index) => claimOn(`mine:${index}`, 1_000))
    const acquire = await plansOf(client, () => driver.acquire(claims, newCall()))
    const leases = claims.map((claim, index) => {
      const answer = acquire.result[index]
      assert.ok(answer && 'granted' in answer && answer.granted)
      return { ...claim, fencingToken: answer.fencingToken }
    })
    // As the driver sends them, which has a connection of its own for these.
    const send = (name: 'renew' | 'release', values: readonly string[]) => () =>
      client.query(statementsFor(schema)[name], [...leaseArrays(leases), ...values])
    const renew = await plansOf(client, send('renew', [numberArray(leases.map(({ ttlMs }) => ttlMs)), 'false']))
    const release = await plansOf(client, send('release', ['false']))
    const sweep = await plansOf(client, () => client.query('SELECT holdfast_sweep(32)'))
    for (const [step, { plans }] of Object.entries({ acquire, renew, release, sweep })) {
      assert.ok(plans.length > 0, `${step} has plans`)
      for (const { plan, text } of plans) {
        const said = `${step} of ${count}: ${text}\n${treeOf(plan)}`
        for (const node of nodesOf(plan)) {
          assert.notEqual(node['Node Type'], 'Seq Scan', said)
          assert.ok((node['Rows Removed by Join Filter'] ?? 0) === 0, said)
          assert.ok((node['Rows Removed by Filter'] ?? 0) <= 32, said)
        }
      }
      // Some pages of the two indexes and of the table for each row, whether there are a thousand rows or a million.
      const pages = plans.reduce((sum, { plan }) => sum + buffersOf(plan), 0)
      const rows = step === 'sweep' ? 32 : count
      assert.ok(pages <= 100 + 30 * rows, `${step} of ${count} touches ${pages} pages`)
    }
  }
}

/** One connection, because plans are reported to the connection that caused them. Its end drops the schema. */
async function openTable() {
  const schema = `plans_${randomBytes(6).toString('hex')}`
  const client = new pg.Client(inject('servers').postgres ?? '')
  await client.connect()
  await postgresDriver({ client, schema }).inspect({})
  // As inside the functions that sweep.
  await client.query(`SET search_path TO ${schema}; SET enable_seqscan = off;
    SET enable_sort = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan`)
  return {
    client,
    schema,
    async fill({ expired, live, waiters }: { expired: number; live: number; waiters: number }) {
      const text = `
        INSERT INTO distributed_locks (lock_name, holder_id, acquired_at, expires_at, claim_id, fencing_token)
        SELECT $2 || i, 'h', clock_timestamp(), clock_timestamp() + $3::interval, $2 || i, i
        FROM generate_series(1, $1) i`
      await client.query(text, [expired, 'expired:', '-1 hour'])
      await client.query(text, [live, 'live:', '1 hour'])
      await client.query(
        `INSERT INTO holdfast_waiters
          SELECT 'live:' || i % 10, i, 'waiter:' || i, 'h', 'exclusive', NULL, 1, 3600000, 3600000, NULL, 'none',
          clock_timestamp(), clock_timestamp() + interval '1 hour' FROM generate_series(1, $1) i`,
        [waiters],
      )
    },
    async [Symbol.asyncDispose]() {
      await client.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
      await client.end()
    },
  }
}
