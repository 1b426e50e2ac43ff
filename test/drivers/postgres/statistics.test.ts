import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import { nodesOf, plansOf, treeOf } from '../../../bench/support/postgres-plans.mjs'
import type { Claim } from '../../../src/core/driver.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
const WAITERS = 10_000

/** As if the places had been renewed since the statistics were made. */
const PAST_AND_ANALYZE = `
  UPDATE holdfast_waiters SET expires_at = clock_timestamp() - interval '1 hour';
  ANALYZE distributed_locks, holdfast_waiters;
  UPDATE holdfast_waiters SET expires_at = clock_timestamp() + interval '1 hour'`

/** What the planner believes of the queue. The server collects nothing by itself: autovacuum is off for the tables. */
const BELIEFS: Readonly<Record<string, readonly [when: 'empty' | 'short' | 'full', statement: string]>> = {
  'no statistics': ['empty', ''],
  'those of empty tables': ['empty', 'VACUUM ANALYZE distributed_locks, holdfast_waiters'],
  'those of a short queue whose places have expired': ['short', PAST_AND_ANALYZE],
  'those of a while ago, when the places expired earlier': ['full', PAST_AND_ANALYZE],
  'those of a queue that had just become empty': [
    'full',
    `ANALYZE distributed_locks, holdfast_waiters;
     UPDATE pg_class SET reltuples = 0, relpages = 1
     WHERE oid IN ('distributed_locks'::regclass, 'holdfast_waiters'::regclass)
       OR oid IN (SELECT indexrelid FROM pg_index
         WHERE indrelid IN ('distributed_locks'::regclass, 'holdfast_waiters'::regclass))`,
  ],
  'current ones': ['full', 'ANALYZE distributed_locks, holdfast_waiters'],
}

describe('postgres: the planner’s statistics', () => {
  it.each(Object.keys(BELIEFS))(
    'failure 67: beside 10,000 waiters, with %s, every call of a new connection reads a bounded part of the queue',
    { timeout: 120_000 },
    async (belief) => {
      const [when, statement] = BELIEFS[belief] ?? ['empty', '']
      await using queue = await openQueue()
      const { holder, driver, waiters } = queue
      if (when === 'empty') await queue.admin.query(statement)
      await queue.join(waiters.slice(0, 20))
      if (when === 'short') await queue.admin.query(statement)
      await queue.join(waiters.slice(20))
      if (when === 'full') await queue.admin.query(statement)

      const last = waiters.slice(-100)
      const leases = (claims: readonly Claim[]) => claims.map((claim) => ({ ...claim, fencingToken: 1 }))
      const steps: Record<string, (at: number) => Promise<unknown>> = {
        'asks again': (at) => driver.acquire([last[at] as Claim], newCall()),
        'asks again in a list': () => driver.acquire(last.slice(10, 30), newCall()),
        joins: () => driver.acquire([long(claimOn('held'))], newCall()),
        'is refused': () => driver.acquire([claimOn('held'), claimOn('held')], newCall()),
        leaves: (at) => driver.release([last[40 + at] as Claim]),
        'leaves in a list': (at) => driver.release(last.slice(50 + 2 * at, 52 + 2 * at)),
        'is not renewed': (at) =>
          driver.renew(leases([last[at] as Claim]).map((lease) => ({ ...lease, ttlMs: 1_000 }))),
        'is renewed': () => driver.renew([{ ...holder, ttlMs: 3_600_000 }]),
        'is force-released': () => queue.client.query(`SELECT force_release_lock('held', 'test')`),
      }
      for (const [step, run] of Object.entries(steps)) {
        // The first five calls of a connection may plan for their values, and the sixth for any.
        for (let at = 0; at < 7; at += 1) await queue.bounded(step, () => run(at))
      }
      for (let at = 0; at < 7; at += 1) {
        const { rows } = await queue.admin.query(`SELECT claim_id, fencing_token FROM distributed_locks`)
        const [row] = rows.filter(({ claim_id }) => claim_id !== null)
        const lease = { lockName: 'held', claimId: row.claim_id, fencingToken: Number(row.fencing_token) }
        await queue.bounded('is handed over', () => driver.release([lease]))
      }
    },
  )
})

const long = (claim: Claim): Claim => ({ ...claim, ttlMs: 3_600_000, waiterTtlMs: 3_600_000 })

/** One name that is held, and the claims that will wait for it. Its end drops the schema. */
async function openQueue() {
  const schema = `statistics_${randomBytes(6).toString('hex')}`
  const connect = async () => {
    const connected = new pg.Client({ connectionString: url, options: `-c search_path=${schema}` })
    await connected.connect()
    return connected
  }
  const [admin, client] = [await connect(), await connect()]
  await migratePostgres({ client: admin, schema })
  await admin.query(`ALTER TABLE distributed_locks SET (autovacuum_enabled = off);
    ALTER TABLE holdfast_waiters SET (autovacuum_enabled = off)`)
  const joining = postgresDriver({ client: admin, schema })
  const claim = long(claimOn('held'))
  const { fencingToken } = await granted(joining, { ...claim, waiterTtlMs: 0 })
  return {
    admin,
    client,
    holder: { ...claim, fencingToken },
    waiters: Array.from({ length: WAITERS }, () => long(claimOn('held'))),
    driver: postgresDriver({ client, schema }),
    async join(claims: readonly Claim[]): Promise<void> {
      for (let at = 0; at < claims.length; at += 500) await joining.acquire(claims.slice(at, at + 500), newCall())
    },
    /** Fails if a call reads more than the front of the queue and what it asks for. */
    async bounded(step: string, run: () => Promise<unknown>): Promise<void> {
      const { plans } = await plansOf(client, run)
      let read = 0
      for (const { plan } of plans) {
        for (const node of nodesOf(plan)) {
          if (!node['Node Type']?.includes('Scan') || node['Node Type'] === 'Function Scan') continue
          const loops = node['Actual Loops'] ?? 0
          read += loops * ((node['Actual Rows'] ?? 0) + (node['Rows Removed by Filter'] ?? 0))
        }
      }
      const trees = plans.map(({ plan, text }) => `${text}\n${treeOf(plan)}`).join('\n')
      assert.ok(read <= 2_000, `${step}: it reads ${read} rows\n${trees}`)
    },
    async [Symbol.asyncDispose]() {
      await admin.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
      await Promise.all([admin.end(), client.end()])
    },
  }
}
