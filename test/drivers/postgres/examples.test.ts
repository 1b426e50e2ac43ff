import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, inject, test, vi } from 'vitest'

process.env['DATABASE_URL'] = inject('servers').postgres ?? ''

test('examples/postgres/fencing.ts: a paused process’s late UPDATE is refused', async () => {
  expect(await said(() => import('../../../examples/postgres/fencing.ts'))).toEqual([
    'the rival wrote 70',
    'the sleeper was rejected: STALE_TOKEN',
    'the balance is 70',
  ])
})

const clients = ['drizzle', 'knex', 'kysely', 'pg', 'postgres', 'prisma']

test('lockInTransaction has an example for every client and query builder that it names', () => {
  const files = readdirSync(join(import.meta.dirname, '../../../examples/postgres'))
  expect(files.filter((file) => file.startsWith('transaction-')).sort()).toEqual(
    clients.map((client) => `transaction-${client}.ts`),
  )
})

test.each(clients)(
  'examples/postgres/transaction-%s.ts: a lock that lasts as long as the transaction',
  async (client) => {
    const run = () => import(`../../../examples/postgres/transaction-${client}.ts`)
    expect(await said(run)).toEqual([
      'acquired',
      'another transaction meanwhile: false',
      'after the commit: true',
      'rolled back: no such customer',
      'after the rollback: true',
    ])
  },
)

async function said(run: () => Promise<unknown>): Promise<unknown[]> {
  const log = vi.spyOn(console, 'log').mockImplementation(() => {})
  try {
    await run()
    return log.mock.calls.map(([line]) => line)
  } finally {
    log.mockRestore()
  }
}
