import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock } from '../../src/index.ts'

const slow = (driver: Driver, ms: number): Driver => ({
  ...driver,
  release: async (leases) => {
    await sleep(ms) // the way to the store
    return driver.release(leases)
  },
})

describe('close', () => {
  it('waits for a release that was just begun: nothing is left in the store', async () => {
    const inner = memoryDriver()
    const lock = new DistributedLock({ driver: slow(inner, 20) })
    await lock.acquire('name')
    const released = lock.release('name')
    await lock.close()
    expect((await inner.inspect({})).leases).toEqual([])
    expect(await released).toBe(true)
  })

  it('does not wait for what other instances on the same driver do', async () => {
    const driver = slow(memoryDriver(), 5)
    const busy = new DistributedLock({ driver })
    let goOn = true
    const work = Promise.all(
      [0, 1, 2].map(async (i) => {
        while (goOn) await busy.withLock(`busy:${i}`, () => undefined)
      }),
    )
    const idle = new DistributedLock({ driver })
    await idle.withLock('name', () => undefined)
    await idle.close()
    goOn = false
    await work
    await busy.close()
  })

  it('a call that is under way still has its deadline when the instance has been closed', async () => {
    const driver: Driver = { ...memoryDriver(), inspect: () => new Promise(() => undefined) }
    const lock = new DistributedLock({ driver, callTimeoutSeconds: 0.1 })
    await lock.acquire('name')
    const forced = lock.forceRelease('name', { by: 'somebody' })
    const end = expect(forced).rejects.toThrow('did not answer inspect within 100 ms')
    await lock.close()
    await end
  })

  it('two instances on one driver each keep their own settings', async () => {
    const driver: Driver = { ...memoryDriver(), acquire: () => new Promise(() => undefined) }
    const patient = new DistributedLock({ driver })
    const hasty = new DistributedLock({ driver, callTimeoutSeconds: 0.1 })
    await expect(hasty.acquire('name', { blocking: false })).rejects.toThrow('within 100 ms')
    await hasty.close()
    void patient
  })
})
