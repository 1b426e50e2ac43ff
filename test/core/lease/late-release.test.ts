import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, LeaseLostError } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

/** A store that a release, or the renewal that stands for it under `minHoldSeconds`, reaches late. */
function scene(delayMs: number) {
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
  const told: string[] = []
  const lock = new DistributedLock({ ...settings, driver })
  lock.on('lost', () => told.push('lost'))
  lock.on('released', () => told.push('released'))
  const operator = new DistributedLock({ ...settings, driver: inner })
  return { time, lock, operator, told }
}

describe('a release that the store answers with no', () => {
  const SHORT = { timeoutSeconds: 0.5, heartbeat: false }

  for (const [how, options] of [
    ['', SHORT],
    [' under minHoldSeconds', { ...SHORT, minHoldSeconds: 0.3 }],
  ] as const) {
    it(`is no loss if it arrived after the lease's own end${how}`, async () => {
      const { time, lock, told } = scene(700)
      const job = lock.withLock('x', (lease) => lease.held, options)
      const end = job.catch((error: unknown) => error)
      await time.run(5_000)
      expect(await end).toBe(true)
      expect(told).toEqual(['released'])
    })

    it(`is a loss if the lease's own end had not come yet${how}`, async () => {
      const { time, lock, operator, told } = scene(100)
      const job = lock.withLock('x', () => operator.forceRelease('x', { by: 'me' }), options)
      const end = job.catch((error: unknown) => error)
      await time.run(5_000)
      expect(await end).toBeInstanceOf(LeaseLostError)
      expect(told).toEqual(['lost'])
    })
  }
})
