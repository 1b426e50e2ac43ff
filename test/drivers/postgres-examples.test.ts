import { expect, inject, test, vi } from 'vitest'

process.env['DATABASE_URL'] = inject('servers').postgres ?? ''

test('examples/postgres/fencing.ts: a paused process’s late UPDATE is refused', async () => {
  expect(await said(() => import('../../examples/postgres/fencing.ts'))).toEqual([
    'the rival wrote 70',
    'the sleeper was refused: STALE_TOKEN',
    'the balance is 70',
  ])
})

test('examples/postgres/transaction.ts: through pg and through postgres', async () => {
  expect(await said(() => import('../../examples/postgres/transaction.ts'))).toEqual([
    'pg has it: true',
    'postgres gets it meanwhile: false',
    'postgres gets it after the commit: true',
  ])
})

async function said(run: () => Promise<unknown>): Promise<unknown[]> {
  const log = vi.spyOn(console, 'log').mockImplementation(() => {})
  try {
    await run()
    return log.mock.calls.map(([line]) => line)
  } finally {
    log.mockRestore()
  }
}
