import { expect, it } from 'vitest'
import { OnceOnly } from '../../../src/index.ts'
import { gate, setUp, watched } from './helper.ts'

/** Inside the run of A, one instance calls B and does not await it. Inside the run of B, the other one waits for A. */
async function play(how: 'once' | 'everyTick') {
  const { time, driver, settings } = setUp({ now: undefined })
  const first = new OnceOnly({ ...settings, driver })
  const second = new OnceOnly({ ...settings, driver })
  const both = gate()
  const forHour = { forSeconds: 3_600 }
  const call = (jobs: OnceOnly, fn: () => Promise<string>): Promise<unknown> =>
    how === 'once' ? jobs.once('B', fn, forHour) : jobs.everyTick('B', fn, { everySeconds: 3_600 })()
  const a = watched(
    first.once(
      'A',
      async () => {
        await both.opened
        call(first, async () => 'b').catch(() => undefined)
        await new Promise<void>((resolve) => void time.in(10_000, resolve))
        return 'a'
      },
      forHour,
    ),
  )
  const b = watched(
    call(second, async () => {
      await both.opened
      return second.once('A', () => 'never', forHour)
    }),
  )
  await time.run(10)
  both.open()
  await time.run(60_000)
  return { a, b }
}

it.each(['once', 'everyTick'] as const)('a call of %s that nothing awaits is no part of a deadlock', async (how) => {
  const { a, b } = await play(how)
  expect(a.value).toBe('a')
  // The run of A did not wait for B, so it ended.
  expect(b.error).toBeUndefined()
  expect(b.value).toEqual(how === 'once' ? 'a' : { ran: true, result: 'a' })
})
