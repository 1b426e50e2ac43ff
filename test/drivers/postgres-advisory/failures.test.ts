import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { readActivityComment, writeActivityComment } from '../../../src/drivers/postgres-advisory/activity-comment.ts'
import {
  advisoryKey,
  lockInTransaction,
  openPostgresAdvisory,
  postgresAdvisoryDriver,
  tryLockInTransaction,
} from '../../../src/drivers/postgres-advisory.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { shiftedClock } from '../../harness/clock-shim.ts'
import { claimOn, grantOn, unique, until } from '../../harness/postgres-context.ts'
import { startProxy } from '../../harness/proxy.ts'
import { type Server, startPgBouncer, startPostgres } from '../../harness/servers.ts'
import { startWorker } from '../../harness/worker.ts'

/** The machine may be busy with other test files. */
const SLOW = { timeout: 60_000 }

let server: Server
let pool: pg.Pool
beforeAll(async () => {
  server = await startPostgres()
  pool = new pg.Pool({ connectionString: server.url, max: 8 })
})
afterAll(async () => {
  await pool.end()
  await server[Symbol.asyncDispose]()
})

describe.concurrent('postgres-advisory: failures', SLOW, () => {
  it('failure 1: a paused holder keeps its lock with its session, and knows at once not to rely on it', async () => {
    const name = unique('paused')
    await using worker = await startWorker({
      source: `
        import { DistributedLock } from 'holdfast'
        import { openPostgresAdvisory } from 'holdfast/drivers/postgres-advisory'
        const lock = new DistributedLock({ driver: await openPostgresAdvisory(${JSON.stringify(server.url)}) })
        let lease
        expose({
          async hold(name) { lease = await lock.hold(name, { timeoutSeconds: 0.5, blocking: true }) },
          held: () => lease.held,
        })`,
    })
    await worker.call('hold', name)
    await worker.pause()
    await using instance = await opened()
    await sleep(600) // the lease of the paused process expires
    assert.equal((await instance.lock.acquire(name, { blocking: false })).acquired, false)
    worker.resume()
    assert.equal(await worker.call('held'), false)
    assert.equal((await instance.lock.acquire(name, { blockingTimeoutSeconds: 15 })).acquired, true)
  })

  it('failure 22: PgBouncer in transaction mode is refused, and the error says why', async () => {
    await using pgbouncer = await startPgBouncer(server)
    const through = [pgbouncer.url, pgbouncer.url].map((url) => openPostgresAdvisory(url))
    for (const driver of await Promise.all(through)) {
      await assert.rejects(driver.acquire([claimOn(unique('pooled'))], newCall()), {
        code: 'UNSUPPORTED',
        message: /pooler in transaction mode/,
      })
      await driver.close()
    }
    const sql = postgres(pgbouncer.url, { prepare: false, onnotice: () => {} })
    const driver = postgresAdvisoryDriver({ client: sql })
    await assert.rejects(driver.acquire([claimOn(unique('pooled'))], newCall()), { code: 'UNSUPPORTED' })
    await driver.close()
    await sql.end()
  })

  it('failure 22: PgBouncer in transaction mode is refused under traffic, 60 of 60 times, without leaks', async () => {
    await using own = await startPostgres()
    await using pgbouncer = await startPgBouncer(own, { settings: { default_pool_size: '5' } })
    const app = new pg.Pool({ connectionString: pgbouncer.url, max: 5 })
    await Promise.all(Array.from({ length: 5 }, () => app.query('SELECT pg_sleep(0.05)')))
    let stopped = false
    const traffic = Array.from({ length: 4 }, async () => {
      while (!stopped) {
        await app.query('SELECT pg_sleep(0.004)')
        await sleep(3)
      }
    })
    const through = new pg.Pool({ connectionString: pgbouncer.url, max: 2 })
    const outcomes = new Set<string>()
    for (let round = 0; round < 60; round += 1) {
      const driver = postgresAdvisoryDriver({ client: through, maxWaitingConnections: 0 })
      const outcome = await driver.acquire([claimOn(`traffic:${round}`)], newCall()).then(
        () => 'answered',
        (error: { code: string }) => error.code,
      )
      outcomes.add(outcome)
      await driver.close()
    }
    stopped = true
    await Promise.all(traffic)
    assert.deepEqual([...outcomes], ['UNSUPPORTED'])
    const direct = new pg.Client(own.url)
    await direct.connect()
    assert.equal((await direct.query(`SELECT FROM pg_locks WHERE locktype = 'advisory'`)).rowCount, 0)
    await direct.end()
    await through.end()
    await app.end()
  })

  it('failure 22: PgBouncer in session mode that does not reset sessions is refused', async () => {
    await using pgbouncer = await startPgBouncer(server, {
      settings: { pool_mode: 'session', default_pool_size: '10', server_reset_query: '' },
    })
    // A client that is killed would keep its lock for as long as the pooler keeps the session.
    const killed = new pg.Client(pgbouncer.url)
    killed.on('error', () => {})
    await killed.connect()
    const name = unique('not-reset')
    await killed.query('SELECT pg_advisory_lock($1)', [advisoryKey(name)])
    const { connection } = killed as unknown as { connection: { stream: { destroy(): void } } }
    connection.stream.destroy()
    await sleep(500) // the pooler notices that
    assert.equal(await holdersOf(name), 1)
    const driver = await openPostgresAdvisory(pgbouncer.url)
    await assert.rejects(driver.acquire([claimOn(unique('pooled'))], newCall()), {
      code: 'UNSUPPORTED',
      message: /does not reset the session.*server_reset_query/,
    })
    await driver.close()
  })

  it('failure 22: PgBouncer in session mode is accepted', async () => {
    await using pgbouncer = await startPgBouncer(server, {
      settings: { pool_mode: 'session', default_pool_size: '10' },
    })
    const driver = await openPostgresAdvisory(pgbouncer.url)
    assert.ok(await grantOn(driver, unique('pooled')))
    await driver.close()
  })

  it.each([
    ['CockroachDB CCL v23.2.3 (x86_64-pc-linux-gnu)', /its version is "CockroachDB/],
    ['PostgreSQL 11.2-YB-2.20.1.3-b0 on x86_64-pc-linux-gnu', /its version is "PostgreSQL 11.2-YB/],
  ])('a server that only speaks the protocol of PostgreSQL is refused by its version: %s', async (version, message) => {
    const path = await newSchema(`CREATE FUNCTION version() RETURNS text LANGUAGE sql RETURN '${version}'`)
    const driver = postgresAdvisoryDriver({ client: new pg.Pool({ connectionString: server.url, options: path }) })
    await assert.rejects(driver.acquire([claimOn(unique('other'))], newCall()), { code: 'UNSUPPORTED', message })
    await driver.close()
    const client = new pg.Client({ connectionString: server.url, options: path })
    await client.connect()
    const onClient = postgresAdvisoryDriver({ client })
    await assert.rejects(onClient.acquire([claimOn(unique('other'))], newCall()), { code: 'UNSUPPORTED', message })
    await onClient.close()
    await client.end()
  })

  // Functions of the same names before those of the server play what other servers and proxies do.
  it.each([
    ['grant a lock to every session', 'pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql RETURN true'],
    ['grant a lock to no session', 'pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql RETURN false'],
    ['release nothing', 'pg_advisory_unlock(bigint) RETURNS boolean LANGUAGE sql RETURN false'],
  ])('a server whose functions %s is refused before the first claim', async (_, definition) => {
    const path = await newSchema(`CREATE FUNCTION ${definition}`)
    for (const maxWaitingConnections of [8, 0]) {
      const client = new pg.Pool({ connectionString: server.url, options: path })
      const driver = postgresAdvisoryDriver({ client, maxWaitingConnections })
      for (let tries = 0; tries < 2; tries += 1) {
        await assert.rejects(driver.acquire([claimOn(unique('other'))], newCall()), {
          code: 'UNSUPPORTED',
          message: /does not exclude another connection/,
        })
      }
      await driver.close()
      await client.end()
    }
  })

  it('connections that lead to different servers are refused', async () => {
    await using second = await startPostgres()
    const urls = [server.url, second.url, server.url, second.url]
    class Client extends pg.Client {
      constructor() {
        super(urls.shift() as string)
      }
    }
    const client = Object.assign(new pg.Pool({ connectionString: server.url }), { Client })
    const driver = postgresAdvisoryDriver({ client: client as unknown as pg.Pool })
    await assert.rejects(driver.acquire([claimOn(unique('two'))], newCall()), { code: 'UNSUPPORTED' })
    await driver.close()
    await client.end()
  })

  it('failures 23, 24: 100 locks use one connection beside the pool, and are unlocked on it', async () => {
    const name = unique('pinned')
    const busy = new pg.Pool({ connectionString: server.url, max: 2, application_name: name })
    const clients = [await busy.connect(), await busy.connect()]
    const driver = postgresAdvisoryDriver({ client: busy })
    const claims = Array.from({ length: 100 }, (_, index) => claimOn(`${name}:${index}`))
    const answers = await driver.acquire(claims, newCall())
    assert.ok(answers.every((answer) => 'granted' in answer && answer.granted))
    const count = 'SELECT count(*)::int FROM pg_stat_activity WHERE application_name = $1'
    // Two of the pool, one with the locks, and one for the first claim that waits.
    assert.equal((await pool.query(count, [name])).rows[0].count, 4)
    assert.ok((await driver.release(claims)).every((released) => released === true))
    for (const client of clients) client.release()
    await driver.close()
    await busy.end()
  })

  it('failure 25: idle_session_timeout does not end a session that holds a lock', async () => {
    const options = '-c idle_session_timeout=300 -c idle_in_transaction_session_timeout=300'
    const strict = new pg.Pool({ connectionString: server.url, max: 1, options })
    const driver = postgresAdvisoryDriver({ client: strict })
    const claim = claimOn(unique('idle'))
    const [grant] = await driver.acquire([claim], newCall())
    assert.ok(grant && 'granted' in grant && grant.granted)
    await sleep(800) // far beyond the timeout, without traffic
    assert.deepEqual(await driver.renew([{ ...claim, fencingToken: grant.fencingToken }]), ['held'])
    await driver.close()
    await strict.end()
  })

  it('pg_terminate_backend loses every lease on the connection at once, and the next acquire works', async () => {
    for (const client of [pool, postgres(server.url, { onnotice: () => {} })]) {
      const driver = postgresAdvisoryDriver({ client })
      const lost: string[] = []
      const disconnected = () => assert.fail('nothing to be disconnected to')
      await driver.listen?.({ wake: () => {}, granted: () => {}, lost: (claimId) => lost.push(claimId), disconnected })
      const claims = [claimOn(unique('x')), claimOn(unique('y'))]
      await driver.acquire(claims, newCall())
      await terminateHolder(claims[0]?.lockName ?? '')
      await until('both losses', () => lost.length === 2)
      assert.deepEqual(lost.sort(), claims.map(({ claimId }) => claimId).sort())
      assert.ok(await grantOn(driver, claims[0]?.lockName ?? ''))
      await driver.close()
      if (client !== pool) await client.end()
    }
  })

  it('failure 26: a silent network ends the lease in time', async () => {
    await using proxy = await startProxy(server.port)
    const driver = await openPostgresAdvisory(server.url.replace(`:${server.port}`, `:${proxy.port}`))
    const lock = new DistributedLock({ driver, callTimeoutSeconds: 0.5 })
    const lease = await lock.hold(unique('silent'), { timeoutSeconds: 1, blocking: true })
    const { signal } = lease
    const startedMs = performance.now()
    proxy.blackHole()
    await until('the loss', () => signal.aborted)
    // The client's own deadline for a query is 10 s.
    assert.ok(performance.now() - startedMs < 6_000, 'the loss was told late')
    proxy.heal()
    await lock.close()
    await driver.close()
  })

  it('failure 27: keys are 64 bits by the published hash, the same in SQL', async () => {
    const file = new URL('../../../protocol/vectors/advisory-keys.json', import.meta.url)
    const { vectors } = JSON.parse(readFileSync(file, 'utf8')) as { vectors: { lockName: string; key: string }[] }
    for (const { lockName, key } of vectors) {
      assert.equal(advisoryKey(lockName), key)
      const text = `SELECT ('x' || left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 16))::bit(64)::bigint AS key`
      assert.equal((await pool.query(text, [lockName])).rows[0].key, key)
    }
    // These two have the same 32-bit hash (hashtext); they are different locks here.
    const driver = postgresAdvisoryDriver({ client: pool })
    const [a, b] = await collidingNames()
    assert.ok(await grantOn(driver, a))
    assert.ok(await grantOn(driver, b))
    await driver.close()
  })

  it('failure 28: when the lock table is full, the error says so and nothing is half-held', async () => {
    await using small = await startPostgres({ settings: { max_connections: '20', max_locks_per_transaction: '10' } })
    const driver = await openPostgresAdvisory(small.url)
    const kept = claimOn('kept')
    const [grant] = await driver.acquire([kept], newCall())
    assert.ok(grant && 'granted' in grant && grant.granted)
    const many = Array.from({ length: 1_000 }, (_, index) => claimOn(`many:${index}`))
    let failed: unknown
    for (let list = 0; list < 10 && failed === undefined; list += 1) {
      const claims = many.map((claim) => ({
        ...claim,
        lockName: `${claim.lockName}:${list}`,
        claimId: `${claim.claimId}:${list}`,
      }))
      failed = await driver.acquire(claims, newCall()).then(
        () => driver.release([]).then(() => undefined),
        (error: unknown) => error,
      )
      if (failed !== undefined) {
        const shown = (await driver.inspect({ pageSize: 10_000 })).leases.map(({ lockName }) => lockName)
        assert.deepEqual(
          shown.filter((name) => name.endsWith(`:${list}`)),
          [],
        )
      }
    }
    assert.match(String(failed), /max_locks_per_transaction/)
    assert.deepEqual(await driver.renew([{ ...kept, fencingToken: grant.fencingToken }]), ['held'])
    await driver.close()
  })

  it('an unlock that the server does not know of ends the session, and with it every lease on it', async () => {
    const client = new pg.Client(server.url)
    await client.connect()
    const driver = postgresAdvisoryDriver({ client })
    const lost: string[] = []
    await driver.listen?.({
      wake: () => {},
      granted: () => {},
      lost: (claimId) => lost.push(claimId),
      disconnected: () => {},
    })
    const [claim, other] = [claimOn(unique('false')), claimOn(unique('other'))]
    await driver.acquire([claim, other], newCall())
    // As if another part of the program used the driver's connection.
    await client.query('SELECT pg_advisory_unlock($1)', [advisoryKey(claim.lockName)])
    assert.deepEqual(await driver.release([claim]), [false])
    assert.deepEqual(lost, [other.claimId])
    await until('the other lock to be free', async () =>
      grantOn(postgresAdvisoryDriver({ client: pool }), other.lockName),
    )
    await driver.close()
    await client.end()
  })

  it.each(['SELECT pg_advisory_unlock_all()', 'DISCARD ALL', 'one unlock'])(
    'a lock that the application releases on the Client that it passed in is lost with the next renewal: %s',
    async (text) => {
      const client = new pg.Client(server.url)
      await client.connect()
      const driver = postgresAdvisoryDriver({ client })
      const lock = new DistributedLock({ driver })
      const [name, other] = [unique('unlocked'), unique('other')]
      const reader = { ...claimOn(unique('reader')), mode: 'shared' as const }
      await driver.acquire([reader], newCall())
      const lease = await lock.hold(name, { timeoutSeconds: 1.5, heartbeat: true })
      const kept = await lock.hold(other, { timeoutSeconds: 1.5, heartbeat: true })
      await sleep(1_600) // its renewals prove that it is held
      assert.deepEqual([lease.held, kept.held], [true, true])
      if (text === 'one unlock') await client.query('SELECT pg_advisory_unlock($1)', [advisoryKey(name)])
      else await client.query(text)
      await using rival = await opened()
      const next = await rival.lock.hold(name, { blockingTimeoutSeconds: 15 })
      await until('the loss', () => lease.signal.aborted, 3_000)
      assert.match(String(lease.signal.reason), /was lost/)
      assert.equal(next.held, true)
      // The driver opens its session again.
      await until('a new session', async () => (await lock.acquire(other)).acquired)
      await lock.close()
      await driver.close()
      await client.end()
    },
  )

  it('a renewal on the Client that was passed in is one statement, however many leases there are', async () => {
    const client = new pg.Client(server.url)
    await client.connect()
    const driver = postgresAdvisoryDriver({ client })
    const claims = Array.from({ length: 500 }, (_, index) => claimOn(unique(`many:${index}`)))
    const answers = await driver.acquire(claims, newCall())
    let sent = 0
    const query = client.query.bind(client) as (config: { text: string }) => Promise<unknown>
    Object.assign(client, {
      query(config: { text: string }) {
        sent += 1
        return query(config)
      },
    })
    const tokens = answers.map((answer) => ('granted' in answer && answer.granted ? answer.fencingToken : 0))
    const renewed = await driver.renew(claims.map((each, at) => ({ ...each, fencingToken: tokens[at] as number })))
    assert.deepEqual([new Set(renewed), sent], [new Set(['held']), 1])
    await driver.close()
    await client.end()
  })

  it('an unlock that is canceled ends the session: its lock is not left behind', async () => {
    const client = new pg.Client(server.url)
    await client.connect()
    const driver = postgresAdvisoryDriver({ client })
    const claim = claimOn(unique('canceled'))
    await driver.acquire([claim], newCall())
    const query = client.query.bind(client) as (config: { text: string }) => Promise<unknown>
    const canceled = Object.assign(new Error('canceling statement due to user request'), { code: '57014' })
    const failing = (config: { text: string }): Promise<unknown> =>
      config.text.includes('EXECUTE holdfast_unlock_') ? Promise.reject(canceled) : query(config)
    Object.assign(client, { query: failing })
    await assert.rejects(driver.release([claim]), { code: 'STORE_UNAVAILABLE' })
    await until('the lock to be free', async () => (await holdersOf(claim.lockName)) === 0)
    await driver.close()
    await client.end()
  })

  it.each(['unlock', 'unlock_list', 'take', 'take_list'])(
    'a %s whose answer is lost leaves no lock behind on a Client that lives on',
    async (statement) => {
      const client = new pg.Client(server.url)
      await client.connect()
      const driver = postgresAdvisoryDriver({ client })
      const claims = [claimOn(unique('lost')), claimOn(unique('lost')), claimOn(unique('kept'))] as const
      const count = statement.endsWith('_list') ? 2 : 1
      await driver.acquire(statement.startsWith('take') ? [claims[2]] : claims, newCall())
      const query = client.query.bind(client) as (config: { text: string }) => Promise<unknown>
      const failing = async (config: { text: string }): Promise<unknown> => {
        if (!config.text.includes(`EXECUTE holdfast_${statement}_`)) return query(config)
        // pg drops a statement that has waited too long behind others. One that takes a lock may have been sent.
        if (statement.startsWith('take')) await query(config)
        throw new Error('Query read timeout')
      }
      Object.assign(client, { query: failing })
      const few = claims.slice(0, count)
      await assert.rejects(statement.startsWith('take') ? driver.acquire(few, newCall()) : driver.release(few))
      for (const { lockName } of claims) {
        await until('the lock to be free', async () => (await holdersOf(lockName)) === 0)
      }
      assert.equal(((await query({ text: 'SELECT 1' })) as { rowCount: number }).rowCount, 1)
      await driver.close()
      await client.end()
    },
  )

  it('a waiter that gives up at the moment of its grant leaves no lock behind, in 400 rounds', async () => {
    const name = unique('moment')
    const key = advisoryKey(name)
    const driver = postgresAdvisoryDriver({ client: pool })
    const holder = await pool.connect()
    for (let round = 0; round < 400; round += 1) {
      await holder.query('SELECT pg_advisory_lock($1)', [key])
      const claim = { ...claimOn(name), waiterTtlMs: 5_000 }
      await driver.acquire([claim], newCall())
      const unlock = async (): Promise<void> => {
        const atMs = performance.now() + (round % 16) * 0.1
        while (performance.now() < atMs) await new Promise((resolve) => setImmediate(resolve))
        await holder.query('SELECT pg_advisory_unlock($1)', [key])
      }
      await Promise.all([unlock(), driver.release([claim])])
      await until('the lock to be free', async () => (await holdersOf(name)) === 0)
    }
    holder.release()
    await driver.close()
  })

  it('closing the driver restores a Client that was passed in: locks, settings, statements', async () => {
    const client = new pg.Client(server.url)
    await client.connect()
    await client.query(`SET statement_timeout = '5s'; SET lock_timeout = '7s'; SET default_transaction_read_only = off`)
    await client.query('SELECT pg_advisory_lock(42), pg_advisory_lock_shared(4, 2)')
    const state = async () => {
      const settings = await client.query(
        `SELECT name, setting FROM pg_settings
         WHERE name ~ 'timeout|synchronous|keepalives|read_only|check_interval' ORDER BY name`,
      )
      const locks = await client.query(
        `SELECT classid, objid, objsubid, mode FROM pg_locks
         WHERE locktype = 'advisory' AND pid = pg_backend_pid() ORDER BY 1, 2, 3`,
      )
      const prepared = await client.query('SELECT name FROM pg_prepared_statements')
      return { settings: settings.rows, locks: locks.rows, prepared: prepared.rows }
    }
    const before = await state()
    const driver = postgresAdvisoryDriver({ client })
    const shared = { ...claimOn(unique('shared')), mode: 'shared' as const }
    await driver.acquire([claimOn(unique('a')), claimOn(unique('b')), shared], newCall())
    assert.equal((await client.query('SHOW synchronous_commit')).rows[0].synchronous_commit, 'on')
    await driver.close()
    assert.deepEqual(await state(), before)
    await client.end()
  })

  it('failures 5, 18: tokens rise over crashes, a clock that is set back, and a reset of statistics', async () => {
    using clock = await shiftedClock()
    await using own = await startPostgres({ clock })
    const tokens: number[] = []
    const draw = async (): Promise<void> => {
      const driver = await openPostgresAdvisory(own.url)
      for (let round = 0; round < 5; round += 1) {
        const claim = claimOn('token')
        const [grant] = await driver.acquire([claim], newCall())
        assert.ok(grant && 'granted' in grant && grant.granted)
        tokens.push(grant.fencingToken)
        await driver.release([claim])
      }
      await driver.close()
    }
    await draw()
    clock.shift(-3_600_000)
    await draw()
    clock.shift(0)
    await own.kill()
    await own.restart()
    await draw()
    const client = new pg.Client(own.url)
    client.on('error', () => {})
    await client.connect()
    const { rows } = await client.query('SELECT pg_backend_pid() AS pid')
    process.kill(rows[0].pid, 'SIGKILL')
    await until('recovery', () =>
      draw().then(
        () => true,
        () => false,
      ),
    )
    const admin = new pg.Client(own.url)
    await admin.connect()
    await admin.query(`SELECT pg_stat_reset_shared('bgwriter')`)
    await admin.end()
    await draw()
    assert.ok(tokens.length >= 25)
    assert.deepEqual(
      tokens,
      [...new Set(tokens)].sort((x, y) => x - y),
    )
    assert.ok(tokens.every(Number.isSafeInteger))
  })

  it('waiters on 12 names at once use no more connections than stated, and all are served', async () => {
    const name = unique('bound')
    const own = new pg.Pool({ connectionString: server.url, application_name: name })
    const driver = postgresAdvisoryDriver({ client: own, maxWaitingConnections: 3 })
    const lock = new DistributedLock({ driver })
    await using holder = await opened()
    const names = Array.from({ length: 12 }, (_, index) => `${name}:${index}`)
    const leases = await Promise.all(names.map((each) => holder.lock.hold(each)))
    const waiting = names.map((each) => lock.hold(each, { blockingTimeoutSeconds: 15 }))
    await until('three to wait in the server’s queue', async () => {
      const text = `SELECT count(*)::int FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE application_name = $1 AND NOT granted`
      return (await pool.query(text, [name])).rows[0].count === 3
    })
    const count = 'SELECT count(*)::int FROM pg_stat_activity WHERE application_name = $1'
    assert.ok((await pool.query(count, [name])).rows[0].count <= 4)
    await Promise.all(leases.map((lease) => lease.release()))
    await Promise.all(waiting)
    await lock.close()
    await driver.close()
    await own.end()
  })

  it('a lease that was waited for outlives the time that its place had', async () => {
    const name = unique('handed')
    await using holder = await opened()
    const lease = await holder.lock.hold(name)
    const driver = postgresAdvisoryDriver({ client: pool })
    const lock = new DistributedLock({ driver, waiterTtlSeconds: 0.5 })
    const waiting = lock.hold(name, { timeoutSeconds: 30, blocking: true })
    await until('it to wait', async () => (await driver.inspect({ lockName: name })).waiters.length === 1)
    await lease.release()
    const next = await waiting
    await sleep(800) // longer than the place lasted
    assert.equal(next.held, true)
    assert.equal((await driver.inspect({ lockName: name })).leases[0]?.fencingToken, next.fencingToken)
    await lock.close()
    await driver.close()
  })

  it('names are shown if they fit into the activity comment, and other locks by their key', async () => {
    const name = unique('shown')
    const driver = postgresAdvisoryDriver({ client: pool })
    const claims = Array.from({ length: 60 }, (_, index) =>
      claimOn(`${name}:${index}:${randomBytes(60).toString('hex')}`),
    )
    await driver.acquire(claims, newCall())
    const shown = (await driver.inspect({ prefix: name, pageSize: 100 })).leases.length
    assert.ok(shown > 0 && shown < 60, `${shown} of 60 fit`)
    const [answer] = await driver.acquire([{ ...claimOn(claims[59]?.lockName ?? ''), holderId: 'late' }], newCall())
    assert.ok(answer && 'granted' in answer && !answer.granted && answer.holder?.holderId)
    await driver.close()
  })

  it('an activity comment keeps every name unchanged, and no name can end the comment', () => {
    for (const lockName of ['*/ DROP TABLE x; --', '/*', '/', '*', '\\u002a', '"quoted"', 'ü日本🔒', "'; --", '$1']) {
      for (const room of [1_024, 130]) {
        const entry = {
          lockName,
          claimId: 'c',
          holderId: 'h'.repeat(40),
          shared: false,
          fencingToken: 7,
          acquiredAtMs: 1.5,
        }
        const comment = writeActivityComment([entry], room)
        assert.equal(comment.indexOf('*/'), comment.length - 2)
        assert.equal(comment.lastIndexOf('/*'), 0)
        assert.deepEqual(readActivityComment(`${comment}SELECT 1`), [entry])
      }
    }
    assert.equal(readActivityComment('SELECT 1'), undefined)
    assert.deepEqual(readActivityComment('/*holdfast [["cut of'), [])
  })
})

describe.concurrent('lockInTransaction', () => {
  it('is released by commit and by rollback, and excludes the session driver both ways', async () => {
    const name = unique('tx')
    const driver = postgresAdvisoryDriver({ client: pool })
    for (const end of ['COMMIT', 'ROLLBACK']) {
      const client = await pool.connect()
      await client.query('BEGIN')
      await lockInTransaction(client, name)
      assert.equal(await grantOn(driver, name), undefined)
      await client.query(end)
      const claim = claimOn(name)
      const [grant] = await driver.acquire([claim], newCall())
      assert.ok(grant && 'granted' in grant && grant.granted)
      await client.query('BEGIN')
      assert.equal(await tryLockInTransaction(client, name), false)
      await client.query('ROLLBACK')
      client.release()
      await driver.release([claim])
    }
    await driver.close()
  })

  it('shared locks do not exclude each other, through postgres', async () => {
    const sql = postgres(server.url, { onnotice: () => {} })
    const name = unique('tx-shared')
    await sql.begin(async (first) => {
      await lockInTransaction(first, name, { shared: true })
      await sql.begin(async (second) => {
        assert.equal(await tryLockInTransaction(second, name, { shared: true }), true)
        assert.equal(await sql.begin((third) => tryLockInTransaction(third, name)), false)
      })
    })
    await sql.end()
  })

  it('excludes behind PgBouncer in transaction mode', async () => {
    await using pgbouncer = await startPgBouncer(server)
    const pooled = new pg.Pool({ connectionString: pgbouncer.url, max: 6 })
    const name = unique('tx-pooled')
    let inside = 0
    await Promise.all(
      Array.from({ length: 6 }, async () => {
        for (let round = 0; round < 5; round += 1) {
          const client = await pooled.connect()
          await client.query('BEGIN')
          await lockInTransaction(client, name, { blocking: true })
          inside += 1
          assert.equal(inside, 1)
          await client.query('SELECT pg_sleep(0.002)')
          inside -= 1
          await client.query('COMMIT')
          client.release()
        }
      }),
    )
    await pooled.end()
  })
})

async function opened(): Promise<AsyncDisposable & { lock: DistributedLock }> {
  const driver = postgresAdvisoryDriver({ client: pool })
  const lock = new DistributedLock({ driver })
  return {
    lock,
    async [Symbol.asyncDispose]() {
      await lock.close()
      await driver.close()
    },
  }
}

/** Options of a connection whose functions come from a schema with this one. */
async function newSchema(definition: string): Promise<string> {
  const schema = `fake_${randomBytes(6).toString('hex')}`
  await pool.query(`CREATE SCHEMA ${schema}`)
  await pool.query(definition.replace('CREATE FUNCTION ', `CREATE FUNCTION ${schema}.`))
  return `-c search_path=${schema},pg_catalog`
}

async function holdersOf(lockName: string): Promise<number> {
  const text = `SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1`
  return (await pool.query(text, [advisoryKey(lockName)])).rowCount ?? 0
}

async function terminateHolder(lockName: string): Promise<void> {
  const text = `SELECT pg_terminate_backend(pid, 5000) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1`
  await pool.query(text, [advisoryKey(lockName)])
}

/** Found by trying: with 32 bits, some 80,000 names are enough for a collision. */
async function collidingNames(): Promise<[string, string]> {
  const text = `SELECT min(n) AS a, max(n) AS b FROM (SELECT 'name:' || i AS n FROM generate_series(1, 300000) i) x
    GROUP BY hashtext(n) HAVING count(*) > 1 LIMIT 1`
  const { rows } = await pool.query(text)
  return [rows[0].a, rows[0].b]
}
