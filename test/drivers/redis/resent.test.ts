import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Cluster } from 'ioredis'
import { createClient, createSentinel } from 'redis'
import { afterEach, describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { openRedis, redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock, LeaseLostError } from '../../../src/index.ts'
import { type FaultProxy, startProxy } from '../../harness/proxy.ts'
import { claim, client, granted, name, shared } from '../../harness/redis-server.ts'
import { askRedis } from '../../harness/wire.ts'

/**
 * A client that has lost its connection may send a command again by itself. If the first copy of a release ended the
 * lease, the second finds nothing. Its "no" is not a loss.
 */

interface Opened {
  readonly driver: Driver
  readonly proxies: readonly FaultProxy[]
}

const closing: (() => unknown)[] = []

afterEach(async () => {
  for (const close of closing.splice(0)) await close()
})

const clients: [through: string, open: () => Promise<Opened>][] = [
  [
    'ioredis',
    async () => {
      const proxy = await proxyTo(shared.port)
      return { driver: redisDriver({ client: client(proxy.port) }), proxies: [proxy] }
    },
  ],
  [
    'node-redis',
    async () => {
      const proxy = await proxyTo(shared.port)
      const opened = createClient({ url: `redis://127.0.0.1:${proxy.port}` })
      opened.on('error', () => {})
      closing.unshift(() => opened.destroy())
      await opened.connect()
      return { driver: redisDriver({ client: opened }), proxies: [proxy] }
    },
  ],
  [
    'a URL',
    async () => {
      const proxy = await proxyTo(shared.port)
      const driver = await openRedis(`redis://127.0.0.1:${proxy.port}`)
      closing.unshift(() => driver.close())
      return { driver, proxies: [proxy] }
    },
  ],
  [
    'ioredis on a Cluster',
    async () => {
      const ports = (inject('servers').cluster ?? []).map((url) => Number(new URL(url).port))
      const proxies = await Promise.all(ports.map(proxyTo))
      const natMap = Object.fromEntries(
        ports.map((port, at) => [`127.0.0.1:${port}`, { host: '127.0.0.1', port: (proxies[at] as FaultProxy).port }]),
      )
      const opened = new Cluster(
        proxies.map(({ port }) => ({ host: '127.0.0.1', port })),
        { natMap },
      )
      opened.on('error', () => {})
      closing.unshift(() => opened.disconnect())
      await once(opened, 'ready')
      return { driver: redisDriver({ client: opened }), proxies }
    },
  ],
  [
    'node-redis and Sentinel',
    async () => {
      const { urls = [], masterName = '' } = inject('servers').sentinel ?? {}
      const sentinels = urls.map((url) => ({ host: '127.0.0.1', port: Number(new URL(url).port) }))
      const asked = await askRedis(sentinels[0] as { port: number }, 'SENTINEL', 'GET-MASTER-ADDR-BY-NAME', masterName)
      const [host, port] = asked as [string, string]
      const proxy = await proxyTo(Number(port))
      const opened = createSentinel({
        name: masterName,
        sentinelRootNodes: sentinels,
        nodeAddressMap: { [`${host}:${port}`]: { host: '127.0.0.1', port: proxy.port } },
      })
      opened.on('error', () => {})
      closing.unshift(() => opened.destroy())
      await opened.connect()
      return { driver: redisDriver({ client: opened }), proxies: [proxy] }
    },
  ],
]

for (const [through, open] of clients) {
  describe(`redis: a release whose reply was lost, through ${through}`, () => {
    it('failure 39: is unknown, not a release without a lease, and has ended the lease', async () => {
      const { driver, proxies } = await open()
      const held = claim()
      const { fencingToken } = await granted(driver, held)
      const cut = cutDuringRelease(proxies)
      const [answer] = await driver.release([{ ...held, fencingToken }]).catch((error: Error) => [error])
      await cut
      assert.ok(answer instanceof Error, `the driver is sure of ${answer}`)
      const { leases } = await driver.inspect({ lockName: held.lockName })
      assert.deepEqual(leases, [])
    })

    it('failure 39: does not count as a lost lease in withLock', async () => {
      const { driver, proxies } = await open()
      await using lock = new DistributedLock({ driver })
      const lost: unknown[] = []
      lock.on('lost', ({ error }) => lost.push(error))
      let cut: Promise<void> | undefined
      const result = await lock.withLock(name(), async () => {
        cut = cutDuringRelease(proxies)
        return 'done'
      })
      await cut
      assert.equal(result, 'done')
      assert.deepEqual(lost, [])
    })

    it('a lease that another client ended is a loss if the connection was not lost', async () => {
      const { driver } = await open()
      await using lock = new DistributedLock({ driver })
      const lockName = name()
      const work = lock.withLock(lockName, async () => {
        await granted(driver, claim({ lockName, forceUpTo: Number.MAX_SAFE_INTEGER }))
      })
      await assert.rejects(work, LeaseLostError)
    })
  })
}

for (const [through, open] of clients) {
  it(`redis: a rate-limiting step whose reply was lost is charged once or twice, through ${through}`, async () => {
    const { driver, proxies } = await open()
    const step = { name: name(), cost: 1, limits: [{ limit: 10, periodMs: 3_600_000, burst: 10 }] }
    // From now on the server has the script, so it takes the step at the first request.
    await driver.consume?.([{ ...step, cost: 0 }])
    const cut = Promise.race(proxies.map((proxy) => proxy.cutAfterForwarding(step.name)))
    await driver.consume?.([step])
    await cut
    for (const proxy of proxies) proxy.heal()
    const [answer] = (await driver.consume?.([{ ...step, cost: 0 }])) ?? []
    assert.ok(answer !== undefined && !(answer instanceof Error), String(answer))
    assert.ok(answer.remaining === 9 || answer.remaining === 8, `${answer.remaining} of 10 are left`)
  })
}

async function proxyTo(port: number): Promise<FaultProxy> {
  const proxy = await startProxy(port)
  closing.push(() => proxy.close())
  return proxy
}

/** The server runs the command, and its answer is lost. */
const cutDuringRelease = (proxies: readonly FaultProxy[]): Promise<void> =>
  Promise.race(proxies.map((proxy) => proxy.cutAfterForwarding('release')))
