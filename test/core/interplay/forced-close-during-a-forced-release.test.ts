import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { DistributedLock } from '../../../src/index.ts'
import { setUp, watched } from './helper.ts'

it('a close that takes too long does not wait for a forced release that the store never answers', async () => {
  const { time, driver, settings, lock } = setUp({ now: undefined })
  await lock.hold('name')
  const calling: Driver = {
    ...driver,
    capabilities: { ...driver.capabilities, force: 'call' },
    extensions: { forceRelease: () => new Promise(() => {}) },
  }
  const operator = new DistributedLock({ ...settings, driver: calling })
  const forced = watched(operator.forceRelease('name', { by: 'an operator' }))
  await time.run(100)
  const closed = watched(operator.close({ deadlineSeconds: 1 }))
  await time.run(1_500)
  expect(closed.state).toBe('resolved')
  expect(forced).toMatchObject({ state: 'rejected', error: { code: 'CLOSED' } })
})
