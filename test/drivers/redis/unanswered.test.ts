import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { describe, it } from 'vitest'
import { MAX_UNANSWERED_COMMANDS } from '../../../src/core/limits.ts'
import { slotOf } from '../../../src/drivers/redis/keys.ts'
import { openRedis, type RedisClient, redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { viaNodeRedis } from '../../harness/node-redis-driver.ts'
import { until } from '../../harness/processes.ts'
import { type FaultProxy, startProxy } from '../../harness/proxy.ts'
import { type RedisCluster, startRedis, startRedisCluster } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

const open = {
  ioredis: async (port: number) => {
    const client = new Redis(port, '127.0.0.1')
    client.on('error', () => {})
    return { client: client as RedisClient, close: () => client.disconnect() }
  },
  'node-redis': async (port: number) => {
    const client = createClient({ socket: { port, host: '127.0.0.1' } })
    client.on('error', () => {})
    await client.connect()
    return { client: client as unknown as RedisClient, close: () => client.destroy() }
  },
}

/** Without a client of the caller. */
const opened = { ioredis: openRedis, 'node-redis': viaNodeRedis }

describe.concurrent('redis: a server that hangs', () => {
  for (const library of ['ioredis', 'node-redis'] as const) {
    it(`failure 66: keeps a bounded number of commands in ${library}, and all is well when it answers`, async () => {
      await using server = await startRedis()
      const { client, close } = await open[library](server.port)
      const driver = redisDriver({ client, onWarning() {} })
      const lock = new DistributedLock({ driver, callTimeoutSeconds: 1 })
      await lock.ping()
      await server.pause()
      const errors: string[] = []
      // One in each turn: a command for each.
      const ask = async (at: number): Promise<void> => {
        await lock.acquire(`name ${at}`).catch((error: Error) => errors.push(error.message))
      }
      const asked: Promise<void>[] = []
      const startMs = performance.now()
      for (let at = 0; performance.now() - startMs < 8_000; at += 1) {
        asked.push(ask(at))
        await new Promise((resolve) => setTimeout(resolve, 10))
      }
      await Promise.all(asked)
      assert.match(errors.at(-1) ?? '', /has not answered \d+ commands for 5 s/)
      const kept = errors.filter((message) => !/has not answered \d+ commands/.test(message)).length
      assert.ok(kept < 5_000 / 10 + MAX_UNANSWERED_COMMANDS, `${kept} commands were sent`)
      server.resume()
      await grantedSoon(lock)
      await lock.close()
      close()
    }, 60_000)
  }

  for (const [library, open] of Object.entries(opened)) {
    it(`failure 66: replacing its own connection of ${library} does not let more commands in`, async () => {
      await using server = await startRedis()
      const driver = await open(`redis://127.0.0.1:${server.port}`)
      const lock = new DistributedLock({ driver, callTimeoutSeconds: 1 })
      await lock.ping()
      await server.pause()
      let kept = 0
      const asked: Promise<unknown>[] = []
      const count = ({ message }: Error): void => {
        assert.match(message, /did not answer|has not answered|cannot reach/)
        if (!/has not answered \d+ commands/.test(message)) kept += 1
      }
      const startMs = performance.now()
      let early = 0
      for (let at = 0; performance.now() - startMs < 9_500; at += 1) {
        asked.push(lock.acquire(`name ${at}`).catch(count))
        if (performance.now() - startMs < 5_500) early += 1
        await new Promise((resolve) => setTimeout(resolve, 5))
      }
      await Promise.all(asked)
      assert.ok(kept <= early + MAX_UNANSWERED_COMMANDS, `${kept} claims were sent, ${early} of them in time`)
      server.resume()
      await grantedSoon(lock)
      await lock.close()
      await driver.close()
    }, 60_000)

    it(`failure 26: a connection of its own that has gone silent is replaced in ${library}`, async () => {
      await using server = await startRedis()
      await using proxy = await startProxy(server.port)
      const driver = await open(`redis://127.0.0.1:${proxy.port}`)
      const lock = new DistributedLock({ driver, callTimeoutSeconds: 1 })
      await lock.ping()
      await replacedIn(proxy, () => lock.ping())
      await grantedSoon(lock)
      await lock.close()
      await driver.close()
    }, 60_000)

    it(`failure 26: a Cluster node's connection that has gone silent is replaced in ${library}`, async () => {
      await using cluster = await startRedisCluster({ settings: { 'cluster-require-full-coverage': 'no' } })
      const proxies = await announcedProxies(cluster)
      const silent = proxies[0] as FaultProxy
      const driver = await open(`redis+cluster://${proxies.map(({ port }) => `127.0.0.1:${port}`).join(',')}`)
      const lock = new DistributedLock({ driver, callTimeoutSeconds: 1 })
      // The first node has the lowest slots.
      const name = Array.from({ length: 100 }, (_, at) => `name ${at}`).find((each) => slotOf(`lock:${each}`) < 5_000)
      assert.ok(name !== undefined)
      await (await lock.hold(name)).release()
      await replacedIn(silent, () => lock.acquire(name))
      await grantedSoon(lock, name)
      await lock.close()
      await driver.close()
      await Promise.all(proxies.map((proxy) => proxy.close()))
    }, 60_000)
  }
})

/** Not concurrent: the event loop is blocked. */
describe('redis: a process that stalled', () => {
  it('failure 80: a connection is not replaced before the answers that have arrived are read', async () => {
    await using server = await startRedis()
    const lock = new DistributedLock({ url: `redis://127.0.0.1:${server.port}` })
    const probe = new Redis(server.port)
    const opened = async () => Number(/total_connections_received:(\d+)/.exec(await probe.info('stats'))?.[1])
    await lock.ping()
    const before = await opened()
    // In different turns, so that the second is sent while the first is not answered.
    const claims = [lock.acquire('one')]
    await afterTicks()
    claims.push(lock.acquire('two'))
    await afterTicks()
    const late = new Promise<void>((done) => {
      setTimeout(() => done(lock.acquire('three').then(() => {})), 1)
    })
    const startMs = performance.now()
    while (performance.now() - startMs < 5_200);
    for (const each of [...claims, late]) await each
    assert.equal(await opened(), before)
    await lock.close()
    probe.disconnect()
  }, 30_000)
})

/** Calls while the proxy drops everything, until there is another connection. */
async function replacedIn(proxy: FaultProxy, call: () => Promise<unknown>): Promise<void> {
  const before = proxy.connections
  assert.ok(before > 0)
  proxy.blackHole()
  const startMs = performance.now()
  while (performance.now() - startMs < 8_000) await call().catch(() => undefined)
  // In the black hole, the end of the old one does not arrive.
  assert.ok(proxy.connections > before, 'it has opened no other connection')
  proxy.heal()
}

/** Clients find the nodes only through the proxies. */
async function announcedProxies({ nodes }: RedisCluster): Promise<FaultProxy[]> {
  const proxies = await Promise.all(nodes.map(({ port }) => startProxy(port)))
  for (const [at, node] of nodes.entries()) {
    await askRedis(node, 'CONFIG', 'SET', 'cluster-announce-bus-port', node.port + 10_000)
    await askRedis(node, 'CONFIG', 'SET', 'cluster-announce-port', (proxies[at] as FaultProxy).port)
  }
  const areKnown = async (): Promise<boolean> => {
    const answers = await Promise.all(nodes.map((node) => askRedis(node, 'CLUSTER', 'SLOTS')))
    return answers.every((slots) => proxies.every(({ port }) => String(slots).includes(`,${port},`)))
  }
  await until(areKnown, { timeoutMs: 20_000, failure: () => 'the nodes do not announce the proxies' })
  return proxies
}

async function grantedSoon(lock: DistributedLock, name = 'name'): Promise<void> {
  const isGranted = async (): Promise<boolean> => {
    const { acquired } = await lock.acquire(name).catch(() => ({ acquired: false }))
    return acquired
  }
  await until(isGranted, { timeoutMs: 10_000, failure: () => 'no lock is granted after the server has come back' })
}

/** Until what was asked for has been sent. No answer is read before that. */
async function afterTicks(): Promise<void> {
  for (let at = 0; at < 5; at += 1) await new Promise<void>((done) => process.nextTick(done))
}
