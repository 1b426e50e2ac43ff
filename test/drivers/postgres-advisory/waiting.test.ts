import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { advisoryStatements, waiting } from '../../../src/drivers/postgres-advisory/statements.ts'
import { advisoryKey, openPostgresAdvisory } from '../../../src/drivers/postgres-advisory.ts'
import { DistributedLock, LeaderElection } from '../../../src/index.ts'
import { unique, until } from '../../harness/postgres-context.ts'
import { type Server, startPostgres } from '../../harness/servers.ts'

const SLOW = { timeout: 60_000 }
/** Every so often, all waiters go back to the queue. */
const PERIOD_MS = 5_000

let server: Server
let root: pg.Pool
beforeAll(async () => {
  server = await startPostgres()
  root = new pg.Pool({ connectionString: server.url, max: 4 })
})
afterAll(async () => {
  await root.end()
  await server[Symbol.asyncDispose]()
})

describe.concurrent('postgres-advisory: waiting for long', SLOW, () => {
  it('failure 70: the snapshots of a waiter and of a standby leader are seconds old', async () => {
    const [name, role] = [unique('vacuum'), unique('leader')]
    await using holder = await open()
    await using waiter = await open()
    await holder.lock.hold(name)
    await using leader = new LeaderElection({ name: role, driver: holder.driver })
    await using standby = new LeaderElection({ name: role, driver: waiter.driver })
    await leader.campaign()
    const standing = standby.campaign()
    const waits = waiter.lock.hold(name, { blockingTimeoutSeconds: 60 })
    await until('both to wait', async () => (await waitingPids(name)).length + (await waitingPids(role)).length === 2)
    const pids = [...(await waitingPids(name)), ...(await waitingPids(role))]
    const ids: { atMs: number; xid: number }[] = []
    const startedMs = performance.now()
    while (performance.now() - startedMs < 2.5 * PERIOD_MS) {
      const { rows } = await root.query(`SELECT pg_current_xact_id()::text AS xid`)
      ids.push({ atMs: performance.now(), xid: Number(rows[0].xid) })
      await sleep(100)
      const seen = await root.query(
        `SELECT min(backend_xmin::text::bigint)::text AS xmin FROM pg_stat_activity WHERE pid = ANY ($1)`,
        [pids],
      )
      // What was begun a period ago, and some time for a busy machine, is older than every snapshot.
      const old = ids.findLast(({ atMs }) => atMs < performance.now() - PERIOD_MS - 2_000)
      assert.ok(old === undefined || Number(seen.rows[0].xmin) > old.xid, `a snapshot is older than 7 s`)
    }
    assert.ok(ids.length > 20)
    await root.query('CREATE TABLE dead AS SELECT generate_series(1, 1000) AS n; DELETE FROM dead')
    await until('VACUUM to remove the rows', async () => {
      await root.query('VACUUM (TRUNCATE) dead')
      return (await root.query(`SELECT pg_relation_size('dead')::integer AS size`)).rows[0].size === 0
    })
    assert.deepEqual(await waitingPids(name), pids.slice(0, 1))
    await holder.lock.releaseAll()
    await (await waits).release()
    await leader.close()
    await standing
  })

  it('waiters of several processes that went back to the queue are served before those that came later', async () => {
    const name = unique('order')
    await using holder = await open()
    await holder.lock.hold(name)
    const waiters = await Promise.all(Array.from({ length: 6 }, open))
    const served: number[] = []
    const all: Promise<void>[] = []
    for (const [index, { lock }] of waiters.entries()) {
      const group = Math.floor(index / 2)
      const run = lock.hold(name, { blockingTimeoutSeconds: 50 }).then(async (lease) => {
        served.push(group)
        await lease.release()
      })
      all.push(run)
      await until('it to wait', async () => (await waitingPids(name)).length === index + 1)
      // The order of those that come shortly after each other is not kept on a busy machine.
      if (index % 2 === 1) await sleep(4_000)
    }
    await sleep(PERIOD_MS)
    // Around the moment at which all go back to the queue, it is not in order.
    await until('another moment', async () => {
      const text = `SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint::text AS now`
      const now = BigInt((await root.query(text)).rows[0].now)
      const sinceMs = Number(((BigInt(advisoryKey(name)) % 5_000n) + 5_000n + now) % 5_000n)
      return sinceMs > 1_000 && sinceMs < 4_000
    })
    await holder.lock.releaseAll()
    await Promise.all(all)
    // On a busy machine, those in between can change places with those that came next.
    assert.deepEqual(
      served.filter((group) => group !== 1),
      [0, 0, 2, 2],
    )
    for (const each of waiters) await each[Symbol.asyncDispose]()
  })

  it('a waiter sends nothing while it waits, and the server logs no error', async () => {
    const name = unique('quiet')
    await using holder = await open()
    await using waiter = await open()
    await holder.lock.hold(name)
    const ended = new AbortController()
    const waits = waiter.lock.hold(name, { blockingTimeoutSeconds: 60, signal: ended.signal })
    await until('it to wait', async () => (await waitingPids(name)).length === 1)
    const [pid] = await waitingPids(name)
    const began = `SELECT query_start::text AS at, query FROM pg_stat_activity WHERE pid = $1`
    const before = (await root.query(began, [pid])).rows[0]
    await sleep(1.5 * PERIOD_MS)
    assert.deepEqual((await root.query(began, [pid])).rows[0], before)
    ended.abort()
    await assert.rejects(waits)
    await until('nothing to wait', async () => (await waitingPids(name)).length === 0)
  })

  it('a lock that is granted at the moment of a timeout is held once', async () => {
    const [holder, waiter] = [await root.connect(), await root.connect()]
    const key = advisoryKey(unique('timeout'))
    const request = { lockName: '', claimId: '', holderId: '', shared: false, key }
    assert.ok(advisoryStatements.wait.includes('5000'))
    const text = waiting(request, 0).replaceAll('5000', '20').replace('300 *', '2 *')
    for (let round = 0; round < 150; round += 1) {
      await holder.query('SELECT pg_advisory_lock($1)', [key])
      const waits = waiter.query(text)
      await sleep(15 + (round % 12)) // around the end of a slice
      await holder.query('SELECT pg_advisory_unlock($1)', [key])
      await waits
      const { rows } = await waiter.query('SELECT pg_advisory_unlock($1) AS first', [key])
      assert.equal(rows[0].first, true)
      const again = await holder.query('SELECT pg_try_advisory_lock($1) AS free, pg_advisory_unlock($1)', [key])
      assert.equal(again.rows[0].free, true)
    }
    holder.release()
    waiter.release()
  })
})

async function open(): Promise<AsyncDisposable & { lock: DistributedLock; driver: Driver }> {
  const driver = await openPostgresAdvisory(server.url)
  const lock = new DistributedLock({ driver })
  return {
    lock,
    driver,
    async [Symbol.asyncDispose]() {
      await lock.close()
      await driver.close()
    },
  }
}

async function waitingPids(lockName: string): Promise<number[]> {
  const text = `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted
    AND (classid::bigint << 32 | objid::bigint) = $1 ORDER BY pid`
  return (await root.query(text, [advisoryKey(lockName)])).rows.map(({ pid }) => pid)
}
