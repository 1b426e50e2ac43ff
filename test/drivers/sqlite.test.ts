import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { capabilities, openSqlite } from '../../src/drivers/sqlite.ts'
import { type ConformanceStore, driverConformance } from '../../src/testing/index.ts'

const folder = mkdtempSync(join(tmpdir(), 'holdfast-sqlite-'))

driverConformance({
  runner: { describe, it: it.concurrent, beforeAll, afterAll },
  name: 'sqlite',
  capabilities,
  open: openStore,
})

async function openStore(): Promise<ConformanceStore> {
  const path = join(folder, `${randomUUID()}.db`)
  return {
    driver: () => openSqlite(`sqlite:${path}`),
    async close() {
      rmSync(folder, { recursive: true, force: true })
    },
  }
}
