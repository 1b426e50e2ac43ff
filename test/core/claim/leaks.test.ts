import { getEventListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, type LockOptions, OnceOnly } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

/** What Node keeps with a signal for each `AbortSignal.any` that was made of it, and how many listen to it. */
function keptBy(signal: AbortSignal): number {
  const owned = signal as unknown as Record<symbol, unknown>
  const sets = Object.getOwnPropertySymbols(signal).map((symbol) => owned[symbol])
  // Node's own sets are not of the class that is called Set here.
  const sizeOf = (each: unknown): number => Number((each as { size?: number } | null | undefined)?.size ?? 0)
  const dependants = sets.reduce<number>((sum, each) => sum + sizeOf(each), 0)
  return dependants + getEventListeners(signal, 'abort').length
}

describe('a signal that outlives thousands of calls keeps nothing of them', () => {
  const waiting = ({ signal }: AbortController): LockOptions => ({ signal, blockingTimeoutSeconds: 60 })

  it('of what can be told of a signal, AbortSignal.any is', () => {
    const { signal } = new AbortController()
    const anys = Array.from({ length: 3 }, () => AbortSignal.any([signal]))
    expect(keptBy(signal)).toBe(anys.length)
  })

  it('acquire of an instance that extends what it holds', async () => {
    const service = new AbortController()
    const options = waiting(service)
    await using lock = new DistributedLock({ driver: memoryDriver(), reacquire: 'extend' })
    for (let calls = 0; calls < 500; calls += 1) await lock.withLock('name', () => undefined, options)
    expect(keptBy(service.signal)).toBe(0)
  })

  it('withLocks, of which some are held and waited for', async () => {
    const service = new AbortController()
    const options = waiting(service)
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    const calls = Array.from({ length: 50 }, () => lock.withLocks(['a', 'b'], () => undefined, options))
    await Promise.all(calls)
    expect(keptBy(service.signal)).toBe(0)
  })

  it('once, and everything that waits for it', async () => {
    const service = new AbortController()
    await using jobs = new OnceOnly({ driver: memoryDriver() })
    const once = { forSeconds: 60, signal: service.signal }
    await Promise.all(Array.from({ length: 200 }, (_, index) => jobs.once(`${index % 5}`, () => 1, once)))
    expect(keptBy(service.signal)).toBe(0)
  })
})

describe('what is told of a lease', () => {
  it('ends with its loss: renewals and releases that fail later are not told of', async () => {
    const time = new VirtualTime()
    const driver = memoryDriver({ store: createMemoryStore(time.clock()) })
    const never = new Promise<never>(() => {})
    const silent: Driver = { ...driver, renew: () => never, release: () => never }
    const lock = new DistributedLock({ driver: silent, clock: time.clock(), random: seededRandom(7) })
    const told: string[] = []
    for (const event of ['acquired', 'renewalFailed', 'lost', 'released', 'releaseFailed'] as const) {
      lock.on(event, () => told.push(event))
    }
    const holding = lock.hold('name', { timeoutSeconds: 9 })
    await time.run(1)
    const lease = await holding
    await time.run(120_000)
    expect(lease.held).toBe(false)
    expect(told[0]).toBe('acquired')
    expect(told).toContain('renewalFailed')
    expect(told.slice(told.indexOf('lost'))).toEqual(['lost'])
  })

  it('ends with its release: a renewal that was under way and is answered later is not told of, and none follows', async () => {
    const time = new VirtualTime()
    const driver = memoryDriver({ store: createMemoryStore(time.clock()) })
    const renewals: (() => void)[] = []
    const slow: Driver = {
      ...driver,
      async renew(leases) {
        await new Promise<void>((resolve) => renewals.push(resolve))
        return leases.map(() => 'renewed' as const)
      },
    }
    const lock = new DistributedLock({ driver: slow, clock: time.clock(), random: seededRandom(7) })
    const told: string[] = []
    for (const event of ['acquired', 'renewed', 'lost', 'released'] as const) lock.on(event, () => told.push(event))
    const holding = lock.hold('name', { timeoutSeconds: 9 })
    await time.run(4_000)
    expect(renewals.length).toBeGreaterThan(0)
    const released = (await holding).release()
    await time.run(100)
    expect(await released).toBe(true)
    const sent = renewals.length
    for (const answer of renewals) answer()
    await time.run(60_000)
    expect(told).toEqual(['acquired', 'released'])
    expect(renewals).toHaveLength(sent)
  })
})
