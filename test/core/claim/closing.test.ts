import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { ClosedError, DistributedLock, StoreError } from '../../../src/index.ts'
import { gate } from '../../harness/gate.ts'
import { rejectionOf } from '../../harness/rejection.ts'

const slow = (driver: Driver, ms: number): Driver => ({
  ...driver,
  release: async (leases) => {
    await sleep(ms) // the round trip to the store
    return driver.release(leases)
  },
})

describe('close', () => {
  it('waits for a release in flight: nothing is left in the store', async () => {
    const inner = memoryDriver()
    const lock = new DistributedLock({ driver: slow(inner, 20) })
    await lock.acquire('name')
    const released = lock.release('name')
    await lock.close()
    expect((await inner.inspect({})).leases).toEqual([])
    expect(await released).toBe(true)
  })

  it('keeps no lease that is granted meanwhile', async () => {
    const inner = memoryDriver()
    const [asked, answer] = [gate(), gate()]
    const driver: Driver = {
      ...inner,
      async acquire(claims, call) {
        const answers = await inner.acquire(claims, call)
        asked.open()
        await answer.opened
        return answers
      },
    }
    const lock = new DistributedLock({ driver })
    const granted = lock.acquire('name')
    const ended = expect(granted).rejects.toBeInstanceOf(ClosedError)
    await asked.opened
    const closed = lock.close()
    answer.open()
    await Promise.all([ended, closed])
    expect((await inner.inspect({})).leases).toEqual([])
  })

  it('does not wait for the requests of other instances on the same driver', async () => {
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

  it('a call in flight keeps its deadline when the instance is closed', async () => {
    const driver: Driver = { ...memoryDriver(), inspect: () => new Promise(() => undefined) }
    const lock = new DistributedLock({ driver, callTimeoutSeconds: 0.1 })
    await lock.acquire('name')
    const forced = lock.forceRelease('name', { by: 'an operator' })
    const end = expect(forced).rejects.toThrow('did not answer inspect within 100 ms')
    await lock.close()
    await end
  })

  it('two instances on one driver keep their own settings', async () => {
    const driver: Driver = { ...memoryDriver(), acquire: () => new Promise(() => undefined) }
    const patient = new DistributedLock({ driver })
    const impatient = new DistributedLock({ driver, callTimeoutSeconds: 0.1 })
    await expect(impatient.acquire('name', { blocking: false })).rejects.toThrow('within 100 ms')
    await impatient.close()
    void patient
  })

  it.each([
    ['that the error is permanent', new StoreError('wrong password', { retryable: false })],
    ['that the driver is closed', new ClosedError('the driver is closed')],
  ])('sends a release only once if the store reports %s', async (_, error) => {
    const releases: unknown[] = []
    const refuse = async () => Promise.reject(error)
    const driver: Driver = {
      ...memoryDriver(),
      acquire: refuse,
      release: (leases) => {
        releases.push(...leases)
        return refuse()
      },
    }
    const lock = new DistributedLock({ driver })
    await expect(lock.acquire('name')).rejects.toBe(error)
    await lock.close()
    expect(releases).toHaveLength(1)
  })

  it('fails the requests that the store has not answered when its timeout ends', async () => {
    const driver: Driver = { ...memoryDriver(), release: () => new Promise(() => undefined) }
    const lock = new DistributedLock({ driver })
    const lease = await lock.hold('name')
    const failed: unknown[] = []
    lock.on('releaseFailed', ({ error }) => failed.push(error))
    const releasing = rejectionOf(() => lease.release())
    await lock.close({ deadlineSeconds: 0.05 })
    expect(await releasing).toBeInstanceOf(ClosedError)
    expect(failed).not.toEqual([])
  })

  it('does not fail the requests of other instances on the same driver', async () => {
    const answer = gate()
    const inner = memoryDriver()
    const driver: Driver = {
      ...inner,
      release: async (leases) => {
        await answer.opened
        return inner.release(leases)
      },
    }
    const [lock, other] = [new DistributedLock({ driver }), new DistributedLock({ driver })]
    const lease = await other.hold('name')
    await lock.hold('another')
    const releasing = lease.release()
    await lock.close({ deadlineSeconds: 0.05 })
    answer.open()
    expect(await releasing).toBe(true)
  })
})
