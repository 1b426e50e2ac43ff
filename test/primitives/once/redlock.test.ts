import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { redlockDriver } from '../../../src/drivers/redlock.ts'
import { type InvalidArgumentError, OnceOnly } from '../../../src/index.ts'
import { until } from '../../harness/processes.ts'
import { type Server, startRedis } from '../../harness/servers.ts'

/** Redlock keeps nothing longer than its `longestTtlSeconds`. */
describe('OnceOnly on redlock', () => {
  let server: Server
  const clients: Redis[] = []

  beforeAll(async () => {
    server = await startRedis()
  })

  afterAll(async () => {
    for (const client of clients) client.disconnect()
    await server[Symbol.asyncDispose]()
  })

  const instance = (): OnceOnly => {
    const client = new Redis(server.port)
    clients.push(client)
    const driver = redlockDriver({ nodes: [redisDriver({ client })], longestTtlSeconds: 1.5 })
    return new OnceOnly({ driver })
  }

  it('a period that is longer than the driver keeps anything is rejected before the job runs', async () => {
    let runs = 0
    const job = (): number => ++runs
    const refusals: unknown[] = []
    const refused = (error: unknown): number => refusals.push(error)
    for (const once of [instance(), instance(), instance()]) {
      await once.everyTick('report', job, { timeoutSeconds: 1 })(new Date(0)).catch(refused)
      await once.once('payment', job, { forSeconds: 1.6, timeoutSeconds: 1 }).catch(refused)
      await once.close()
    }
    assert.equal(runs, 0, `the job ran ${runs} times`)
    assert.deepEqual(
      refusals.map((error) => (error as InvalidArgumentError).argument),
      Array(6).fill('forSeconds'),
    )
  })

  it('a tick that is remembered as long as the driver allows runs once over all instances', async () => {
    const instances = [instance(), instance(), instance()]
    let runs = 0
    const options = { forSeconds: 1.5, timeoutSeconds: 1.5 }
    const ticks = instances.map((once) => once.everyTick('report', () => ++runs, options))
    const elsewhere = { ran: false, reason: 'elsewhere' }
    // A server does not vote right after its first use.
    const voting = async (): Promise<boolean> =>
      instances[0]?.once('voting', () => true, { ...options, blockingTimeoutSeconds: 0 }).catch(() => false) ?? false
    await until(voting, { timeoutMs: 10_000, failure: () => 'the server never voted' })
    const results = await Promise.all(ticks.map((tick) => tick(new Date(0))))
    assert.equal(runs, 1)
    assert.deepEqual(
      results.toSorted((a, b) => Number(b.ran) - Number(a.ran)),
      [{ ran: true, result: 1 }, elsewhere, elsewhere],
    )
    await Promise.all(instances.map((once) => once.close()))
  })
})
