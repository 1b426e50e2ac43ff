import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { describe, it } from 'vitest'
import { MAX_UNANSWERED_COMMANDS } from '../../../src/core/limits.ts'
import { type RedisClient, redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { until } from '../../harness/processes.ts'
import { startProxy } from '../../harness/proxy.ts'
import { startRedis } from '../../harness/servers.ts'

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
      await until(async () => (await lock.acquire('name').catch(() => ({ acquired: false }))).acquired, {
        timeoutMs: 10_000,
        failure: () => 'no lock is granted after the server has come back',
      })
      await lock.close()
      close()
    }, 60_000)
  }

  it('failure 26: a connection of its own that has gone silent is replaced', async () => {
    await using server = await startRedis()
    const proxy = await startProxy(server.port)
    const lock = new DistributedLock({ url: `redis://127.0.0.1:${proxy.port}`, callTimeoutSeconds: 1 })
    await lock.ping()
    const before = proxy.connections
    assert.ok(before > 0)
    proxy.blackHole()
    const startMs = performance.now()
    while (performance.now() - startMs < 7_500) await lock.ping().catch(() => undefined)
    assert.ok(proxy.connections > before, 'it has opened no other connection')
    proxy.heal()
    await until(
      async () =>
        lock.ping().then(
          () => true,
          () => false,
        ),
      {
        timeoutMs: 10_000,
        failure: () => 'it does not answer',
      },
    )
    await lock.close()
    await proxy.close()
  }, 60_000)
})
