import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { capabilities, redlockDriver } from '../../../src/drivers/redlock.ts'
import { type ConformanceStore, driverConformance } from '../../../src/testing/index.ts'
import { type ShiftedClock, shiftedClock } from '../../harness/clock-shim.ts'
import { startRedis } from '../../harness/redis.ts'
import { type Server, startServers } from '../../harness/servers.ts'

for (const count of [3, 4, 5]) {
  driverConformance({
    runner: { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll },
    name: `redlock over ${count}`,
    lockOnly: count !== 3,
    capabilities,
    open: () => openStore(count),
    ...(count === 3 && {
      breakable: {
        open: async () => openStore(count, await shiftedClock()),
        async loseData(store: RedlockStore) {
          await sleep(2)
          await Promise.all(store.servers.map((server) => flush(server)))
        },
        async restart({ servers }: RedlockStore) {
          await Promise.all(
            servers.map(async (server) => {
              await server.kill()
              await server.restart()
            }),
          )
        },
        stepClock: async (store: RedlockStore, ms: number) => store.stepClock(ms),
      },
    }),
  })
}

interface RedlockStore extends ConformanceStore {
  readonly servers: readonly Server[]
  stepClock(ms: number): void
}

async function openStore(count: number, clock?: ShiftedClock): Promise<RedlockStore> {
  const started = clock === undefined ? await startServers({ redis: count }) : undefined
  const servers =
    started?.redis ?? (await Promise.all(Array.from({ length: count }, () => startRedis({ ...(clock && { clock }) }))))
  let aheadMs = 0
  return {
    servers,
    async driver() {
      const clients = servers.map(({ port }) => new Redis(port, { commandTimeout: 20_000, retryStrategy: () => 20 }))
      for (const client of clients) client.on('error', () => {})
      const nodes = clients.map((client) => redisDriver({ client, callTimeoutSeconds: 20 }))
      // The servers were just started and have forgotten nothing: they may vote at once.
      const driver = redlockDriver({ nodes, persistent: true, nodeTimeoutSeconds: 9 })
      return {
        ...driver,
        async close() {
          await driver.close()
          await Promise.all(nodes.map((node) => node.close()))
          for (const client of clients) client.disconnect()
        },
      }
    },
    stepClock(ms) {
      aheadMs += ms
      clock?.shift(aheadMs)
    },
    async close() {
      await Promise.all(servers.map((server) => server[Symbol.asyncDispose]()))
      clock?.[Symbol.dispose]()
    },
  }
}

async function flush({ port }: Server): Promise<void> {
  const client = new Redis(port)
  await client.flushall()
  client.disconnect()
}
