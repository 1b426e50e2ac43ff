import { join } from 'node:path'
import { Cluster, Redis } from 'ioredis'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Capabilities, Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, capabilities as memory, memoryDriver } from '../../../src/drivers/memory.ts'
import { capabilities as postgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { capabilities as advisory, postgresAdvisoryDriver } from '../../../src/drivers/postgres-advisory.ts'
import { capabilities as redis, redisDriver } from '../../../src/drivers/redis.ts'
import { capabilities as redlock, redlockDriver } from '../../../src/drivers/redlock.ts'
import { openSqlite, capabilities as sqlite } from '../../../src/drivers/sqlite.ts'
import { makeFolder } from '../../harness/folders.ts'
import { sections } from './sections.ts'
import { type Body, type Drivers, inScene, type Need, unmet } from './test-context.ts'

/**
 * The cases of the Web Locks specification on every driver. Two managers with their own drivers are the two clients.
 */

const cleanUps: (() => Promise<unknown> | unknown)[] = []
afterAll(async () => {
  for (const cleanUp of cleanUps.reverse()) await cleanUp()
})

const servers = inject('servers')

const stores: readonly [name: string, capabilities: Capabilities, open: () => Promise<() => Promise<Driver>>][] = [
  [
    'memory',
    memory,
    async () => {
      const store = createMemoryStore()
      return async () => memoryDriver({ store })
    },
  ],
  [
    'sqlite',
    sqlite,
    async () => {
      const folder = makeFolder('web-locks')
      cleanUps.push(() => folder.remove())
      return () => openSqlite(`sqlite:${join(folder.path, 'locks.db')}`)
    },
  ],
  ['redis', redis, async () => async () => redisDriver({ client: redisClient(0) })],
  ['redis cluster', redis, async () => async () => redisDriver({ client: clusterClient() })],
  [
    'redlock',
    redlock,
    async () => async () => {
      const nodes = [0, 1, 2].map((index) => redisDriver({ client: redisClient(index), prefix: 'web-locks-redlock:' }))
      return redlockDriver({ nodes, persistent: true, nodeTimeoutSeconds: 4 })
    },
  ],
  ['postgres', postgres, async () => async () => postgresDriver({ client: pool() })],
  ['postgres-advisory', advisory, async () => async () => postgresAdvisoryDriver({ client: pool() })],
]

for (const [name, capabilities, open] of stores) {
  describe(`web locks on ${name}`, () => {
    let drivers: Drivers
    beforeAll(async () => {
      const driver = await open()
      const [a, b] = [await driver(), await driver()]
      drivers = { capabilities, a, b }
      cleanUps.push(() => Promise.all([a.close(), b.close()]))
    })
    for (const [title, section] of sections) {
      describe(title, () => {
        section((claim, ...rest) => {
          const [needs, body] = rest.length === 1 ? [[] as readonly Need[], rest[0] as Body] : rest
          const reason = unmet({ capabilities }, needs)
          if (reason === undefined) it.concurrent(claim, () => inScene(drivers, body))
          else it.skip(`${claim} (skipped: the driver has no ${reason})`, () => {})
        })
      })
    }
  })
}

function redisClient(index: number): Redis {
  const client = new Redis(servers.redis?.[index] ?? '', { commandTimeout: 5_000 })
  cleanUps.push(() => client.disconnect())
  return client
}

function clusterClient(): Cluster {
  const nodes = (servers.cluster ?? []).map((url) => ({ host: '127.0.0.1', port: Number(new URL(url).port) }))
  const client = new Cluster(nodes, { redisOptions: { commandTimeout: 5_000 } })
  cleanUps.push(() => client.disconnect())
  return client
}

function pool(): pg.Pool {
  const client = new pg.Pool({ connectionString: servers.postgres ?? '', max: 4 })
  cleanUps.push(() => client.end())
  return client
}
