import { randomBytes } from 'node:crypto'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { capabilities, type PostgresClient, postgresDriver } from '../../../src/drivers/postgres.ts'
import { type ConformanceStore, driverConformance } from '../../../src/testing/index.ts'
import { type ShiftedClock, shiftedClock } from '../../harness/clock-shim.ts'
import { type Server, startPostgres } from '../../harness/servers.ts'

const url = inject('servers').postgres ?? ''

const runner = { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll }

driverConformance({
  runner,
  name: 'postgres through pg',
  capabilities,
  open: () => openStore(throughPg(url)),
  breakable: {
    open: openHurtStore,
    async loseData(store) {
      await store.pool.query(`TRUNCATE ${store.tables.map((table) => `${store.schema}.${table}`).join(', ')}`)
      await store.pool.query(`ALTER SEQUENCE ${store.schema}.holdfast_tokens RESTART WITH 1`)
    },
    async restart(store) {
      await store.server.kill()
      await store.server.restart()
    },
    async stepClock(store, ms) {
      store.aheadMs += ms
      store.clock.shift(store.aheadMs)
    },
  },
})

driverConformance({
  runner,
  name: 'postgres through postgres',
  lockOnly: true,
  capabilities,
  open: () => openStore(throughSql(url)),
})

interface Opened {
  readonly client: PostgresClient
  end(): Promise<void>
}

/** One pool for all drivers of the suite, which never close it. Each driver has its own connection that listens. */
async function openStore({ client, end }: Opened): Promise<ConformanceStore> {
  return { driver: async () => postgresDriver({ client }), close: end }
}

function throughPg(connectionString: string): Opened {
  const client = new pg.Pool({ connectionString, max: 10 })
  return { client, end: () => client.end() }
}

function throughSql(url: string): Opened {
  const client = postgres(url, { max: 10, onnotice: () => {} })
  return { client, end: () => client.end() }
}

interface HurtStore extends ConformanceStore {
  readonly server: Server
  readonly clock: ShiftedClock
  readonly pool: pg.Pool
  readonly schema: string
  readonly tables: readonly string[]
  aheadMs: number
}

/** A server of its own, with a clock of its own. */
async function openHurtStore(): Promise<HurtStore> {
  const clock = await shiftedClock()
  const server = await startPostgres({ clock })
  const pool = new pg.Pool({ connectionString: server.url, max: 4 })
  const schema = `s${randomBytes(6).toString('hex')}`
  return {
    server,
    clock,
    pool,
    schema,
    tables: ['distributed_locks', 'holdfast_leases', 'holdfast_waiters', 'holdfast_rates'],
    aheadMs: 0,
    driver: async () => postgresDriver({ client: pool, schema }),
    async close() {
      await pool.end()
      await server[Symbol.asyncDispose]()
      clock[Symbol.dispose]()
    },
  }
}
