import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { describe, it } from 'vitest'
import type { Driver, LeaseRef } from '../../../src/core/driver.ts'
import { openPostgres } from '../../../src/drivers/postgres.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, leasesOn, unique, until, waitersOn } from '../../harness/postgres-context.ts'
import { type Server, startPostgres } from '../../harness/servers.ts'

/** A server is started and recovers, and the machine may be busy. */
const SLOW = { timeout: 60_000 }

describe.concurrent('postgres: a crash of the server', SLOW, () => {
  for (const [releaser, waiter] of [
    ['relaxed', 'crash-safe'],
    ['crash-safe', 'crash-safe'],
    ['crash-safe', 'relaxed'],
  ] as const) {
    it(`failure 36: keeps the lease that a ${releaser} client has handed over to a ${waiter} waiter`, async () => {
      await using server = await startCrashing()
      const name = unique('handed-over')
      await using first = await openLock(server, releaser)
      await using second = await openLock(server, waiter)
      const before = await first.lock.hold(name)
      const waiting = second.lock.hold(name, { blockingTimeoutSeconds: 15 })
      await until('the second to wait', async () => (await waitersOn(first.driver, name)) === 1)
      await until('it to listen', () => listens(server))
      await server.writeAll()
      await before.release()
      const lease = await waiting
      await server.crash()
      const [found] = await leasesOn(second.driver, name)
      assert.equal(found?.fencingToken, lease.fencingToken)
      assert.equal(lease.held, true)
    })
  }

  it('failure 36: keeps a lease that was handed over by a relaxed list whose rows are ended one by one', async () => {
    await using server = await startCrashing()
    const names = [unique('a'), unique('b')] as const
    await using driver = await open(server, 'relaxed')
    await using waiter = await openLock(server, 'crash-safe')
    const leases = []
    for (const name of names) {
      const claim = claimOn(name)
      leases.push({ ...claim, ...(await granted(driver, claim)) })
    }
    const waiting = waiter.lock.hold(names[0], { blockingTimeoutSeconds: 15 })
    await until('it to wait', async () => (await waitersOn(driver, names[0])) === 1)
    await until('it to listen', () => listens(server))
    await server.writeAll()
    // As the procedure does with rows that were locked at first: each is a call of its own, in one transaction.
    const call = ({ lockName, claimId, fencingToken }: LeaseRef): string =>
      `SELECT holdfast_change_leases('{${lockName}}', '{${claimId}}', '{${fencingToken}}', NULL, true);`
    await ask(server, `BEGIN; ${leases.map(call).join('')} COMMIT`)
    const lease = await waiting
    await server.crash()
    const [found] = await leasesOn(driver, names[0])
    assert.equal(found?.fencingToken, lease.fencingToken)
  })

  it('never brings back a lease that a crash-safe client has released, alone or in a list', async () => {
    await using server = await startCrashing()
    await using driver = await open(server, 'crash-safe')
    const leases = []
    for (const name of [unique('a'), unique('b'), unique('c')]) {
      const claim = claimOn(name)
      leases.push({ ...claim, ...(await granted(driver, claim)) })
    }
    assert.deepEqual(await driver.release(leases.slice(0, 2)), [true, true])
    assert.deepEqual(await driver.release(leases.slice(2)), [true])
    await server.crash()
    for (const { lockName } of leases) assert.deepEqual(await leasesOn(driver, lockName), [])
  })

  it('never takes a grant or a renewal of a crash-safe client along, released leases before it included', async () => {
    await using server = await startCrashing()
    await using driver = await open(server, 'crash-safe')
    const name = unique('kept')
    const first = { ...claimOn(name), ttlMs: 30_000 }
    const { fencingToken } = await granted(driver, first)
    assert.deepEqual(await driver.release([{ ...first, fencingToken }]), [true])
    const second = { ...claimOn(name), ttlMs: 2_000 }
    const grant = await granted(driver, second)
    assert.deepEqual(await driver.renew([{ ...second, fencingToken: grant.fencingToken, ttlMs: 40_000 }]), ['renewed'])
    await server.crash()
    const [found] = await leasesOn(driver, name)
    assert.equal(found?.fencingToken, grant.fencingToken)
    await sleep(Math.max(0, 2_100 - (Date.now() - (found?.acquiredAtMs ?? 0)))) // for the time to live of the grant
    assert.equal((await leasesOn(driver, name)).length, 1)
  })
})

describe('postgres: which calls wait for the disk', SLOW, () => {
  for (const [session, expected] of [
    ['local', 'local'],
    ['off', 'on'],
  ] as const) {
    it(`every call that hands a lock over waits, in a session with synchronous_commit = ${session}`, async () => {
      await using server = await startPostgres()
      await using driver = await open(server, 'crash-safe')
      const client = new pg.Client({ connectionString: server.url, options: `-c synchronous_commit=${session}` })
      await client.connect()
      for (const handOver of [
        ({ lockName, claimId }: LeaseRef) =>
          `holdfast_change_leases('{${lockName}}', '{${claimId}}', '{NULL}', NULL, true)`,
        ({ lockName }: LeaseRef) => `force_release_lock('${lockName}', 'test')`,
        ({ lockName }: LeaseRef) => `release_lock('${lockName}', 'plain')`,
      ]) {
        const [held, waiter] = [claimOn(unique('held')), unique('waiter')]
        if (handOver(held).startsWith('release_lock'))
          await client.query(`SELECT acquire_lock('${held.lockName}', 'plain')`)
        else await granted(driver, held)
        await driver.acquire([{ ...claimOn(held.lockName, 60_000), claimId: waiter }], newCall())
        await client.query(`BEGIN; SELECT holdfast_set_durability(true)`)
        await client.query(`SELECT ${handOver(held)}`)
        const { rows } = await client.query('SHOW synchronous_commit')
        await client.query('COMMIT')
        assert.equal(rows[0].synchronous_commit, expected, handOver(held))
        assert.deepEqual(
          (await leasesOn(driver, held.lockName)).map((lease) => lease.claimId),
          [waiter],
        )
      }
      await client.end()
    })
  }

  it('raising the setting restores what it was: `on` may wait for a standby that is down', async () => {
    await using server = await startPostgres()
    await using driver = await open(server, 'crash-safe')
    const held = claimOn(unique('held'))
    await granted(driver, held)
    const client = new pg.Client({ connectionString: server.url, options: '-c synchronous_commit=local' })
    await client.connect()
    const setting = async () => (await client.query('SHOW synchronous_commit')).rows[0].synchronous_commit
    const acquire = (lockName: string, relaxed: boolean) =>
      client.query(`SELECT holdfast_acquire(ARRAY['${lockName}'], ARRAY['${unique('claim')}'], '{h}', '{f}', '{NULL}',
        '{1}', '{60000}', '{0}', '{NULL}', 'none', ${relaxed})`)
    const seen: string[] = []
    await client.query('BEGIN')
    await acquire(held.lockName, false) // refused
    seen.push(await setting())
    await acquire(unique('free'), false)
    seen.push(await setting())
    await client.query('COMMIT')
    seen.push(await setting())
    await client.query('BEGIN')
    await acquire(unique('free'), true)
    seen.push(await setting())
    await client.query('SELECT holdfast_set_durability(false)') // as in a hand-over
    seen.push(await setting())
    await client.query('COMMIT')
    seen.push(await setting())
    await client.end()
    assert.deepEqual(seen, ['off', 'local', 'local', 'off', 'local', 'local'])
  })
})

interface CrashingServer extends AsyncDisposable {
  readonly url: string
  /** Writes all that was committed to the disk. */
  writeAll(): Promise<void>
  /** Crashes, without what no call has waited for, and recovers. */
  crash(): Promise<void>
}

async function startCrashing(): Promise<CrashingServer> {
  const server = await startPostgres()
  const writer = `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`
  const { pid } = await ask(server, writer)
  process.kill(Number(pid), 'SIGSTOP') // No other process writes to the disk what did not wait for it.
  return {
    url: server.url,
    writeAll: async () => void (await ask(server, 'CREATE TABLE IF NOT EXISTS on_the_disk ()')),
    async crash() {
      process.kill(Number(pid), 'SIGKILL')
      await until('recovery', async () => {
        const found = await ask(server, writer).catch(() => undefined)
        return found !== undefined && found['pid'] !== pid
      })
    },
    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
  }
}

async function ask({ url }: Pick<Server, 'url'>, text: string): Promise<Record<string, unknown>> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 })
  client.on('error', () => {}) // The server crashes.
  try {
    await client.connect()
    return (await client.query(text)).rows?.[0]
  } finally {
    await client.end().catch(() => {})
  }
}

const listens = async (server: Pick<Server, 'url'>): Promise<boolean> =>
  (await ask(server, `SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'`))['count'] !== '0'

type Durability = 'relaxed' | 'crash-safe'

async function open(server: Pick<Server, 'url'>, durability: Durability): Promise<Driver & AsyncDisposable> {
  const driver = await openPostgres(`${server.url}?holdfast_durability=${durability}`)
  return { ...driver, [Symbol.asyncDispose]: () => driver.close() }
}

async function openLock(server: Pick<Server, 'url'>, durability: Durability) {
  const driver = await open(server, durability)
  const lock = new DistributedLock({ driver })
  return {
    driver,
    lock,
    async [Symbol.asyncDispose]() {
      await lock.close()
      await driver.close()
    },
  }
}
