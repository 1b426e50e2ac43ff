import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { DistributedLock } from '../../../src/index.ts'
import { setUp } from './helper.ts'

it('a grant that is shorter than asked for is still renewed once to the full TTL after a confirmation', async () => {
  const { time, driver, settings } = setUp({ now: undefined })
  const short: Driver = {
    ...driver,
    acquire: async (claims, call) =>
      (await driver.acquire(claims, call)).map((answer) =>
        !(answer instanceof Error) && answer.granted ? { ...answer, ttlMs: 10_000 } : answer,
      ),
  }
  const lock = new DistributedLock({ ...settings, driver: short })
  const held: boolean[] = []
  const work = lock.withLock(
    'name',
    async (lease) => {
      await time.run(1_000)
      await lock.withLock('name', async () => undefined)
      await time.run(14_000)
      held.push(lease.held)
    },
    { timeoutSeconds: 30, heartbeat: false },
  )
  await work.catch(() => undefined)
  expect(held).toEqual([true])
})
