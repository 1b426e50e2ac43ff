import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import pg from 'pg'
import { describe, expect, inject, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock, LeaderElection, OnceOnly, ReadWriteLock, Semaphore } from '../../../src/index.ts'
import { startRedis } from '../../harness/servers.ts'

describe('ping', () => {
  it('opens the store of a url, and leaves no row behind in PostgreSQL', async () => {
    const schema = `ping_${process.pid}`
    const url = `${inject('servers').postgres}?holdfast_schema=${schema}`
    await using lock = new DistributedLock({ url })
    await lock.ping()
    const client = new pg.Client({ connectionString: inject('servers').postgres })
    await client.connect()
    const { rows } = await client.query(
      `SELECT (SELECT count(*) FROM ${schema}.distributed_locks)::int AS locks,
              (SELECT version FROM ${schema}.holdfast_format) AS version`,
    )
    assert.equal(rows[0].locks, 0)
    assert.ok(rows[0].version > 0)
    await lock.close()
    await client.query(`DROP SCHEMA ${schema} CASCADE`)
    await client.end()
  })

  it('leaves nothing behind in Redis except the token counter', async () => {
    await using server = await startRedis()
    const client = new Redis(server.url)
    await using lock = new DistributedLock({ driver: redisDriver({ client }) })
    await lock.ping()
    assert.deepEqual(await client.keys('*'), ['holdfast:token'])
    await client.quit()
  })

  it('is a method of every primitive that holds leases', async () => {
    const driver = memoryDriver()
    const primitives = [
      new DistributedLock({ driver }),
      new ReadWriteLock({ driver }),
      new Semaphore({ driver, limit: 2 }),
      new LeaderElection({ driver, name: 'leader' }),
      new OnceOnly({ driver }),
    ]
    for (const primitive of primitives) expect(await primitive.ping()).toBe(undefined)
    await driver.close()
    for (const primitive of primitives) await assert.rejects(primitive.ping(), { code: 'CLOSED' })
  })

  it('rejects while the store cannot be opened, and works once it can', async () => {
    await using lock = new DistributedLock({ url: 'redis://127.0.0.1:1', callTimeoutSeconds: 0.5 })
    await assert.rejects(lock.ping(), { code: 'STORE_UNAVAILABLE', retryable: true })
  })
})

describe('isLocked and inspect', () => {
  it('show a lock of another client, also without a prefix', async () => {
    await using server = await startRedis()
    const client = new Redis(server.url)
    await client.set('job', 'of another client')
    await client.set('lock:job', 'of another client')
    for (const prefix of ['', 'lock:']) {
      await using lock = new DistributedLock({ driver: redisDriver({ client, prefix, onWarning() {} }) })
      assert.equal((await lock.acquire('job')).acquired, false)
      assert.equal(await lock.isLocked('job'), true)
      const { leases } = await lock.inspect('job')
      assert.equal(leases.length, 1)
      assert.deepEqual([leases[0]?.acquiredAt, leases[0]?.expiresAt], [undefined, undefined])
    }
    await client.quit()
  })

  it('show about the first 10,000 leases, and report that there are more', async () => {
    const driver = memoryDriver()
    const plain = { holderId: 'reader', mode: 'shared', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 } as const
    const claims = Array.from({ length: 25 }, (_, at) => ({ ...plain, lockName: 'name', claimId: `${at}` }))
    await driver.acquire(claims, { secret: '' })
    // A store with endless pages.
    const leases = (await driver.inspect({ lockName: 'name' })).leases
    let pages = 0
    const endless = {
      ...driver,
      async inspect() {
        pages += 1
        const page = leases.map((lease) => ({ ...lease, claimId: `${pages} ${lease.claimId}` }))
        return { leases: page, waiters: [], next: `${pages}` }
      },
    }
    await using lock = new DistributedLock({ driver: endless })
    const inspection = await lock.inspect('name')
    assert.equal(inspection.complete, false)
    assert.equal(inspection.leases.length, 10_000)
  })
})
