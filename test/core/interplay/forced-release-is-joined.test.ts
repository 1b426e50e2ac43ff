import { expect, it } from 'vitest'
import { setUp, watched } from './helper.ts'

it('a re-acquisition does not join the lease that a forced release takes for a moment', async () => {
  const { time, lock, other, leases } = setUp({ now: undefined }, { reacquire: 'extend' })
  await other.acquire('name', { timeoutSeconds: 1_000 })
  // It was there first: "The next waiter is granted the lock".
  const waiter = watched(other.acquire('name', { blockingTimeoutSeconds: 1_000 }))
  await time.run(10)
  let joined: ReturnType<typeof watched> | undefined
  lock.on('forceReleased', () => {
    joined ??= watched(
      lock.withLock('name', () => new Promise<void>((resolve) => void time.in(120_000, resolve)), {
        timeoutSeconds: 30,
      }),
    )
  })
  const forced = watched(lock.forceRelease('name', { by: 'ada' }))
  await time.run(1_000)
  const [lease] = await leases('name')
  await time.run(200_000)
  expect(forced.state).toBe('resolved')
  expect(waiter.state).toBe('resolved')
  expect({ holderId: lease?.holderId, metadata: lease?.metadata }).toEqual({ holderId: other.holderId })
  // Refused, because it does not wait. It must not be given a lease whose heartbeat ends after 5 s.
  expect(joined?.error).toMatchObject({ code: 'NOT_ACQUIRED' })
})
