import { describe, expect, it } from 'vitest'
import type { Driver, LossListener } from '../../../src/core/driver.ts'
import { StoreError } from '../../../src/core/errors.ts'
import { LOSS_CHECKS_PER_SECOND, MAX_LOSS_CHECKS } from '../../../src/core/limits.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, type InstanceOptions } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'
import { gate } from '../../harness/gate.ts'

/** A driver whose subscriptions are counted, in virtual time. */
function setUp(options: Partial<InstanceOptions> = {}, failure = (): Failure | Promise<Failure> => undefined) {
  const time = new VirtualTime()
  const inner = memoryDriver({ store: createMemoryStore(time.clock()) })
  const listeners = new Set<LossListener>()
  const counts = { watch: 0, listen: 0, renewals: 0 }
  const driver: Driver = {
    ...inner,
    renew(renewals) {
      counts.renewals += renewals.length
      return inner.renew(renewals)
    },
    listen(listener) {
      counts.listen += 1
      return (inner as Required<Driver>).listen(listener)
    },
    async watch(listener) {
      counts.watch += 1
      const error = await failure()
      if (error !== undefined) throw error
      listeners.add(listener)
      return async () => void listeners.delete(listener)
    },
  }
  const settings = { clock: time.clock(), random: seededRandom(7) }
  const lock = new DistributedLock({ ...settings, driver, ...options })
  const operator = new DistributedLock({ ...settings, driver: inner })
  return { time, lock, operator, counts, listeners, driver }
}

type Failure = Error | undefined

const LONG = { timeoutSeconds: 1_000 }

describe('listening for forced releases', () => {
  it('short leases do not subscribe, however many there are', async () => {
    const { time, lock, counts } = setUp()
    for (let round = 0; round < 30; round += 1) {
      const leases = await Promise.all([1, 2, 3].map((each) => lock.hold(`short:${each}`, LONG)))
      await time.run(300)
      await Promise.all(leases.map((lease) => lease.release()))
    }
    expect(counts).toMatchObject({ watch: 0, listen: 0 })
  })

  it('one subscription serves all leases, from the oldest one’s first second to a second after its end', async () => {
    const { time, lock, counts, listeners } = setUp()
    const leases = await Promise.all(Array.from({ length: 100 }, (_, at) => lock.hold(`long:${at}`, LONG)))
    await time.run(990)
    expect(counts.watch).toBe(0)
    await time.run(20)
    expect({ ...counts, open: listeners.size }).toEqual({ watch: 1, listen: 0, renewals: 0, open: 1 })
    await time.run(60_000)
    expect(counts.watch).toBe(1)
    await Promise.all(leases.map((lease) => lease.release()))
    await time.run(2_100)
    expect(listeners.size).toBe(0)
    // A lease that is short again.
    await (await lock.hold('next', LONG)).release()
    await time.run(5_000)
    expect(counts.watch).toBe(1)
  })

  it('watchForcedReleases: false never subscribes', async () => {
    const { time, lock, counts } = setUp({ watchForcedReleases: false })
    await lock.hold('name', LONG)
    await time.run(10_000)
    expect(counts.watch).toBe(0)
    expect(() => new DistributedLock({ url: 'memory:', watchForcedReleases: 'no' as never })).toThrow(
      /watchForcedReleases must be true or false/,
    )
  })

  it('a subscription that breaks is opened again, and one that is forbidden a minute later', async () => {
    const broken = setUp()
    await broken.lock.hold('name', LONG)
    await broken.time.run(1_100)
    for (const listener of [...broken.listeners]) {
      broken.listeners.delete(listener)
      listener.disconnected(new StoreError('gone'))
    }
    await broken.time.run(2_000)
    expect({ watch: broken.counts.watch, open: broken.listeners.size }).toEqual({ watch: 2, open: 1 })
    const forbidden = setUp({}, () => new StoreError('not allowed', { retryable: false }))
    const lease = await forbidden.lock.hold('name', LONG)
    await forbidden.time.run(50_000)
    expect(forbidden.counts.watch).toBe(1)
    await forbidden.time.run(20_000)
    expect(forbidden.counts.watch).toBe(2)
    expect(lease.held).toBe(true)
  })

  it('a retry that was planned before the subscription ended opens no second one', async () => {
    const forbidden = new StoreError('not allowed', { retryable: false })
    const { time, lock, counts, listeners } = setUp({}, () => (counts.watch === 1 ? forbidden : undefined))
    const first = await lock.hold('first', LONG)
    await time.run(1_100)
    await first.release()
    await time.run(3_000)
    const second = await lock.hold('second', LONG)
    await time.run(70_000)
    expect({ watch: counts.watch, open: listeners.size }).toEqual({ watch: 2, open: 1 })
    await second.release()
    await time.run(3_000)
    expect(listeners.size).toBe(0)
  })

  it('a subscription that fails after its end does not touch the next one', async () => {
    const { opened, open } = gate()
    const { time, lock, counts, listeners } = setUp({ callTimeoutSeconds: 30 }, () =>
      counts.watch === 1 ? opened.then(() => new StoreError('gone')) : undefined,
    )
    const first = await lock.hold('first', LONG)
    await time.run(1_100)
    await first.release()
    await time.run(3_000)
    const second = await lock.hold('second', LONG)
    await time.run(1_100)
    open()
    await time.run(10_000)
    expect({ watch: counts.watch, open: listeners.size }).toEqual({ watch: 2, open: 1 })
    await second.release()
    await time.run(3_000)
    expect(listeners.size).toBe(0)
  })

  it('a hint renews the named lease once, and the answer of the store decides', async () => {
    const { time, lock, operator, counts, listeners, driver } = setUp()
    const [kept, broken] = [await lock.hold('kept', LONG), await lock.hold('broken', LONG)]
    await time.run(1_100)
    const hint = async (lockName: string): Promise<void> => {
      const { leases } = await driver.inspect({ lockName })
      for (const { claimId } of leases) for (const each of listeners) each.lost(claimId, new Error('it was stolen'))
      await time.run(10)
    }
    await hint('kept')
    expect({ renewals: counts.renewals, held: kept.held }).toEqual({ renewals: 1, held: true })
    const { leases } = await driver.inspect({ lockName: 'broken' })
    await operator.forceRelease('broken', { by: 'ada' })
    for (const { claimId } of leases) for (const each of listeners) each.lost(claimId, new Error('it was stolen'))
    await time.run(60)
    expect({ kept: kept.held, broken: broken.held }).toEqual({ kept: true, broken: false })
    expect(String(broken.signal.reason)).toMatch(/it was stolen/)
  })

  it('rule 13: a flood of forged hints costs a bounded number of renewals', async () => {
    const { time, lock, counts, listeners, driver } = setUp()
    const leases = await Promise.all(Array.from({ length: 2_000 }, (_, at) => lock.hold(`flood:${at}`, LONG)))
    await time.run(1_100)
    const ids: string[] = []
    for (let after: string | undefined, first = true; first || after !== undefined; first = false) {
      const page = await driver.inspect({ pageSize: 10_000, ...(after !== undefined && { after }) })
      ids.push(...page.leases.map(({ claimId }) => claimId))
      after = page.next
    }
    for (let ms = 0; ms < 10_000; ms += 20) {
      for (const claimId of ids) for (const each of listeners) each.lost(claimId, new Error('forged'))
      await time.run(20)
    }
    expect(counts.renewals).toBeGreaterThan(0)
    expect(counts.renewals).toBeLessThanOrEqual(MAX_LOSS_CHECKS + 11 * LOSS_CHECKS_PER_SECOND)
    expect(leases.every(({ held }) => held)).toBe(true)
  })
})
