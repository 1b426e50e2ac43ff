import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, it, vi } from 'vitest'
import { openDatabase } from '../../../src/drivers/sqlite/client.ts'
import { capabilities, openSqlite } from '../../../src/drivers/sqlite.ts'
import { type ConformanceStore, driverConformance } from '../../../src/testing/index.ts'
import { makeFolder } from '../../harness/folders.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

const folder = makeFolder('sqlite')
afterAll(() => folder.remove())

driverConformance({
  runner: { describe, it: it.concurrent, beforeAll, afterAll },
  name: 'sqlite',
  capabilities,
  open: openStore,
  breakable: {
    open: openStore,
    async loseData({ path }) {
      // The lost counter was never behind the clock, so the clock must have advanced for a higher token.
      await sleep(2)
      const database = await openDatabase(path)
      database.exec('PRAGMA busy_timeout = 5000')
      for (const table of ['leases', 'waiters', 'counter', 'rates']) database.exec(`DELETE FROM holdfast_${table}`)
      database.close()
    },
    // The clock is the machine's, so the stored times are moved the other way instead.
    async stepClock({ path }, ms) {
      const database = await openDatabase(path)
      database.exec(`
        PRAGMA busy_timeout = 5000;
        UPDATE holdfast_leases SET acquired_at_ms = acquired_at_ms - ${ms}, expires_at_ms = expires_at_ms - ${ms};
        UPDATE holdfast_waiters SET waiting_since_ms = waiting_since_ms - ${ms}, expires_at_ms = expires_at_ms - ${ms};
        UPDATE holdfast_counter SET last_token = last_token - ${ms} * 1000;
        UPDATE holdfast_rates SET reset_at_ms = reset_at_ms - ${ms};
      `)
      database.close()
    },
    // No `restart`: there is no server.
  },
})

async function openStore(): Promise<ConformanceStore & { readonly path: string }> {
  const path = join(folder.path, `${randomUUID()}.db`)
  return { path, driver: () => openSqlite(`sqlite:${path}`), close: async () => {} }
}
