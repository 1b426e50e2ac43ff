import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { afterAll, describe, expect, it } from 'vitest'
import type { Driver, InspectQuery } from '../../../src/core/driver.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { openDatabase } from '../../../src/drivers/sqlite/client.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { DistributedLock, Semaphore } from '../../../src/index.ts'
import { makeFolder } from '../../harness/folders.ts'
import { until } from '../../harness/processes.ts'
import { startRedis } from '../../harness/servers.ts'

const folder = makeFolder('deadlock-crowds')
afterAll(() => folder.remove())

const SOON = { deadlockAfterSeconds: 0.05 }
const LONG = { blockingTimeoutSeconds: 60 }

/** A file in which other clients hold many leases, and a driver that records what is asked of it. */
async function crowded(names: number, leases: number) {
  const path = join(folder.path, `${randomUUID()}.db`)
  const driver = await openSqlite(`sqlite:${path}`)
  // Written without the driver: acquiring so many leases one by one would take too long.
  const database = await openDatabase(path)
  const insert = database.prepare(`
    INSERT INTO holdfast_leases
      (lock_name, claim_id, holder_id, mode, permits, fencing_token, acquired_at_ms, expires_at_ms, ttl_ms)
    WITH RECURSIVE counter(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < CAST(? AS INTEGER))
    SELECT 'crowd' || (n % CAST(? AS INTEGER)), 'other.' || n || '-aaaaaaaaaaaa', 'other', 'shared', 1, n, 0, ?, 3600000
    FROM counter`)
  insert.run(leases, names, Date.now() + 3_600_000)
  database.close()
  const queries: InspectQuery[] = []
  let records = 0
  const watched: Driver = {
    ...driver,
    async inspect(query) {
      queries.push(query)
      const page = await driver.inspect(query)
      records += page.leases.length + page.waiters.length
      return page
    },
  }
  return { driver: watched, queries, records: () => records, close: () => driver.close() }
}

/** Waits for a lock inside another lock until the watch has read the name more than once. */
async function waitAWhile(lock: DistributedLock, lockName: string, queries: readonly InspectQuery[]): Promise<unknown> {
  const stop = new AbortController()
  const waiting = lock.withLock('own', () => lock.withLock(lockName, () => 'in', { ...LONG, signal: stop.signal }))
  const ended = waiting.catch((error: unknown) => (error as { code?: string }).code ?? error)
  await searchedTwice(lockName, queries)
  stop.abort()
  return ended
}

const searchedTwice = (lockName: string, queries: readonly InspectQuery[]): Promise<void> =>
  until(() => queries.filter((query) => (query.lockName ?? lockName) === lockName).length > 1, {
    timeoutMs: 20_000,
    failure: () => `the queries were ${JSON.stringify(queries.slice(0, 10))}`,
  })

describe('leases of other clients cost a waiting claim nothing:', () => {
  it('130,000 shared leases on one name, whether the claim waits for that name or not', async () => {
    const { driver, queries, close } = await crowded(1, 130_000)
    const lock = new DistributedLock({ driver, ...SOON })
    const x = await lock.hold('x')
    expect(await waitAWhile(lock, 'x', queries)).toBe('ABORTED')
    expect(queries.some(({ lockName }) => lockName === 'crowd0')).toBe(false)
    expect(await waitAWhile(lock, 'crowd0', queries)).toBe('ABORTED')
    expect(x.held).toBe(true)
    await lock.close()
    await close()
  })

  it('100,000 lock names that the claim does not wait for', async () => {
    const { driver, queries, records, close } = await crowded(100_000, 100_000)
    const lock = new DistributedLock({ driver, ...SOON })
    const x = await lock.hold('x')
    expect(await waitAWhile(lock, 'x', queries)).toBe('ABORTED')
    expect(x.held).toBe(true)
    // Two searches with two requests each: who holds the lock, and what that holder waits for.
    expect(queries.length).toBeLessThanOrEqual(4)
    expect(queries.every(({ lockName }) => lockName !== undefined)).toBe(true)
    expect(records()).toBeLessThan(20)
    await lock.close()
    await close()
  })

  it('200 permits, each of whose holders might wait, take a bounded number of requests', async () => {
    const { driver, queries, close } = await crowded(1, 1)
    const workers = new Semaphore({ driver, limit: 200, ...SOON })
    const lock = new DistributedLock({ driver, ...SOON })
    const held = await Promise.all(Array.from({ length: 200 }, () => workers.hold('s', { blocking: false })))
    queries.length = 0
    const stop = new AbortController()
    const waiting = lock.withLock('own', () => workers.hold('s', { ...LONG, signal: stop.signal }))
    await searchedTwice('s', queries)
    stop.abort()
    await expect(waiting).rejects.toMatchObject({ code: 'ABORTED' })
    expect(queries.length).toBeLessThanOrEqual(2 * (1 + 64))
    expect(held).toHaveLength(200)
    await Promise.all([workers.close(), lock.close()])
    await close()
  })
})

describe('redis with 50,000 keys of other clients', () => {
  it('the watch sends no SCAN', async () => {
    await using server = await startRedis()
    const client = new Redis(server.port)
    await client.eval("for i = 1, 50000 do redis.call('SET', 'lock:other' .. i, 'x') end", 0)
    const driver = redisDriver({ client })
    const queries: InspectQuery[] = []
    const inspect: Driver['inspect'] = (query) => {
      queries.push(query)
      return driver.inspect(query)
    }
    const lock = new DistributedLock({ driver: { ...driver, inspect }, ...SOON })
    await lock.hold('x')
    expect(await waitAWhile(lock, 'x', queries)).toBe('ABORTED')
    expect(await client.info('commandstats')).not.toContain('cmdstat_scan')
    await lock.close()
    await driver.close()
    client.disconnect()
  })
})
