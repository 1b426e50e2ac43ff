import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, describe, it } from 'vitest'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { until } from '../../harness/processes.ts'
import { type Server, startRedis } from '../../harness/servers.ts'
import { startWorker, type Worker } from '../../harness/worker.ts'

/** Many processes on one server. */

const clients: Redis[] = []

afterAll(() => {
  for (const client of clients) client.disconnect()
})

describe('redis: many', () => {
  it('failure 35: a hand-off costs as much with 1,000 waiters in 4 processes as with 10', async () => {
    await using server = await startRedis()
    const few = await commandsPerHandOff(server, 'few', 10)
    const many = await commandsPerHandOff(server, 'many', 1_000)
    assert.ok(many.perHandOff <= 4, `${many.perHandOff} commands for each hand-off`)
    // With ten waiters, one more command is a tenth already, so only growth counts as a failure.
    assert.ok(many.perHandOff <= few.perHandOff * 1.1, `${many.perHandOff} with 1,000, ${few.perHandOff} with 10`)
    assert.equal(many.served, 1_000)
    // Each waiter polls twice within its waiter TTL of five minutes: about seven polls a second for all.
    assert.ok(many.whileWaiting <= 20, `${many.whileWaiting} commands in a second in which nothing happened`)
  }, 60_000)

  it('failure 18: tokens rise over 10,000 grants to 8 processes, over flushes and empty restarts', async () => {
    await using locks = await startRedis()
    await using data = await startRedis()
    const workers = await Promise.all(Array.from({ length: 8 }, () => startWorker({ source: GRANTS }, LONG)))
    const working = Promise.all(workers.map((worker) => worker.call('grants', locks.url, data.url, 1_250)))
    const control = client(locks)
    let hurts = 0
    const hurting = (async () => {
      for (let over = false; !over; ) {
        hurts += 1
        if (hurts % 3 === 0) {
          await locks.kill()
          await locks.restart()
        } else {
          await control.flushall().catch(() => {})
          await control.script('FLUSH').catch(() => {})
        }
        over = await Promise.race([working.then(() => true), sleep(250, false)])
      }
    })()
    const written = (await working).reduce((sum: number, each) => sum + Number(each), 0)
    await hurting
    assert.ok(hurts >= 2, `hurt ${hurts} times`)
    assert.ok(written >= 9_000, `${written} of 10,000 grants were written down, the rest was fenced off`)
    const seen = client(data)
    for (const key of await seen.keys('seen:*')) {
      const tokens = (await seen.lrange(key, 0, -1)).map(Number)
      tokens.forEach((token, at) => {
        assert.ok(at === 0 || token > (tokens[at - 1] as number), `${key}: ${token} after ${tokens[at - 1]}`)
      })
    }
    await Promise.all(workers.map((worker) => worker.kill()))
  }, 60_000)
})

const LONG = { callTimeoutMs: 50_000 }

/** Acquires twenty names at a time, records the grants behind the fence, and releases, until it has enough grants. */
const GRANTS = `
  import { Redis } from 'ioredis'
  import { redisDriver, redisFence } from 'holdfast/drivers/redis'
  const PATIENT = { retryStrategy: () => 20, maxRetriesPerRequest: null, commandTimeout: 20_000 }
  const open = (url) => new Redis(url, PATIENT).on('error', () => {})
  const PUSH = "redis.call('RPUSH', KEYS[1], ARGV[1]) return 1"
  let claims = 0
  expose({
    async grants(locksUrl, dataUrl, wanted) {
      const driver = redisDriver({ client: open(locksUrl), onWarning() {} })
      const fence = redisFence({ client: open(dataUrl) })
      let [granted, written] = [0, 0]
      while (granted < wanted) {
        const list = Array.from({ length: 20 }, (_, name) => ({
          lockName: 'name ' + name, claimId: process.pid + '.' + ++claims, holderId: 'h',
          mode: 'exclusive', permits: 1, ttlMs: 10_000, waiterTtlMs: 0,
        })).sort(() => Math.random() - 0.5)
        const answers = await driver.acquire(list).catch(() => [])
        const all = list.map((claim, at) => ({ ...claim, fencingToken: answers[at]?.fencingToken }))
        const got = all.filter(({ fencingToken }) => fencingToken)
        granted += got.length
        const writes = await Promise.allSettled(got.map(({ lockName, fencingToken }) =>
          fence.run(PUSH, { token: fencingToken, keys: ['seen:' + lockName], args: [String(fencingToken)] })))
        for (const write of writes) {
          if (write.status === 'fulfilled') written += 1
          else if (write.reason.code !== 'STALE_TOKEN') throw write.reason
        }
        await driver.release(list).catch(() => {})
      }
      return written
    },
  })
`

/** This many tasks take the lock one after the other. */
const WAITERS = `
  import { Redis } from 'ioredis'
  import { DistributedLock } from 'holdfast'
  import { redisDriver } from 'holdfast/drivers/redis'
  let turns
  expose({
    async wait(url, lockName, count) {
      const client = new Redis(url)
      const lock = new DistributedLock({ driver: redisDriver({ client }), waiterTtlSeconds: 300 })
      const options = { blockingTimeoutSeconds: 120, timeoutSeconds: 120 }
      turns = Array.from({ length: count }, () => lock.withLock(lockName, () => 1, options))
    },
    served: async () => (await Promise.all(turns)).length,
  })
`

/** The number of script calls and messages during the hand-offs, as the server counts them. */
async function commandsPerHandOff(server: Server, lockName: string, waiters: number) {
  const control = client(server)
  const driver = redisDriver({ client: client(server) })
  const lock = new DistributedLock({ driver })
  const held = await lock.hold(lockName, { timeoutSeconds: 120 })
  const workers: Worker[] = await Promise.all(Array.from({ length: 4 }, () => startWorker({ source: WAITERS }, LONG)))
  await Promise.all(
    workers.map((worker, at) => worker.call('wait', server.url, lockName, Math.floor((waiters + at) / workers.length))),
  )
  const allHear = async (): Promise<boolean> => {
    const texts = (await control.hvals(`holdfast:{lock:${lockName}}:d`)).filter((text) => text.startsWith('['))
    return texts.length === waiters && texts.every((text) => typeof (JSON.parse(text) as unknown[])[6] === 'string')
  }
  await until(allHear, { timeoutMs: 40_000, failure: () => `${waiters} waiters are not all in the queue` })
  await control.config('RESETSTAT')
  await sleep(1_000) // in which no waiter has a reason to ask
  const whileWaiting = await callsOf(control)
  await control.config('RESETSTAT')
  await held.release()
  const served = await Promise.all(workers.map((worker) => worker.call('served')))
  const calls = await callsOf(control)
  await Promise.all(workers.map((worker) => worker.kill()))
  await lock.close()
  const total = served.reduce((sum: number, each) => sum + Number(each), 0)
  const measured = { served: total, perHandOff: calls / total, whileWaiting }
  if (process.env['HOLDFAST_FIGURES'] !== undefined) console.log(lockName, measured)
  return measured
}

/** The number of script calls and messages since the last RESETSTAT. */
async function callsOf(control: Redis): Promise<number> {
  const info = await control.info('commandstats')
  const calls = (command: string): number => Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(info)?.[1] ?? 0)
  return calls('evalsha') + calls('eval') + calls('publish')
}

function client({ port }: Server): Redis {
  const opened = new Redis(port, { commandTimeout: 20_000, retryStrategy: () => 20 })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}
