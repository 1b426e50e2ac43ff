import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { openPostgres, postgresDriver, postgresFence, StaleTokenError } from '../../../src/drivers/postgres.ts'
import { DistributedLock, type DistributedLockOptions } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import {
  claimOn,
  granted,
  leasesOn as leasesOnDriver,
  unique,
  until,
  waitersOn as waitersOnDriver,
} from '../../harness/postgres-context.ts'
import { startProxy } from '../../harness/proxy.ts'
import { type Server, startPgBouncer, startPostgres } from '../../harness/servers.ts'
import { startWorker, type Worker } from '../../harness/worker.ts'

/** The machine may be busy with other test files. */
const SLOW = { timeout: 60_000 }

let server: Server
let pool: pg.Pool
beforeAll(async () => {
  server = await startPostgres()
  pool = new pg.Pool({ connectionString: server.url, max: 10 })
  await postgresDriver({ client: pool }).inspect({})
})
afterAll(async () => {
  await pool.end()
  await server[Symbol.asyncDispose]()
})

describe.concurrent('postgres: failures', SLOW, () => {
  it('failure 1: the late write of a paused holder is refused by its token, and held is false at once', async () => {
    const name = unique('paused')
    await using worker = await holderProcess()
    const { fencingToken: stale } = (await worker.call('hold', name, 0.6)) as { fencingToken: number }
    await worker.pause()
    await using rival = openLock()
    const lease = await rival.lock.hold(name, { blockingTimeoutSeconds: 15 })
    await inTransaction((client) => postgresFence(client, name, lease.fencingToken))
    worker.resume()
    const seen = (await worker.call('write', name)) as { held: boolean; error: string }
    assert.deepEqual(seen, { held: false, error: 'STALE_TOKEN' })
    assert.ok(lease.fencingToken > stale)
  })

  it('failure 10: an acquire that is granted after its client gave up is released', async () => {
    await using proxy = await startProxy(server.port)
    const name = unique('late')
    const driver = await openPostgres(through(proxy.port))
    await driver.inspect({ lockName: name })
    await using slow = openLock({ driver, callTimeoutSeconds: 0.3 })
    proxy.hold('toClient')
    await assert.rejects(slow.lock.acquire(name, { blocking: false }), { code: 'STORE_UNAVAILABLE' })
    await until('the server to have granted it', async () => (await leasesOn(name)).length === 1)
    proxy.release('toClient')
    await until('the detached release', async () => (await leasesOn(name)).length === 0)
    await driver.close()
  })

  it('failure 11: after a lost reply, asking again returns the same lease', async () => {
    await using proxy = await startProxy(server.port)
    const name = unique('lost-reply')
    const driver = await openPostgres(through(proxy.port))
    await driver.inspect({ lockName: name })
    await using instance = openLock({ driver })
    const cut = proxy.cutAfterForwarding('holdfast_call_acquire')
    const result = await instance.lock.acquire(name)
    await cut
    assert.ok(result.acquired)
    const [lease] = await leasesOn(name)
    assert.equal(lease?.fencingToken, result.lock.fencingToken)
    await driver.close()
  })

  it('failure 12: a release after the lease has ended returns false, and ends no lease of a rival', async () => {
    const name = unique('late-release')
    const [driver, other] = [postgresDriver({ client: pool }), postgresDriver({ client: pool })]
    const { late, rival } = await overtaken(driver, other, name)
    assert.deepEqual(await driver.release([late]), [false])
    assert.equal((await leasesOn(name))[0]?.claimId, rival.claimId)
  })

  it('failure 13: a renewal after the lease has ended returns lost, with and without a rival', async () => {
    const name = unique('late-renewal')
    const [driver, other] = [postgresDriver({ client: pool }), postgresDriver({ client: pool })]
    const { late, rival } = await overtaken(driver, other, name)
    assert.deepEqual(await driver.renew([late]), ['lost'])
    assert.equal((await leasesOn(name))[0]?.claimId, rival.claimId)
    assert.deepEqual(await other.release([rival]), [true])
    assert.deepEqual(await driver.renew([late]), ['lost'])
    assert.deepEqual(await leasesOn(name), [])
  })

  it('failure 14: a renewal that arrives after the release does not bring the lock back', async () => {
    await using proxy = await startProxy(server.port)
    const name = unique('renewal')
    const slow = await openPostgres(through(proxy.port))
    const straight = postgresDriver({ client: pool })
    const claim = claimOn(name)
    const [grant] = await slow.acquire([claim], newCall())
    assert.ok(grant && 'granted' in grant && grant.granted)
    const lease = { lockName: name, claimId: claim.claimId, fencingToken: grant.fencingToken }
    proxy.hold('toServer')
    const renewal = slow.renew([{ ...lease, ttlMs: 60_000 }])
    assert.deepEqual(await straight.release([lease]), [true])
    proxy.release('toServer')
    assert.deepEqual(await renewal, ['lost'])
    assert.deepEqual(await leasesOn(name), [])
    await slow.close()
  })

  it('failure 15: a waiter that was paused past its grant does not rely on it', async () => {
    const name = unique('paused-waiter')
    await using holder = openLock()
    await using rival = openLock()
    const lease = await holder.lock.hold(name)
    await using worker = await holderProcess()
    const answer = worker.call('hold', name, 0.5)
    await until('the worker to wait', async () => (await waitersOn(name)) === 1)
    await worker.pause()
    await lease.release()
    const taken = await rival.lock.hold(name, { blockingTimeoutSeconds: 15 })
    worker.resume()
    // It asks again and waits on: the lease that it was handed had ended before it could run.
    await sleep(200)
    assert.equal(taken.held, true)
    assert.equal((await leasesOn(name))[0]?.holderId, taken.holderId)
    await taken.release()
    const { held } = (await answer) as { held: boolean }
    assert.equal(held, true)
  })

  it('failure 23: a lease is bound to no connection: another one renews and releases it', async () => {
    const own = new pg.Pool({ connectionString: server.url, max: 1 })
    const driver = postgresDriver({ client: own })
    const claim = claimOn(unique('unpinned'))
    const { fencingToken } = await granted(driver, claim)
    const kept = await own.connect() // the connection that took the lease
    assert.deepEqual(await driver.renew([{ ...claim, fencingToken }]), ['renewed'])
    assert.deepEqual(await driver.release([{ ...claim, fencingToken }]), [true])
    kept.release()
    await driver.close()
    await own.end()
  })

  it('failure 24: an exhausted pool of the application does not block a driver that was opened by a URL', async () => {
    const busy = new pg.Pool({ connectionString: server.url, max: 2 })
    const clients = [await busy.connect(), await busy.connect()]
    const driver = await openPostgres(server.url)
    await using instance = openLock({ driver })
    assert.equal((await instance.lock.acquire(unique('busy'), { blocking: false })).acquired, true)
    for (const client of clients) client.release()
    await busy.end()
    await driver.close()
  })

  it('failure 25: timeouts that end idle connections cost neither a lease nor a wake-up', async () => {
    const options = encodeURIComponent('-c idle_session_timeout=300 -c idle_in_transaction_session_timeout=300')
    const name = unique('idle')
    const drivers = [1, 2].map(() => openPostgres(`${server.url}?options=${options}`))
    const [a, b] = await Promise.all(drivers)
    await using holder = openLock({ driver: a as Driver })
    await using waiting = openLock({ driver: b as Driver })
    const lease = await holder.lock.hold(name, { timeoutSeconds: 6 })
    const [first] = await leasesOn(name)
    const next = waiting.lock.hold(name, { blockingTimeoutSeconds: 30 })
    const listening = await until('the waiter to listen', () => listenerOf(name))
    await until('the server to end that connection', async () => !(await isConnected(listening)))
    // Heartbeats are further apart than the timeout, so each one finds its connection ended.
    await until('a heartbeat', async () => Number((await leasesOn(name))[0]?.expiresAtMs) > Number(first?.expiresAtMs))
    assert.equal(lease.held, true)
    await lease.release()
    assert.equal((await next).held, true)
    for (const driver of await Promise.all(drivers)) await driver.close()
  })

  it('failure 25: a call on a connection that the server has just ended as idle is sent on another one', async () => {
    await using proxy = await startProxy(server.port)
    const options = encodeURIComponent('-c idle_session_timeout=1500')
    const name = unique('just ended')
    const client = new pg.Pool({ connectionString: `${through(proxy.port)}?options=${options}`, max: 1 })
    const driver = postgresDriver({ client })
    const idle = await client.connect()
    const { processID } = idle as unknown as { processID: number }
    proxy.hold('toClient')
    idle.release()
    await until('the server to end it', async () => !(await isConnected(processID)))
    const answer = granted(driver, claimOn(name))
    proxy.release('toClient')
    await answer
    await client.end()
  })

  it('failure 26: a silent network ends the lease in time, and the driver works again after it', async () => {
    await using proxy = await startProxy(server.port)
    const driver = await openPostgres(through(proxy.port))
    await using instance = openLock({ driver, callTimeoutSeconds: 0.5 })
    const lease = await instance.lock.hold(unique('silent'), { timeoutSeconds: 1 })
    const { signal } = lease
    const startedMs = performance.now()
    proxy.blackHole()
    await until('the loss', () => signal.aborted)
    // The client's own deadline for a query is 10 s.
    assert.ok(performance.now() - startedMs < 6_000, 'the loss was told late')
    proxy.heal()
    const again = await instance.lock.acquire(unique('silent'), { blockingTimeoutSeconds: 15 })
    assert.ok(again.acquired)
    await driver.close()
  })

  it('failure 28: 10,000 leases need no room in the server’s lock table', async () => {
    await using small = await startPostgres({ settings: { max_connections: '20', max_locks_per_transaction: '10' } })
    const driver = await openPostgres(small.url)
    const lists = Array.from({ length: 10 }, (_, list) =>
      Array.from({ length: 1_000 }, (_, index) => claimOn(`many:${list}:${index}`)),
    )
    for (const list of lists) {
      assert.ok((await driver.acquire(list, newCall())).every((answer) => 'granted' in answer && answer.granted))
    }
    for (const list of lists) assert.ok((await driver.release(list)).every((answer) => answer === true))
    await driver.close()
  })

  it('failure 29: a LISTEN connection that was ended is opened again, and a release meanwhile is noticed', async () => {
    const name = unique('disconnected')
    await using holder = openLock()
    const driver = await openPostgres(server.url)
    let disconnected = 0
    await using waiting = openLock({ driver, waiterTtlSeconds: 60 })
    waiting.lock.on('listenFailed', () => {
      disconnected += 1
    })
    const lease = await holder.lock.hold(name, { timeoutSeconds: 60 })
    const next = waiting.lock.hold(name, { blockingTimeoutSeconds: 60 })
    const listening = await until('the waiter to listen', () => listenerOf(name))
    await pool.query('SELECT pg_terminate_backend($1)', [listening])
    await until('the driver to notice', () => disconnected > 0)
    await lease.release()
    assert.equal((await next).held, true)
    await driver.close()
  })

  it('failure 30: a release during the subscription is not missed', async () => {
    await using proxy = await startProxy(server.port)
    const name = unique('late-listen')
    await using holder = openLock()
    const lease = await holder.lock.hold(name, { timeoutSeconds: 60 })
    const driver = await openPostgres(through(proxy.port))
    await using waiting = openLock({ driver, waiterTtlSeconds: 60 })
    proxy.delay(150)
    const next = waiting.lock.hold(name, { blockingTimeoutSeconds: 60 })
    await until('the waiter to be queued', async () => (await waitersOn(name)) === 1)
    await lease.release()
    assert.equal((await next).held, true)
    proxy.heal()
    await driver.close()
  })

  it('failure 31: when the first waiter is killed, the queue moves on within the bound of its place', async () => {
    const name = unique('killed')
    await using holder = openLock()
    const lease = await holder.lock.hold(name, { timeoutSeconds: 60 })
    await using worker = await holderProcess({ waiterTtlSeconds: 1, application: name })
    worker.call('hold', name, 30).catch(() => {})
    await until('the worker to wait', async () => (await waitersOn(name)) === 1)
    await using next = openLock({ waiterTtlSeconds: 3 })
    const turn = next.lock.hold(name, { blockingTimeoutSeconds: 30 })
    await until('both to wait', async () => (await waitersOn(name)) === 2)
    await worker.kill()
    // A claim that it sent just before its end would still be handled. If it holds the lock by then, that lasts as long
    // as any lease of a dead holder.
    const left = 'SELECT FROM pg_stat_activity WHERE application_name = $1'
    await until('the server to know that it is gone', async () => (await pool.query(left, [name])).rowCount === 0)
    await lease.release()
    const startedMs = performance.now()
    assert.equal((await turn).held, true)
    assert.ok(performance.now() - startedMs < 15_000, 'the dead one’s place lasts 1 s, what it asked for 30 s')
  })

  it('failure 35: with 1,000 waiters a hand-over is one notification to one process', async () => {
    const name = unique('herd')
    const driver = postgresDriver({ client: pool })
    const [holder] = await driver.acquire([claimOn(name)], newCall())
    assert.ok(holder && 'granted' in holder && holder.granted)
    await driver.acquire(
      Array.from({ length: 1_000 }, () => claimOn(name, 60_000)),
      newCall(),
    )
    const heard: string[] = []
    const stop = await driver.listen?.({
      wake: () => {},
      granted: (claimId) => void heard.push(`granted ${claimId}`),
      lost: () => {},
      disconnected: () => {},
    })
    for (let turn = 1; turn <= 5; turn += 1) {
      const [{ claimId, fencingToken } = { claimId: '', fencingToken: 0 }] = await leasesOn(name)
      await driver.release([{ lockName: name, claimId, fencingToken }])
      await until('the hand-off', () => heard.length >= turn)
    }
    assert.equal(heard.length, 5)
    assert.equal(new Set(heard).size, 5)
    await stop?.()
    await pool.query('DELETE FROM holdfast_waiters WHERE lock_name = $1', [name])
  })
})

describe.concurrent('postgres: beside other clients', SLOW, () => {
  it('acquire_lock and release_lock exclude Holdfast and are excluded by it', async () => {
    const name = unique('plain')
    await using instance = openLock()
    const plain = async (text: string) => Object.values((await pool.query(text, [name, 'psql'])).rows[0])[0]
    assert.equal(await plain('SELECT acquire_lock($1, $2)'), true)
    assert.equal(await plain('SELECT acquire_lock($1, $2)'), true)
    const refused = await instance.lock.acquire(name, { blocking: false })
    assert.ok(!refused.acquired && refused.holder?.holderId === 'psql')
    const waiting = instance.lock.hold(name)
    await until('the waiter', async () => (await waitersOn(name)) === 1)
    assert.equal(await plain('SELECT release_lock($1, $2)'), true)
    const lease = await waiting
    assert.equal(await plain('SELECT acquire_lock($1, $2)'), false)
    assert.equal(await plain('SELECT release_lock($1, $2)'), false)
    assert.equal(lease.held, true)
    await lease.release()
    assert.equal(await plain('SELECT acquire_lock($1, $2)'), true)
    assert.equal(await plain('SELECT release_lock($1, $2)'), true)
  })

  it('shared leases exclude a caller of acquire_lock, until the last one is gone', async () => {
    const name = unique('plain-shared')
    const driver = postgresDriver({ client: pool })
    const claims = [1, 2].map(() => ({ ...claimOn(name), mode: 'shared' as const }))
    await driver.acquire(claims, newCall())
    const acquire = async () => (await pool.query(`SELECT acquire_lock($1, 'psql') AS got`, [name])).rows[0].got
    assert.equal(await acquire(), false)
    await driver.release(claims.slice(0, 1))
    assert.equal(await acquire(), false)
    await driver.release(claims.slice(1))
    assert.equal(await acquire(), true)
  })

  it('a lease taken by acquire_lock ends after its seconds', async () => {
    const name = unique('plain-expiry')
    await using instance = openLock()
    await pool.query(`SELECT acquire_lock($1, 'psql', 1)`, [name])
    const lease = await instance.lock.hold(name, { blockingTimeoutSeconds: 15 })
    const { rows } = await pool.query(`SELECT release_lock($1, 'psql') AS was`, [name])
    assert.equal(rows[0].was, false)
    assert.equal(lease.held, true)
  })

  it('a transaction with an old snapshot gets an error, never a second grant', async () => {
    for (const level of ['REPEATABLE READ', 'SERIALIZABLE']) {
      for (const mode of ['exclusive', 'shared'] as const) {
        const name = unique('snapshot')
        const client = await pool.connect()
        await client.query(`BEGIN ISOLATION LEVEL ${level}`)
        await client.query('SELECT count(*) FROM distributed_locks')
        const driver = postgresDriver({ client: pool })
        const [grant] = await driver.acquire([{ ...claimOn(name), mode }], newCall())
        assert.ok(grant && 'granted' in grant && grant.granted)
        await assert.rejects(client.query(`SELECT acquire_lock($1, 'old')`, [name]), { code: '40001' })
        await client.query('ROLLBACK')
        client.release()
      }
    }
  })

  it('release_lock with an old snapshot does not strand a waiter that it cannot see', async () => {
    for (const level of ['REPEATABLE READ', 'SERIALIZABLE']) {
      const name = unique('unseen')
      const driver = postgresDriver({ client: pool })
      const [first, second] = [claimOn(name, 10_000), claimOn(name, 10_000)]
      await pool.query(`SELECT acquire_lock($1, 'psql', 60)`, [name])
      await driver.acquire([first], newCall())
      const client = await pool.connect()
      await client.query(`BEGIN ISOLATION LEVEL ${level}`)
      await client.query('SELECT count(*) FROM distributed_locks')
      await driver.acquire([second], newCall())
      await client.query(`SELECT release_lock($1, 'psql')`, [name])
      await client.query('COMMIT')
      client.release()
      assert.deepEqual(await driver.release([first]), [true])
      const [lease] = await leasesOn(name)
      assert.equal(lease?.claimId, second.claimId)
    }
  })

  it('a waiter that is granted after distributed_locks alone was emptied leaves no place behind', async () => {
    const driver = postgresDriver({ client: pool })
    for (const others of [0, 1]) {
      const name = unique('emptied')
      const waiter = claimOn(name, 10_000)
      await driver.acquire([claimOn(name)], newCall())
      await driver.acquire([waiter], newCall())
      await pool.query('DELETE FROM distributed_locks WHERE lock_name = $1', [name])
      const answers = await driver.acquire(
        [waiter, ...Array.from({ length: others }, () => claimOn(unique('other')))],
        newCall(),
      )
      assert.ok(answers.every((answer) => 'granted' in answer && answer.granted))
      assert.equal(await waitersOn(name), 0)
    }
  })

  it('messages of another client on the channel are ignored', async () => {
    const client = new pg.Client(server.url)
    await client.connect()
    const driver = postgresDriver({ client })
    const heard: unknown[] = []
    const hear = (...what: unknown[]): void => void heard.push(what)
    const stop = await driver.listen?.({ wake: hear, granted: hear, lost: hear, disconnected: hear })
    const [{ channel }] = (await client.query('SELECT pg_listening_channels() AS channel')).rows
    const strange = ['[', '[1', '[null]', '[[]]', '[["wake"]]', '[["claim","1",2,3,4]]', '[7,{}]']
    for (const payload of strange) await client.query('SELECT pg_notify($1, $2)', [channel, payload])
    const [holder, waiter] = [claimOn(unique('strange')), claimOn('', 60_000)]
    await granted(driver, holder)
    await driver.acquire([{ ...waiter, lockName: holder.lockName }], newCall())
    await driver.release([holder])
    // It arrives after the others: the server delivers in the order of commits.
    await until('the grant', () => heard.length > 0)
    assert.deepEqual(
      heard.map((what) => (what as unknown[])[0]),
      [waiter.claimId],
    )
    await stop?.()
    await driver.close()
    await client.end()
  })

  it('a Client that is passed in keeps its own advisory locks and channels, and gets nothing else', async () => {
    const client = new pg.Client(server.url)
    await client.connect()
    await client.query('SELECT pg_advisory_lock(42)')
    await client.query('LISTEN mine')
    const driver = postgresDriver({ client, schema: `passed_${randomBytes(4).toString('hex')}` })
    const claim = claimOn(unique('passed'))
    await driver.acquire([claim], newCall())
    const stop = await driver.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} })
    await driver.release([claim])
    await stop?.()
    await driver.close()
    const { rows } = await client.query(`SELECT
      (SELECT array_agg(objid::int) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
      (SELECT array_agg(c) FROM pg_listening_channels() AS c) AS channels,
      (SELECT count(*)::int FROM pg_prepared_statements) AS prepared`)
    assert.deepEqual(rows, [{ locks: [42], channels: ['mine'], prepared: 0 }])
    await client.end()
  })

  it('in a long transaction clock_timestamp() decides, not now()', async () => {
    const name = unique('long')
    const client = await pool.connect()
    await client.query('BEGIN')
    await client.query('SELECT now()')
    const driver = postgresDriver({ client: pool })
    await driver.acquire([{ ...claimOn(name), ttlMs: 300 }], newCall())
    const acquire = async () => (await client.query(`SELECT acquire_lock($1, 'long') AS got`, [name])).rows[0].got
    assert.equal(await acquire(), false)
    await sleep(320) // the lease expires, while now() does not advance
    assert.equal(await acquire(), true)
    await client.query('COMMIT')
    client.release()
  })

  it('a server whose default isolation is SERIALIZABLE makes no difference', async () => {
    const options = { connectionString: server.url, max: 6, options: '-c default_transaction_isolation=serializable' }
    const strict = new pg.Pool(options)
    const drivers = [1, 2, 3].map(() => postgresDriver({ client: strict }))
    const name = unique('serializable')
    let inside = 0
    const locks = drivers.map((driver) => openLock({ driver }))
    await Promise.all(
      locks.map(async ({ lock }) => {
        for (let round = 0; round < 10; round += 1) {
          await lock.withLock(name, async () => {
            inside += 1
            assert.equal(inside, 1)
            await sleep(1) // so that concurrent holders would be seen
            inside -= 1
          })
        }
      }),
    )
    await Promise.all(locks.map(({ lock }) => lock.close()))
    await Promise.all(drivers.map((driver) => driver.close()))
    await strict.end()
  })

  it('a server whose default isolation is SERIALIZABLE makes no difference to rates', async () => {
    const options = { connectionString: server.url, max: 6, options: '-c default_transaction_isolation=serializable' }
    const strict = new pg.Pool(options)
    const drivers = [1, 2, 3].map(() => postgresDriver({ client: strict }))
    const request = { name: unique('serializable'), cost: 1, limits: [{ limit: 1, periodMs: 3_600_000, burst: 20 }] }
    const answers = await Promise.all(
      drivers.flatMap((driver) => Array.from({ length: 10 }, async () => (await driver.consume?.([request]))?.[0])),
    )
    assert.equal(answers.filter((answer) => answer && 'allowed' in answer && answer.allowed).length, 20)
    await Promise.all(drivers.map((driver) => driver.close()))
    await strict.end()
  })

  it('a lease that waited for an open transaction counts from its grant, alone and in a list', async () => {
    for (const others of [[], ['1', '2']]) {
      const word = unique('late')
      // The name that is waited for comes first: names are taken in order.
      const names = ['0', ...others].map((each) => `${word}:${each}`)
      const open = await pool.connect()
      await open.query('BEGIN')
      await open.query(`SELECT acquire_lock($1, 'open')`, [names[0]])
      const { pid } = (await open.query('SELECT pg_backend_pid() AS pid')).rows[0]
      const each = (value: string): string => `{${names.map(() => value).join()}}`
      // What the driver's call does, without its deadline.
      const text = `SELECT (unnest(holdfast_acquire($1, $1, $1, '${each('f')}', '${each('NULL')}', '${each('1')}',
        '${each('60000')}', '${each('0')}', '${each('NULL')}', 'none', false, 20000)
        )::json ->> 'grantedAt')::float8 AS at`
      const acquiring = pool.query(text, [names])
      const blocked = 'SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))'
      await until('it to wait', async () => ((await pool.query(blocked, [pid])).rowCount ?? 0) > 0)
      await sleep(50) // so that early and late differ
      const clock = 'SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 AS now'
      const { now } = (await open.query(clock)).rows[0]
      await open.query('ROLLBACK')
      open.release()
      const { rows } = await acquiring
      assert.equal(rows.length, names.length)
      for (const { at } of rows) assert.ok(at >= now, `${at} ${now}`)
      for (const name of names) {
        const [lease] = await leasesOn(name)
        assert.ok(Number(lease?.expiresAtMs) >= now + 60_000)
      }
    }
  })

  it('rule 8: a grant that waited for its row has a higher token than a holder in between', async () => {
    for (const others of [[], ['1', '2']]) {
      const word = unique('overtaken')
      const names = ['0', ...others].map((each) => `${word}:${each}`)
      const open = await pool.connect()
      await open.query('BEGIN')
      await open.query(`SELECT acquire_lock($1, 'open')`, [names[0]])
      const { pid } = (await open.query('SELECT pg_backend_pid() AS pid')).rows[0]
      const each = (value: string): string => `{${names.map(() => value).join()}}`
      const text = `SELECT unnest($1::text[]) AS claim, (unnest(holdfast_acquire($1, $1, $1, '${each('f')}',
        '${each('NULL')}', '${each('1')}', '${each('60000')}', '${each('0')}', '${each('NULL')}', 'none', false, 20000)
        )::json ->> 'fencingToken')::float8 AS token`
      const acquiring = pool.query(text, [names])
      const blocked = 'SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))'
      await until(
        'it to wait, with its token drawn',
        async () => ((await pool.query(blocked, [pid])).rowCount ?? 0) > 0,
      )
      const force = `SELECT fencing_token AS token
        FROM holdfast_acquire_by_force($1, 'between', 'open', 60000, NULL, false, NULL)`
      const between = Number((await open.query(force, [names[0]])).rows[0].token)
      await open.query(`SELECT holdfast_change_leases(ARRAY[$1], '{between}', ARRAY[$2::bigint], NULL, false)`, [
        names[0],
        between,
      ])
      await open.query('COMMIT')
      open.release()
      const { rows } = await acquiring
      assert.equal(rows.length, names.length)
      for (const { claim, token } of rows) assert.ok(token > between, `${claim}: ${token} after ${between}`)
    }
  })

  it('lists of 512 in opposite orders, from 8 drivers, never deadlock', async () => {
    const names = Array.from({ length: 512 }, (_, index) => unique(`list-${index}`))
    const drivers = Array.from({ length: 8 }, () => postgresDriver({ client: pool }))
    await Promise.all(
      drivers.map(async (driver, index) => {
        for (let round = 0; round < 3; round += 1) {
          const order = index % 2 === 0 ? names : names.toReversed()
          const claims = order.map((name) => claimOn(name))
          await driver.acquire(claims, newCall())
          await driver.renew(claims.map((claim) => ({ ...claim, fencingToken: 1 })))
          await driver.release(claims.toReversed())
        }
      }),
    )
    const { rows } = await pool.query(`SELECT deadlocks::int FROM pg_stat_database WHERE datname = 'postgres'`)
    assert.equal(rows[0].deadlocks, 0)
  })

  it('each call removes a bounded number of rows that have ended', async () => {
    const schema = unique('sweep').replaceAll(/\W/g, '_')
    const driver = postgresDriver({ client: pool, schema })
    await driver.inspect({})
    await pool.query(
      `INSERT INTO ${schema}.distributed_locks SELECT 'dead:' || i, 'h', clock_timestamp() - interval '1 day',
       clock_timestamp() - interval '1 hour', NULL FROM generate_series(1, 200) i`,
    )
    const dead = async () =>
      Number((await pool.query(`SELECT count(*) FROM ${schema}.distributed_locks`)).rows[0].count)
    let calls = 0
    while ((await dead()) > 0) {
      const claim = claimOn('live')
      await driver.acquire([claim], newCall())
      await driver.release([claim])
      calls += 1
      assert.ok(calls < 2_000, 'they never go')
    }
    await driver.close()
  })

  it('failure 22: behind PgBouncer in transaction mode locks work, and waiters poll', async () => {
    await using pgbouncer = await startPgBouncer(server)
    const drivers = [await openPostgres(pgbouncer.url), await openPostgres(pgbouncer.url)]
    const [a, b] = drivers.map((driver) => openLock({ driver, callTimeoutSeconds: 10 }))
    const name = unique('pooler')
    const lease = await a?.lock.hold(name)
    const failed = new Promise<unknown>((resolve) => b?.lock.on('listenFailed', ({ error }) => resolve(error)))
    const next = b?.lock.hold(name, { blockingTimeoutSeconds: 15 })
    assert.match(String(await failed), /pooler in transaction mode/)
    await lease?.release()
    assert.equal((await next)?.held, true)
    for (const each of [a, b]) await each?.lock.close()
    for (const driver of drivers) await driver.close()
  })

  it('failure 22: behind PgBouncer in transaction mode pg needs no setting, and postgres prepare: false', async () => {
    await using pgbouncer = await startPgBouncer(server)
    const pooled = new pg.Pool({ connectionString: pgbouncer.url, max: 4 })
    const sql = postgres(pgbouncer.url, { max: 4, prepare: false, onnotice: () => {} })
    for (const client of [pooled, sql]) {
      const driver = postgresDriver({ client })
      await Promise.all(
        Array.from({ length: 8 }, async () => {
          for (let round = 0; round < 10; round += 1) {
            const claim = claimOn(unique('pooled'))
            const { fencingToken } = await granted(driver, claim)
            assert.deepEqual(await driver.renew([{ ...claim, fencingToken }]), ['renewed'])
            assert.deepEqual(await driver.release([{ ...claim, fencingToken }]), [true])
          }
        }),
      )
      await driver.close()
    }
    await Promise.all([pooled.end(), sql.end()])
  })

  it('relaxed applies to our own statements only, and crash-safe also where the role’s default is off', async () => {
    const seen: string[] = []
    for (const [relaxed, session] of [
      [true, 'on'],
      [false, 'off'],
    ] as const) {
      const client = new pg.Client({ connectionString: server.url, options: `-c synchronous_commit=${session}` })
      await client.connect()
      const setting = async () => seen.push((await client.query('SHOW synchronous_commit')).rows[0].synchronous_commit)
      await client.query('BEGIN')
      // What the driver's call does inside its transaction, which is over before a test could look.
      const text = `SELECT holdfast_acquire(
        ARRAY[$1], '{c}', '{h}', '{f}', '{NULL}', '{1}', '{60000}', '{0}', '{NULL}', 'none', $2)`
      await client.query(text, [unique('durable'), relaxed])
      await setting()
      await client.query('COMMIT')
      await setting()
      await client.end()
    }
    assert.deepEqual(seen, ['off', 'on', 'on', 'off'])
  })

  it('the fencing guard refuses a smaller token, accepts the same one, and waits for the writer before', async () => {
    const resource = unique('account')
    await inTransaction((client) => postgresFence(client, resource, 7))
    await inTransaction((client) => postgresFence(client, resource, 7))
    const first = await pool.connect()
    await first.query('BEGIN')
    await postgresFence(first, resource, 9)
    const second = inTransaction((client) => postgresFence(client, resource, 8))
    second.catch(() => {})
    await sleep(50) // for the second to arrive and be blocked
    await first.query('COMMIT')
    first.release()
    await assert.rejects(second, (error) => error instanceof StaleTokenError && error.fencingToken === 8)
  })
})

const through = (port: number): string => server.url.replace(`:${server.port}`, `:${port}`)

function openLock(options: DistributedLockOptions = {}): AsyncDisposable & { lock: DistributedLock } {
  const own = options.driver === undefined ? postgresDriver({ client: pool }) : undefined
  const lock = new DistributedLock({ driver: own as Driver, defaults: { blocking: true }, ...options })
  return {
    lock,
    async [Symbol.asyncDispose]() {
      await lock.close()
      await own?.close()
    },
  }
}

const leasesOn = (lockName: string) => leasesOnDriver(postgresDriver({ client: pool }), lockName)

const waitersOn = (lockName: string) => waitersOnDriver(postgresDriver({ client: pool }), lockName)

/** The backend that listens for the first waiter on a name. */
async function listenerOf(lockName: string): Promise<number | undefined> {
  const text = `SELECT pid FROM pg_stat_activity, holdfast_waiters
    WHERE lock_name = $1 AND starts_with(query, 'LISTEN "' || split_part(channel, ':', 1) || '"')`
  return (await pool.query(text, [lockName])).rows[0]?.pid
}

const isConnected = async (pid: number): Promise<boolean> =>
  (await pool.query('SELECT FROM pg_stat_activity WHERE pid = $1', [pid])).rowCount === 1

/** A lease that has expired, and the one that a rival was granted then. */
async function overtaken(driver: Driver, other: Driver, lockName: string) {
  const claim = { ...claimOn(lockName), ttlMs: 100 }
  const { fencingToken } = await granted(driver, claim)
  const rival = claimOn(lockName)
  await until('the rival’s turn', async () => {
    const [answer] = await other.acquire([rival], newCall())
    return answer && 'granted' in answer && answer.granted
  })
  return { late: { ...claim, fencingToken, ttlMs: 60_000 }, rival }
}

async function inTransaction(work: (client: pg.PoolClient) => Promise<void>): Promise<void> {
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
}

/** A process that holds a lock, and writes to a resource of the same name under it. */
function holderProcess({ waiterTtlSeconds = 10, application = 'holder' } = {}): Promise<Worker> {
  const source = `
    import pg from 'pg'
    import { DistributedLock } from 'holdfast'
    import { openPostgres, postgresFence } from 'holdfast/drivers/postgres'
    const url = ${JSON.stringify(`${server.url}?application_name=${application}`)}
    const lock = new DistributedLock({ driver: await openPostgres(url), waiterTtlSeconds: ${waiterTtlSeconds} })
    let lease
    expose({
      async hold(name, timeoutSeconds) {
        lease = await lock.hold(name, { timeoutSeconds, blockingTimeoutSeconds: 30 })
        return { fencingToken: lease.fencingToken, held: lease.held }
      },
      async write(name) {
        const { held, fencingToken } = lease
        const client = new pg.Client(url)
        await client.connect()
        await client.query('BEGIN')
        const error = await postgresFence(client, name, fencingToken).then(() => '', (error) => error.code)
        await client.query('ROLLBACK')
        await client.end()
        return { held, error }
      },
    })`
  return startWorker({ source }, { callTimeoutMs: 30_000 })
}
