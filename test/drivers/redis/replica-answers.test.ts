import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Claim, Driver, Renewal } from '../../../src/core/driver.ts'
import { type RedisFence, redisDriver, redisFence } from '../../../src/drivers/redis.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { freePort } from '../../harness/ports.ts'
import { type Server, startRedis } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

// A client can reach a replica by mistake: behind one address, after a failover, or with ioredis on a Cluster. A
// replica lags behind its master, so what it has or lacks proves nothing.

let server: Server
let client: Redis
let driver: Driver
let fence: RedisFence

beforeAll(async () => {
  server = await startRedis()
  client = new Redis(server.port, '127.0.0.1')
  driver = redisDriver({ client, onWarning() {} })
  fence = redisFence({ client })
  for (const waiterTtlMs of [0, 60_000]) await driver.acquire([{ ...claimOf('held'), waiterTtlMs }], newCall())
  await fence.accept('resource', 7)
  // A replica keeps its data until it has reached its master.
  await askRedis(server, 'REPLICAOF', '127.0.0.1', await freePort())
})

afterAll(async () => {
  client.disconnect()
  await server[Symbol.asyncDispose]()
})

describe('redis: a replica without the newest writes', () => {
  const missing = (lockName: string): Renewal => ({ ...claimOf(lockName), fencingToken: 7 })

  it('failure 57: does not say that a lease is lost', async () => {
    await expect(driver.renew([missing('free')])).rejects.toThrow('READONLY')
    await expect(driver.renew([missing('held')])).rejects.toThrow('READONLY')
    const many = Array.from({ length: 20 }, () => missing('free'))
    expect(await driver.renew(many)).toEqual(many.map(() => expect.objectContaining({ message: READONLY })))
  })

  it('does not say that there was no lease to release', async () => {
    await expect(driver.release([missing('free')])).rejects.toThrow('READONLY')
    await expect(driver.release([missing('held')])).rejects.toThrow('READONLY')
    await expect(driver.release([missing('free'), missing('free')])).rejects.toThrow('READONLY')
  })

  it('does not refuse a claim', async () => {
    await expect(driver.acquire([claimOf('held')], newCall())).rejects.toThrow('READONLY')
  })

  it('does not accept a fencing token', async () => {
    await expect(fence.accept('resource', 7)).rejects.toThrow('READONLY')
  })
})

const READONLY = expect.stringContaining('READONLY')

let counter = 0

function claimOf(lockName: string): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 }
}
