import { getEventListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, type LockOptions, OnceOnly } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

/** The number of listeners of a signal, and of what Node stores in it for each `AbortSignal.any`. */
function entriesIn(signal: AbortSignal): number {
  const owned = signal as unknown as Record<symbol, unknown>
  const sets = Object.getOwnPropertySymbols(signal).map((symbol) => owned[symbol])
  // Node's internal sets are not instances of the global Set.
  const sizeOf = (each: unknown): number => Number((each as { size?: number } | null | undefined)?.size ?? 0)
  const dependants = sets.reduce<number>((sum, each) => sum + sizeOf(each), 0)
  return dependants + getEventListeners(signal, 'abort').length
}

describe('a signal that outlives thousands of calls keeps no entry for them', () => {
  const waiting = ({ signal }: AbortController): LockOptions => ({ signal, blockingTimeoutSeconds: 60 })

  it('the test sees the entries that AbortSignal.any leaves', () => {
    const { signal } = new AbortController()
    const anys = Array.from({ length: 3 }, () => AbortSignal.any([signal]))
    expect(entriesIn(signal)).toBe(anys.length)
  })

  it('withLock of an instance with reacquire: extend', async () => {
    const service = new AbortController()
    const options = waiting(service)
    await using lock = new DistributedLock({ driver: memoryDriver(), reacquire: 'extend' })
    for (let calls = 0; calls < 500; calls += 1) await lock.withLock('name', () => undefined, options)
    expect(entriesIn(service.signal)).toBe(0)
  })

  it('withLocks, while some of the locks are held', async () => {
    const service = new AbortController()
    const options = waiting(service)
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    const calls = Array.from({ length: 50 }, () => lock.withLocks(['a', 'b'], () => undefined, options))
    await Promise.all(calls)
    expect(entriesIn(service.signal)).toBe(0)
  })

  it('once, and the calls that wait for it', async () => {
    const service = new AbortController()
    await using jobs = new OnceOnly({ driver: memoryDriver() })
    const once = { forSeconds: 60, signal: service.signal }
    await Promise.all(Array.from({ length: 200 }, (_, index) => jobs.once(`${index % 5}`, () => 1, once)))
    expect(entriesIn(service.signal)).toBe(0)
  })
})

describe('the events of a lease', () => {
  it('end with its loss: later failures of renewals and releases are not reported', async () => {
    const time = new VirtualTime()
    const driver = memoryDriver({ store: createMemoryStore(time.clock()) })
    const never = new Promise<never>(() => {})
    const silent: Driver = { ...driver, renew: () => never, release: () => never }
    const lock = new DistributedLock({ driver: silent, clock: time.clock(), random: seededRandom(7) })
    const emitted: string[] = []
    for (const event of ['acquired', 'renewalFailed', 'lost', 'released', 'releaseFailed'] as const) {
      lock.on(event, () => emitted.push(event))
    }
    const holding = lock.hold('name', { timeoutSeconds: 9 })
    await time.run(1)
    const lease = await holding
    await time.run(120_000)
    expect(lease.held).toBe(false)
    expect(emitted[0]).toBe('acquired')
    expect(emitted).toContain('renewalFailed')
    expect(emitted.slice(emitted.indexOf('lost'))).toEqual(['lost'])
  })

  it('end with its release: a late answer to a renewal is not reported, and no renewal follows', async () => {
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
    const emitted: string[] = []
    for (const event of ['acquired', 'renewed', 'lost', 'released'] as const) lock.on(event, () => emitted.push(event))
    const holding = lock.hold('name', { timeoutSeconds: 9 })
    await time.run(4_000)
    expect(renewals.length).toBeGreaterThan(0)
    const released = (await holding).release()
    await time.run(100)
    expect(await released).toBe(true)
    const sent = renewals.length
    for (const answer of renewals) answer()
    await time.run(60_000)
    expect(emitted).toEqual(['acquired', 'released'])
    expect(renewals).toHaveLength(sent)
  })
})
