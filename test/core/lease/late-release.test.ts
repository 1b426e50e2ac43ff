import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, LeaseLostError } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

/** Releases reach the store late, and so do the renewals that replace them under `minHoldSeconds`. */
function setUp(delayMs: number) {
  const time = new VirtualTime()
  const inner = memoryDriver({ store: createMemoryStore(time.clock()) })
  const late = async <T>(call: () => Promise<T>): Promise<T> => {
    await new Promise<void>((resolve) => time.in(delayMs, resolve))
    return call()
  }
  const driver: Driver = {
    ...inner,
    renew: (renewals) => late(() => inner.renew(renewals)),
    release: (leases) => late(() => inner.release(leases)),
  }
  const settings = { clock: time.clock(), random: seededRandom(7) }
  const events: string[] = []
  const lock = new DistributedLock({ ...settings, driver })
  lock.on('lost', () => events.push('lost'))
  lock.on('released', () => events.push('released'))
  const operator = new DistributedLock({ ...settings, driver: inner })
  return { time, lock, operator, events }
}

describe('a release to which the store answers that it no longer had the lease', () => {
  const SHORT = { timeoutSeconds: 0.5, heartbeat: false }

  for (const [how, options] of [
    ['', SHORT],
    [' under minHoldSeconds', { ...SHORT, minHoldSeconds: 0.3 }],
  ] as const) {
    it(`is not a loss if it arrived after the lease's own end${how}`, async () => {
      const { time, lock, events } = setUp(700)
      const job = lock.withLock('x', (lease) => lease.held, options)
      const end = job.catch((error: unknown) => error)
      await time.run(5_000)
      expect(await end).toBe(true)
      expect(events).toEqual(['released'])
    })

    it(`is a loss if it was answered before the lease's own end${how}`, async () => {
      const { time, lock, operator, events } = setUp(100)
      const job = lock.withLock('x', () => operator.forceRelease('x', { by: 'me' }), options)
      const end = job.catch((error: unknown) => error)
      await time.run(5_000)
      expect(await end).toBeInstanceOf(LeaseLostError)
      expect(events).toEqual(['lost'])
    })
  }
})
