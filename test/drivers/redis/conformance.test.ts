import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { capabilities, redisDriver } from '../../../src/drivers/redis.ts'
import { type ConformanceStore, driverConformance } from '../../../src/testing/index.ts'
import { type ShiftedClock, shiftedClock } from '../../harness/clock-shim.ts'
import { startRedis } from '../../harness/servers.ts'

driverConformance({
  runner: { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll },
  name: 'redis through ioredis',
  capabilities,
  open: () => openStore(openThroughIoredis),
  breakable: {
    open: async () => {
      const clock = await shiftedClock()
      return openStore(openThroughIoredis, clock)
    },
    async loseData(store) {
      await sleep(2)
      await store.command('FLUSHALL')
    },
    restart: (store) => store.restart(),
    stepClock: async (store, ms) => store.stepClock(ms),
  },
})

driverConformance({
  runner: { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll },
  name: 'redis through node-redis',
  lockOnly: true,
  capabilities,
  open: () => openStore(openThroughNodeRedis),
})

interface Opened {
  readonly client: Parameters<typeof redisDriver>[0]['client']
  close(): unknown
}

async function openThroughIoredis(url: string): Promise<Opened> {
  const client = new Redis(url, { commandTimeout: 20_000, retryStrategy: () => 20 })
  client.on('error', () => {})
  return { client, close: () => client.disconnect() }
}

async function openThroughNodeRedis(url: string): Promise<Opened> {
  const client = createClient({ url })
  client.on('error', () => {})
  await client.connect()
  return { client, close: () => client.isOpen && client.destroy() }
}

interface OpenRedisStore extends ConformanceStore {
  command(name: string): Promise<unknown>
  restart(): Promise<void>
  stepClock(ms: number): void
}

/** A server of its own; closing it ends the clients that the drivers were given. */
async function openStore(open: (url: string) => Promise<Opened>, clock?: ShiftedClock): Promise<OpenRedisStore> {
  const server = await startRedis(clock && { clock })
  const control = new Redis(server.url, { commandTimeout: 20_000 })
  control.on('error', () => {})
  let aheadMs = 0
  return {
    async driver() {
      const { client, close } = await open(server.url)
      const driver = redisDriver({ client, callTimeoutSeconds: 20 })
      return {
        ...driver,
        async close() {
          await driver.close()
          close()
        },
      }
    },
    command: (name) => control.call(name),
    restart: async () => {
      await server.kill()
      await server.restart()
    },
    stepClock(ms) {
      aheadMs += ms
      clock?.shift(aheadMs)
    },
    async close() {
      control.disconnect()
      await server[Symbol.asyncDispose]()
      clock?.[Symbol.dispose]()
    },
  }
}
