import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { Capabilities } from '../../src/core/driver.ts'
import { capabilities as memory } from '../../src/drivers/memory.ts'
import { capabilities as postgres } from '../../src/drivers/postgres.ts'
import { capabilities as advisory } from '../../src/drivers/postgres-advisory.ts'
import { capabilities as redis } from '../../src/drivers/redis.ts'
import { capabilities as redlock } from '../../src/drivers/redlock.ts'
import { capabilities as sqlite } from '../../src/drivers/sqlite.ts'

const drivers: Record<string, Capabilities> = {
  memory,
  sqlite,
  postgres,
  redis,
  'postgres-advisory': advisory,
  redlock,
}

const rows: Record<string, (capabilities: Capabilities) => boolean> = {
  'time left': ({ expiry }) => expiry === 'ttl',
  queue: ({ queue, expiry }) => queue || expiry === 'session',
  'metadata, published values': ({ metadata }) => metadata,
  'semaphores, rate limits': ({ limit, rate }) => limit && rate,
  'forced release': ({ force }) => force !== false,
}

test('the guide says what the dashboard can show of each store', () => {
  const guide = readFileSync(join(import.meta.dirname, '../../docs/guides/dashboard.md'), 'utf8')
  const cellsOf = (line: string): string[] => line.split('|').map((cell) => cell.trim())
  const [, , ...columns] = cellsOf(/^\| \| memory.*$/m.exec(guide)?.[0] ?? '')
  for (const [title, can] of Object.entries(rows)) {
    const cells = cellsOf(guide.split('\n').find((line) => line.startsWith(`| ${title} |`)) ?? '').slice(2)
    for (const [at, column] of columns.entries()) {
      for (const driver of column.split(', ').filter(Boolean)) {
        const capabilities = drivers[driver] as Capabilities
        expect(cells[at]?.startsWith('yes'), `${title} of ${driver}`).toBe(can(capabilities))
      }
    }
  }
})
