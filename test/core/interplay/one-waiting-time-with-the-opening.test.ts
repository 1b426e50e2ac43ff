import { expect, it } from 'vitest'
import { storeOpener } from '../../../src/connect.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { setUp, watched } from './helper.ts'

it.each(['withLocks', 'reacquire: extend'])(
  '%s has one waiting time for the opening of the store and the lock',
  async (how) => {
    const { time, other, driver, settings } = setUp({ now: undefined })
    await other.acquire('name')
    const connect = async () => {
      await new Promise<void>((resolve) => void time.in(900, resolve))
      return driver
    }
    const Lock = DistributedLock as unknown as new (options: object, extras: object) => DistributedLock
    const reacquire = how === 'withLocks' ? 'refuse' : 'extend'
    const lock = new Lock({ ...settings, url: 'memory:', reacquire }, { ...storeOpener, connect })
    const options = { blockingTimeoutSeconds: 1 }
    const claim = watched<unknown>(
      how === 'withLocks' ? lock.withLocks(['name'], () => undefined, options) : lock.acquire('name', options),
    )
    await time.run(1_400)
    expect(claim.state).not.toBe('pending')
  },
)
