import { expect, it } from 'vitest'
import { setUp, watched } from './helper.ts'

it('failure 50: a function that has joined a lease can wait for the lock around its first use', async () => {
  const { time, lock } = setUp({ now: undefined }, { reacquire: 'extend' })
  const sleep = (ms: number): Promise<void> => new Promise((resolve) => void time.in(ms, resolve))
  // It holds `outer` until its own use of `inner` has ended, which waits for nothing.
  const first = watched(lock.withLock('outer', () => lock.withLock('inner', () => sleep(6_000))))
  await time.run(10)
  // Another task joins the lease on `inner`, and waits for `outer`: it has to wait for 6 s.
  const second = watched(
    lock.withLock('inner', () => lock.withLocks(['outer'], () => 'both', { blockingTimeoutSeconds: 30 })),
  )
  await time.run(60_000)
  expect(first.state).toBe('resolved')
  expect(second.error).toBeUndefined()
  expect(second.value).toBe('both')
})
