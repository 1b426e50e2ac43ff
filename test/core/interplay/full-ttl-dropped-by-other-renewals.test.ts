import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { DistributedLock, type DistributedLockOptions } from '../../../src/index.ts'
import { setUp, watched } from './helper.ts'

/** Grants 10 s of what a claim asks for, as a message may. The lease is renewed once to the full time. */
function withShortGrants(options: Partial<DistributedLockOptions> = {}) {
  const { time, driver, settings } = setUp({ now: undefined })
  const short: Driver = {
    ...driver,
    acquire: async (claims, call) =>
      (await driver.acquire(claims, call)).map((answer) =>
        !(answer instanceof Error) && answer.granted ? { ...answer, ttlMs: Math.min(answer.ttlMs, 10_000) } : answer,
      ),
  }
  return { time, lock: new DistributedLock({ ...settings, driver: short, ...options }) }
}

it.each([false, true])(
  'a grant that is shorter than asked for is still renewed once to the full TTL after a re-acquisition (heartbeat: %s)',
  async (heartbeat) => {
    const { time, lock } = withShortGrants({ reacquire: 'extend' })
    const first = await lock.hold('name', { timeoutSeconds: 60, heartbeat: false })
    await time.run(1_000)
    const second = await lock.hold('name', { timeoutSeconds: 5, heartbeat })
    await time.run(100)
    await second.release()
    await time.run(20_000)
    expect(first.held).toBe(true)
  },
)

it('a grant that is shorter than asked for is still renewed to the full TTL after an inner extension', async () => {
  const { time, lock } = withShortGrants()
  const held: boolean[] = []
  const work = watched(
    lock.withLock(
      'name',
      async (lease) => {
        const inner = await lock.hold('name')
        await inner.extend(5)
        await inner.release()
        await new Promise<void>((resolve) => void time.in(20_000, resolve))
        held.push(lease.held)
      },
      { timeoutSeconds: 60, heartbeat: false },
    ),
  )
  await time.run(30_000)
  expect(held).toEqual([true])
  expect(work.state).toBe('resolved')
})
