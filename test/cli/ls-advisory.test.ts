import { randomBytes } from 'node:crypto'
import { expect, inject, test } from 'vitest'
import { createStore, SLOW, UNTIL_CLOSED } from '../harness/cli.ts'

test('holdfast ls shows advisory locks with their names, holders and waiters', SLOW, async () => {
  await using store = createStore()
  const prefix = `advisory ${randomBytes(4).toString('hex')}`
  const HOLDFAST_URL = (inject('servers').postgres ?? '').replace('postgres:', 'postgres+advisory:')
  const env = { HOLDFAST_URL }
  const holder = store.start(['run', `${prefix}:cron`, '--', ...UNTIL_CLOSED], { env })
  const shared = store.start(['run', `${prefix}:report ü`, '--shared', '--', ...UNTIL_CLOSED], { env })
  await Promise.all([holder.says(/up/), shared.says(/up/)])
  const waiter = store.start(['run', `${prefix}:cron`, '--', 'true'], { env })
  const seen = async () => (await store.run(['ls', prefix, '--json'], env)).stdout.trimEnd().split('\n')
  await expect.poll(seen, { timeout: 30_000 }).toHaveLength(3)
  const shown = (await seen()).map((line) => JSON.parse(line) as Record<string, unknown>)
  const pidOf = (pid: number) => expect.stringMatching(new RegExp(`:${pid}$`))
  expect(shown).toEqual([
    expect.objectContaining({
      state: 'holds',
      lockName: `${prefix}:cron`,
      mode: 'exclusive',
      holderId: pidOf(holder.pid),
    }),
    expect.objectContaining({
      state: 'holds',
      lockName: `${prefix}:report ü`,
      mode: 'shared',
      holderId: pidOf(shared.pid),
    }),
    expect.objectContaining({ state: 'waits', lockName: `${prefix}:cron`, holderId: pidOf(waiter.pid) }),
  ])
  expect(shown.every(({ state, fencingToken }) => state === 'waits' || Number.isSafeInteger(fencingToken))).toBe(true)
  await holder.end()
  expect(await waiter.exited).toBe(0)
})
