import { expect, it } from 'vitest'
import { setUp, watched } from './helper.ts'

it('failure 50: a claim under a restored lease can wait for the lock around its first use', async () => {
  const { time, lock, other } = setUp({ now: undefined })
  const sleep = (ms: number): Promise<void> => new Promise((resolve) => void time.in(ms, resolve))
  let text = ''
  // It hands `inner` over, and then waits for nothing.
  const first = watched(
    lock.withLock('outer', async () => {
      text = await (await lock.hold('inner')).serialize()
      await sleep(6_000)
    }),
  )
  await time.run(10)
  const restored = await other.restore(text, { heartbeat: true })
  const second = watched(other.withLock('outer', () => 'both', { blockingTimeoutSeconds: 30, under: restored }))
  await time.run(60_000)
  expect(first.state).toBe('resolved')
  expect(second.error).toBeUndefined()
  expect(second.value).toBe('both')
})
