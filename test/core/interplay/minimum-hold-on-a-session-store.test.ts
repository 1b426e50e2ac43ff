import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { StoreError } from '../../../src/core/errors.ts'
import { DistributedLock } from '../../../src/index.ts'
import { type Fault, setUp, watched } from './helper.ts'

it('a lease with minHoldSeconds ends on a store without expiry, although the store did not answer once', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, driver, settings, leases } = setUp(fault)
  const session: Driver = {
    ...driver,
    capabilities: { ...driver.capabilities, expiry: 'session' },
    renew: async (renewals) => {
      await driver.renew(renewals)
      return renewals.map(() => 'held' as const)
    },
  }
  const lock = new DistributedLock({ ...settings, driver: session })
  const lease = await lock.hold('name', { minHoldSeconds: 2, timeoutSeconds: 31_000_000 })
  fault.now = (method) => (method === 'renew' ? { fails: new StoreError('no answer') } : undefined)
  const released = watched(lease.release())
  await time.run(1_000)
  fault.now = undefined
  expect([released.state, (await leases('name')).length]).toEqual(['rejected', 1])
  await time.run(10_000)
  expect(await leases('name')).toEqual([])
})
