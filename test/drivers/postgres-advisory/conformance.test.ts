import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { capabilities, type PostgresClient, postgresAdvisoryDriver } from '../../../src/drivers/postgres-advisory.ts'
import { type ConformanceStore, driverConformance } from '../../../src/testing/index.ts'

const url = inject('servers').postgres ?? ''

const runner = { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll }

driverConformance({
  runner,
  name: 'postgres-advisory through pg',
  capabilities,
  open: () => openStore(() => new pg.Pool({ connectionString: url, application_name: nextName() })),
})

driverConformance({
  runner,
  name: 'postgres-advisory through postgres',
  lockOnly: true,
  capabilities,
  open: () => openStore(() => postgres(url, { connection: { application_name: nextName() }, onnotice: () => {} })),
})

let names = 0
const nextName = (): string => {
  names += 1
  return `advisory test ${names}`
}

/** Each driver has a pool of its own. Its connections have an application name, so that they can be ended. */
async function openStore(create: () => PostgresClient & { end(): Promise<unknown> }): Promise<ConformanceStore> {
  const opened = new Map<Driver, string>()
  const pools: { end(): Promise<unknown> }[] = []
  const admin = new pg.Pool({ connectionString: url, max: 2 })
  return {
    async driver() {
      const client = create()
      pools.push(client)
      const driver = postgresAdvisoryDriver({ client })
      opened.set(driver, `advisory test ${names}`)
      // Connected in advance, so that a test with a deadline of a tenth of a second does not spend it on that.
      await driver.inspect({ lockName: 'free' })
      return driver
    },
    async endSession(driver) {
      const text = 'SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1'
      await admin.query(text, [opened.get(driver)])
    },
    async close() {
      await Promise.all(pools.map((pool) => pool.end()))
      await admin.end()
    },
  }
}
