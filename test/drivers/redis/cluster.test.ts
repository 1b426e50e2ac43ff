import { once } from 'node:events'
import { Cluster } from 'ioredis'
import { createCluster } from 'redis'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { type RedisClient, capabilities as redis, redisDriver } from '../../../src/drivers/redis.ts'
import { type ConformanceStore, driverConformance } from '../../../src/testing/index.ts'

// Names of one group may be in different slots.
const capabilities = { ...redis, groups: false }

driverConformance({
  runner: { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll },
  name: 'redis cluster through ioredis',
  capabilities,
  open: async () => storeOn(openThroughIoredis),
})

driverConformance({
  runner: { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll },
  name: 'redis cluster through node-redis',
  lockOnly: true,
  capabilities,
  open: async () => storeOn(openThroughNodeRedis),
})

interface Opened {
  readonly client: RedisClient
  close(): void
}

const ports = (): number[] => (inject('servers').cluster ?? []).map((url) => Number(new URL(url).port))

async function openThroughIoredis(): Promise<Opened> {
  const client = new Cluster(
    ports().map((port) => ({ host: '127.0.0.1', port })),
    { redisOptions: { commandTimeout: 20_000 } },
  )
  client.on('error', () => {})
  await once(client, 'ready')
  return { client, close: () => client.disconnect() }
}

async function openThroughNodeRedis(): Promise<Opened> {
  const client = createCluster({ rootNodes: ports().map((port) => ({ url: `redis://127.0.0.1:${port}` })) })
  client.on('error', () => {})
  await client.connect()
  return { client, close: () => client.destroy() }
}

function storeOn(open: () => Promise<Opened>): ConformanceStore {
  return {
    async driver() {
      const { client, close } = await open()
      const driver = redisDriver({ client, callTimeoutSeconds: 20 })
      return {
        ...driver,
        async close() {
          await driver.close()
          close()
        },
      }
    },
    close: async () => {},
  }
}
