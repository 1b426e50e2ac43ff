import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, describe, inject, it } from 'vitest'
import type { Driver, DriverListener, LeaseRef } from '../../../src/core/driver.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { postgresAdvisoryDriver } from '../../../src/drivers/postgres-advisory.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, leasesOn, unique, until, waitersOn } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
const pool = new pg.Pool({ connectionString: url })
afterAll(() => pool.end())

describe.concurrent('postgres: hand-over', () => {
  it('a turn of two instances is one acquire: the grant comes with the release, without another call', async () => {
    assert.ok((await acquiresPerTurn(() => postgresDriver({ client: pool }))) < 1.8)
  })

  it('the same holds for advisory locks', async () => {
    assert.ok((await acquiresPerTurn(() => postgresAdvisoryDriver({ client: pool }))) < 1.8)
  })

  it('a lease that is shortened wakes its first waiter, and no other', async () => {
    const driver = postgresDriver({ client: pool })
    const [holder, first, second] = [claimOn(unique('short')), claimOn('', 60_000), claimOn('', 60_000)]
    const { lockName } = holder
    const { fencingToken } = await granted(driver, holder)
    const woken: string[] = []
    const hear = (claimId: string): void => void woken.push(claimId)
    const wake: DriverListener['wake'] = (target) => 'claimId' in target && hear(target.claimId)
    const stop = await driver.listen?.({ wake, granted: hear, lost: () => {}, disconnected: () => {} })
    await driver.acquire([{ ...first, lockName }], newCall())
    await driver.acquire([{ ...second, lockName }], newCall())
    assert.equal(await waitersOn(driver, lockName), 2)
    await driver.renew([{ ...holder, fencingToken, ttlMs: 120_000 }])
    await driver.renew([{ ...holder, fencingToken, ttlMs: 30_000 }])
    await until('the first waiter to be woken', () => woken.length > 0)
    assert.deepEqual(woken, [first.claimId])
    await stop?.()
    await driver.close()
  })

  it('a dead waiter is skipped at any place in the queue, and those behind it keep their order', async () => {
    const driver = postgresDriver({ client: pool })
    const lockName = unique('dead')
    const holder = claimOn(lockName)
    await granted(driver, holder)
    const claims = [claimOn(lockName, 60_000), claimOn(lockName, 1), claimOn(lockName, 60_000), claimOn(lockName, 1)]
    for (const claim of claims) await driver.acquire([claim], newCall())
    const [first, , third] = claims
    const told: string[] = []
    const hear = (claimId: string): unknown => told.push(claimId)
    const stop = await driver.listen?.({ granted: hear, wake: () => {}, lost: () => {}, disconnected: () => {} })
    await driver.release([holder])
    await until('the first to be granted', () => told.length === 1)
    await driver.release([first as typeof holder])
    await until('the third to be granted', () => told.length === 2)
    assert.deepEqual(told, [first?.claimId, third?.claimId])
    assert.deepEqual(await driver.release([third as typeof holder]), [true])
    assert.equal((await driver.inspect({ lockName })).leases.length, 0)
    await stop?.()
    await driver.close()
  })
})

describe.concurrent('postgres: a waiter behind more dead ones than are read at once', () => {
  it('is answered when the lease before it ends, and is granted the lock with its release', async () => {
    const driver = postgresDriver({ client: pool })
    const holder = claimOn(unique('behind'))
    const { lockName } = holder
    await granted(driver, holder)
    await driver.acquire(
      Array.from({ length: 250 }, () => claimOn(lockName, 1)),
      newCall(),
    )
    const living = claimOn(lockName, 60_000)
    await driver.acquire([living], newCall())
    const ended = `SELECT FROM holdfast_waiters WHERE lock_name = $1 AND expires_at > clock_timestamp()`
    await until('the others to be dead', async () => (await pool.query(ended, [lockName])).rowCount === 1)
    const [refused] = await driver.acquire([living], newCall())
    assert.ok(refused && 'granted' in refused && !refused.granted && refused.ahead === 0, JSON.stringify(refused))
    await driver.release([holder])
    const { leases, waiters } = await driver.inspect({ lockName })
    assert.deepEqual([leases.map(({ claimId }) => claimId), waiters], [[living.claimId], []])
    await driver.close()
  })
})

describe.concurrent('postgres: hand-over after the counter of tokens was lost', () => {
  const ways = {
    'a release': (driver: Driver, holder: LeaseRef) => driver.release([holder]),
    'a list of releases': (driver: Driver, holder: LeaseRef) => driver.release([holder, claimOn(unique('other'))]),
    'a forced release': (_: Driver, { lockName }: LeaseRef, schema: string) =>
      pool.query(`SELECT ${schema}.force_release_lock($1, 'test')`, [lockName]),
  }
  for (const [way, end] of Object.entries(ways)) {
    it(`failure 18: ${way} gives the next holder a higher token than the last one had`, async () => {
      const schema = `lost_${randomBytes(6).toString('hex')}`
      const driver = postgresDriver({ client: pool, schema })
      const [holder, next] = [claimOn('a'), claimOn('a', 60_000)]
      const { fencingToken } = await granted(driver, holder)
      await driver.acquire([next], newCall())
      await pool.query(`ALTER SEQUENCE ${schema}.holdfast_tokens RESTART`)
      await end(driver, { ...holder, fencingToken }, schema)
      const [handed] = (await driver.inspect({ lockName: 'a' })).leases
      assert.equal(handed?.claimId, next.claimId)
      assert.ok(handed.fencingToken > fencingToken, `${handed.fencingToken} after ${fencingToken}`)
      await driver.close()
      await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
    })
  }
})

/** Two instances take turns. Each has a driver of its own, and both always want the lock. */
async function acquiresPerTurn(open: () => Driver): Promise<number> {
  const turns = 40
  const lockName = unique('turns')
  let acquires = 0
  const drivers = [open(), open()].map(
    (driver): Driver => ({
      ...driver,
      acquire(claims, call) {
        acquires += 1
        return driver.acquire(claims, call)
      },
    }),
  )
  const locks = drivers.map((driver) => new DistributedLock({ driver }))
  await Promise.all(
    locks.map(async (lock) => {
      for (let turn = 0; turn < turns; turn += 1)
        await lock.withLock(lockName, () => {}, { blockingTimeoutSeconds: 30 })
    }),
  )
  for (const lock of locks) await lock.close()
  for (const driver of drivers) await driver.close()
  return acquires / (turns * locks.length)
}

describe.concurrent('postgres: a waiter that polls', () => {
  /** Two waiters, the first of which asks for a lease that is shorter than the time until it asks again. */
  async function queued(driver: Driver) {
    const lockName = unique('polls')
    const holder = claimOn(lockName)
    await granted(driver, holder)
    const first = { ...claimOn(lockName, 60_000), ttlMs: 300 }
    const second = claimOn(lockName, 60_000)
    for (const claim of [first, second]) await driver.acquire([claim], newCall())
    return { lockName, holder, first, second }
  }

  it('failure 69: is granted the lock until it can have asked, and then for its own time to live', async () => {
    const driver = postgresDriver({ client: pool })
    const { lockName, holder, first } = await queued(driver)
    await driver.release([holder])
    await sleep(600) // longer than the lease that it asked for
    await granted(driver, first)
    const [lease] = await leasesOn(driver, lockName)
    const ttlMs = Number(lease?.expiresAtMs) - (await serverMs())
    assert.ok(ttlMs <= 300, `its lease lasts for ${ttlMs} ms`)
    await driver.close()
  })

  it('failure 69: also one that listens, if the lock is handed over by a role that cannot notify it', async () => {
    const [schema, role] = [`keyless_${randomBytes(6).toString('hex')}`, `keyless_${randomBytes(6).toString('hex')}`]
    await migratePostgres({ client: pool, schema })
    await pool.query(`CREATE ROLE ${role} LOGIN; GRANT USAGE ON SCHEMA ${schema} TO ${role};
      GRANT ALL ON ALL TABLES IN SCHEMA ${schema} TO ${role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role};
      REVOKE ALL ON SEQUENCE ${schema}.holdfast_key_1, ${schema}.holdfast_key_2 FROM ${role}`)
    const theirs = new pg.Pool({ connectionString: url.replace('postgres@', `${role}@`), max: 2 })
    const [driver, keyless] = [
      postgresDriver({ client: pool, schema }),
      postgresDriver({ client: theirs, schema, migrate: false }),
    ]
    const stop = await driver.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} })
    const { holder, first } = await queued(driver)
    await keyless.release([holder])
    await sleep(600) // longer than the lease that it asked for
    await granted(driver, first)
    await stop?.()
    await Promise.all([driver.close(), keyless.close()])
    await theirs.end()
    await pool.query(`SET client_min_messages = warning; DROP OWNED BY ${role} CASCADE; DROP SCHEMA ${schema} CASCADE;
      DROP ROLE ${role}`)
  })

  it('one that listens and is notified keeps its own time to live: a dead one delays the queue no longer', async () => {
    const driver = postgresDriver({ client: pool })
    const stop = await driver.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} })
    const { lockName, holder, first } = await queued(driver)
    await driver.release([holder])
    const [lease] = await leasesOn(driver, lockName)
    assert.equal(lease?.claimId, first.claimId)
    assert.ok(Number(lease?.expiresAtMs) - Number(lease?.acquiredAtMs) <= 300)
    await stop?.()
    await driver.close()
  })
})

const serverMs = async (): Promise<number> =>
  (await pool.query('SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 AS now')).rows[0].now
