import { expect, it } from 'vitest'
import { setUp, watched } from './helper.ts'

it('rule 17: a re-acquisition after maxHoldSeconds asks the store: the lease may have ended', async () => {
  const { time, lock, other } = setUp({ now: undefined }, { reacquire: 'extend' })
  const first = await lock.hold('name', { timeoutSeconds: 60, maxHoldSeconds: 5 })
  await time.run(6_000)
  const forced = watched(other.forceRelease('name', { by: 'ada' }))
  await time.run(10)
  expect(forced.value?.map(({ fencingToken }) => fencingToken)).toEqual([first.fencingToken])
  const rival = watched(other.acquire('name', { timeoutSeconds: 600 }))
  // Nothing has asked the store since: the heartbeat has ended.
  await time.run(34_000)
  expect(rival.value?.acquired).toBe(true)
  const second = watched(lock.acquire('name', { timeoutSeconds: 1 }))
  await time.run(10)
  expect(second.value?.acquired).toBe(false)
})
