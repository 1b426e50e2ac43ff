import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { DistributedLock } from '../../../src/index.ts'
import { type Fault, setUp, watched } from './helper.ts'

it.each([false, true])(
  'close sends the releases that minHoldSeconds has postponed (another instance on the driver was closed by force: %s)',
  async (isForced) => {
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
    if (isForced) {
      const other = new DistributedLock({ ...settings, driver: session })
      fault.now = () => ({ hangs: 'request' })
      watched(other.acquire('unanswered'))
      await time.run(1)
      const closed = watched(other.close({ deadlineSeconds: 1 }))
      await time.run(60_000)
      expect(closed.state).toBe('resolved')
      // The store answers again.
      fault.now = undefined
    }
    const lease = await lock.hold('name', { minHoldSeconds: 3_600, timeoutSeconds: 31_000_000 })
    const released = watched(lease.release())
    await time.run(1_000)
    expect(released.value).toBe(true)
    const closed = watched(lock.close())
    await time.run(60_000)
    expect(closed.state).toBe('resolved')
    expect(await leases('name')).toEqual([])
  },
)
