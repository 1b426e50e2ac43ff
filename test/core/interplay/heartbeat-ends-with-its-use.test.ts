import { expect, it } from 'vitest'
import { setUp, watched } from './helper.ts'

it('the heartbeat of a re-acquisition ends with it: a lease that was acquired without one expires', async () => {
  const { time, lock, other } = setUp({ now: undefined }, { reacquire: 'extend' })
  await lock.acquire('name', { timeoutSeconds: 5 })
  const work = watched(lock.withLock('name', () => undefined, { timeoutSeconds: 5 }))
  await time.run(10)
  expect(work.state).toBe('resolved')
  await time.run(60_000)
  const rival = watched(other.acquire('name'))
  await time.run(10)
  expect(rival.value?.acquired).toBe(true)
})

it('a lease is renewed for as long as one of its uses has a heartbeat', async () => {
  const { time, lock, other } = setUp({ now: undefined }, { reacquire: 'extend' })
  const first = await lock.hold('name', { timeoutSeconds: 5 })
  await lock.acquire('name', { timeoutSeconds: 5 })
  await time.run(60_000)
  expect(first.held).toBe(true)
  await first.release()
  await time.run(60_000)
  const rival = watched(other.acquire('name'))
  await time.run(10)
  expect(rival.value?.acquired).toBe(true)
})
