import assert from 'node:assert/strict'
import pg from 'pg'
import { describe, it } from 'vitest'
import { openPostgres, postgresDriver, postgresFence } from '../../../src/drivers/postgres.ts'
import { openPostgresAdvisory } from '../../../src/drivers/postgres-advisory.ts'
import { DistributedLock } from '../../../src/primitives/lock/any-store-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { shiftedClock } from '../../harness/clock-shim.ts'
import { claimOn, granted, grantOn, leasesOn, until, waitersOn } from '../../harness/postgres-context.ts'
import { startPostgres } from '../../harness/servers.ts'

const HOUR_MS = 3_600_000
/** Each test starts a server, and the machine may be busy. */
const SLOW = { timeout: 60_000 }

describe.concurrent('postgres: the server’s clock', SLOW, () => {
  it('failure 4: after it jumps forward, the second holder’s token is higher, and the first cannot write', async () => {
    await using hurt = await openServer()
    const [a, b] = [postgresDriver({ client: hurt.pool }), postgresDriver({ client: hurt.pool })]
    const claim = claimOn('account:7')
    const first = await granted(a, claim)
    hurt.clock.shift(HOUR_MS)
    const second = await granted(b, claimOn('account:7'))
    assert.ok(second.fencingToken > first.fencingToken)
    await hurt.transaction((client) => postgresFence(client, 'account:7', second.fencingToken))
    await assert.rejects(
      hurt.transaction((client) => postgresFence(client, 'account:7', first.fencingToken)),
      { code: 'STALE_TOKEN' },
    )
    const late = { ...claim, fencingToken: first.fencingToken }
    assert.deepEqual(await a.renew([late]), ['lost'])
    assert.deepEqual(await a.release([late]), [false])
    assert.equal((await leasesOn(b, 'account:7')).length, 1)
  })

  it('failure 43: after it steps back a little, other claims do not shorten a renewed lease or place', async () => {
    await using hurt = await openServer()
    const driver = postgresDriver({ client: hurt.pool })
    const claims = ['alone', 'list-1', 'list-2', 'read', 'again'].map((name) => claimOn(name))
    const held = claims.map((claim) => (claim.lockName === 'read' ? { ...claim, mode: 'shared' as const } : claim))
    const leases = await Promise.all(
      held.map(async (claim) => ({ ...claim, fencingToken: (await granted(driver, claim)).fencingToken })),
    )
    const waiter = claimOn('alone', 60_000)
    await driver.acquire([waiter], newCall())
    await hurt.pool.query(`SELECT acquire_lock('plain', 'psql', 60)`)
    hurt.clock.shift(-30_000)
    // For longer than before: a lease or place is judged by its last renewal.
    const [alone, first, second, read, again] = leases.map((lease) => ({ ...lease, ttlMs: 120_000 }))
    assert.ok(alone && first && second && read && again)
    for (const list of [[alone], [first, second], [read]]) {
      assert.deepEqual(
        await driver.renew(list),
        list.map(() => 'renewed'),
      )
    }
    await granted(driver, again)
    await hurt.pool.query(`SELECT acquire_lock('plain', 'psql', 120)`)
    await driver.acquire([{ ...waiter, waiterTtlMs: 120_000 }], newCall())
    // A lease that began in the future is judged under the row's lock by the next claims, alone and in lists.
    const names = [...claims.map(({ lockName }) => lockName), 'plain']
    for (const lockName of names) await driver.acquire([claimOn(lockName)], newCall())
    await driver.acquire(
      names.map((lockName) => claimOn(lockName)),
      newCall(),
    )
    const { rows } = await hurt.pool.query(
      `SELECT lock_name, state, round(extract(epoch FROM expires_in) / 10)::int * 10 AS lasts FROM holdfast_locks
       ORDER BY state, lock_name`,
    )
    assert.deepEqual(
      rows.map(({ lock_name, state, lasts }) => `${lock_name} ${state} ${lasts}`),
      [...[...names].sort().map((name) => `${name} holds 120`), 'alone waits 120'],
    )
  })

  it('failure 5: after it steps back, a forced release ends a lease that is too long, and tokens rise', async () => {
    await using hurt = await openServer()
    await using holder = new DistributedLock({ url: hurt.url, holderId: 'holder' })
    await using next = new DistributedLock({ url: hurt.url, holderId: 'next' })
    const driver = postgresDriver({ client: hurt.pool })
    const lease = await holder.hold('report', { timeoutSeconds: 60, heartbeat: false, metadata: { job: 7 } })
    hurt.clock.shift(-HOUR_MS)
    const { rows: long } = await hurt.pool.query(
      `SELECT holder_id FROM holdfast_locks WHERE expires_in > interval '50 minutes'`,
    )
    assert.deepEqual(long, [{ holder_id: 'holder' }])
    const waiting = next.hold('report', { blockingTimeoutSeconds: 30 })
    await until('the next one to wait', async () => (await waitersOn(driver, 'report')) === 1)
    const forced = await hurt.pool.query(`SELECT force_release_lock('report', 'ada: the clock was wrong') AS ended`)
    assert.equal(forced.rows[0].ended, 1)
    const handed = await waiting
    assert.ok(handed.fencingToken > lease.fencingToken)
    assert.equal(await lease.release(), false)
    assert.equal((await leasesOn(driver, 'report'))[0]?.holderId, 'next')
    const { rows } = await hurt.pool.query(
      'SELECT released_by, database_role, holder_id, fencing_token::float8, metadata FROM holdfast_forced_releases',
    )
    assert.deepEqual(rows, [
      {
        released_by: 'ada: the clock was wrong',
        database_role: 'postgres',
        holder_id: 'holder',
        fencing_token: lease.fencingToken,
        metadata: { job: 7 },
      },
    ])
  })

  it('failure 18: the next token is higher after a TRUNCATE, a SIGKILL of the server, and a lost counter', async () => {
    await using hurt = await openServer()
    const tokens: number[] = []
    const draw = async () => {
      const driver = await openPostgres(hurt.url)
      tokens.push((await grantOn(driver, 'a')) ?? 0)
      await driver.close()
    }
    const truncate = `TRUNCATE distributed_locks, holdfast_leases, holdfast_waiters`
    await draw()
    await hurt.pool.query(truncate)
    await draw()
    await hurt.pool.query(truncate)
    await hurt.server.kill()
    await hurt.server.restart()
    await draw()
    await hurt.pool.query(`${truncate}; DROP SEQUENCE holdfast_tokens; CREATE SEQUENCE holdfast_tokens`)
    await draw()
    assert.deepEqual(
      tokens,
      [...new Set(tokens)].sort((x, y) => x - y),
    )
  })
})

describe.concurrent('postgres-advisory: the server’s clock', SLOW, () => {
  it('failures 4, 5: a clock that is set forward or back ends no lease, prolongs none, and tokens rise', async () => {
    await using hurt = await openServer()
    const [a, b] = [await openPostgresAdvisory(hurt.url), await openPostgresAdvisory(hurt.url)]
    let last = 0
    for (const ms of [HOUR_MS, -HOUR_MS, 0]) {
      const claim = claimOn('account:7')
      const { fencingToken } = await granted(a, claim)
      assert.ok(fencingToken > last)
      last = fencingToken
      hurt.clock.shift(ms)
      assert.equal(await grantOn(b, 'account:7'), undefined)
      assert.deepEqual(await a.renew([{ ...claim, fencingToken }]), ['held'])
      assert.deepEqual(await a.release([{ ...claim, fencingToken }]), [true])
    }
    await Promise.all([a.close(), b.close()])
  })
})

/** A server for one test, with a clock that can be set. */
async function openServer() {
  const clock = await shiftedClock()
  const server = await startPostgres({ clock })
  const pool = new pg.Pool({ connectionString: server.url, max: 4 })
  pool.on('error', () => {}) // Idle connections end when the server is killed.
  return {
    clock,
    server,
    pool,
    url: server.url,
    async transaction(work: (client: pg.PoolClient) => Promise<void>) {
      const client = await pool.connect()
      try {
        await client.query('BEGIN')
        await work(client)
        await client.query('COMMIT')
      } catch (error) {
        await client.query('ROLLBACK')
        throw error
      } finally {
        client.release()
      }
    },
    async [Symbol.asyncDispose]() {
      await pool.end()
      await server[Symbol.asyncDispose]()
      clock[Symbol.dispose]()
    },
  }
}
