import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { DistributedLock } from '../../../src/index.ts'
import { type Fault, setUp, watched } from './helper.ts'

it('after a close that took too long, nothing more is sent to a store that does not answer', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, driver, settings, calls } = setUp(fault)
  const session: Driver = {
    ...driver,
    capabilities: { ...driver.capabilities, expiry: 'session' },
    renew: async (renewals) => {
      await driver.renew(renewals)
      return renewals.map(() => 'held' as const)
    },
  }
  const lock = new DistributedLock({ ...settings, driver: session })
  const lease = await lock.hold('name', { minHoldSeconds: 3_600, timeoutSeconds: 31_000_000 })
  const released = watched(lease.release())
  await time.run(1_000)
  expect(released.value).toBe(true)
  fault.now = () => ({ hangs: 'request' })
  const closed = watched(lock.close({ deadlineSeconds: 1 }))
  await time.run(1_500)
  expect(closed.state).toBe('resolved')
  const { length } = calls
  await time.run(120_000)
  expect(calls.slice(length)).toEqual([])
})
