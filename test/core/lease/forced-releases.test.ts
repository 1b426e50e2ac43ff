import { describe, expect, it } from 'vitest'
import type { Driver, DriverListener } from '../../../src/core/driver.ts'
import { MAX_RENEWAL_PAUSE_MS, MIN_HINT_PAUSE_MS } from '../../../src/core/limits.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

/** A driver whose calls and listeners are seen, in virtual time. */
function setUp() {
  const time = new VirtualTime()
  const inner = memoryDriver({ store: createMemoryStore(time.clock()) })
  const listeners = new Set<DriverListener>()
  const counts = { acquire: 0, renew: 0, renewals: 0, release: 0, inspect: 0, listen: 0 }
  const driver: Driver = {
    ...inner,
    acquire(claims, call) {
      counts.acquire += 1
      return inner.acquire(claims, call)
    },
    renew(renewals) {
      counts.renew += 1
      counts.renewals += renewals.length
      return inner.renew(renewals)
    },
    release(leases) {
      counts.release += 1
      return inner.release(leases)
    },
    inspect(query) {
      counts.inspect += 1
      return inner.inspect(query)
    },
    async listen(listener) {
      counts.listen += 1
      listeners.add(listener)
      return async () => void listeners.delete(listener)
    },
  }
  const settings = { clock: time.clock(), random: seededRandom(7) }
  const lock = new DistributedLock({ ...settings, driver })
  const operator = new DistributedLock({ ...settings, driver: inner })
  return { time, lock, operator, counts, listeners, inner }
}

const LONG = { timeoutSeconds: 1_000 }

describe('a forced release', () => {
  it('rule 17: a process that holds leases and waits for nothing sends only its renewals, 5 s apart', async () => {
    const { time, lock, counts } = setUp()
    await Promise.all(Array.from({ length: 100 }, (_, at) => lock.hold(`long:${at}`, LONG)))
    const before = { ...counts }
    await time.run(60_000)
    expect(counts).toMatchObject({ acquire: before.acquire, release: 0, inspect: 0, listen: 0 })
    expect(counts.renewals / 100).toBeGreaterThanOrEqual(12)
    expect(counts.renewals / 100).toBeLessThanOrEqual(15)
    expect(counts.renew).toBeLessThanOrEqual(30)
  })

  it('rule 17: ends the lease of a holder with a heartbeat within 5 s, however long its TTL is', async () => {
    const { time, lock, operator } = setUp()
    const lease = await lock.hold('name', LONG)
    await time.run(7_000)
    await operator.forceRelease('name', { by: 'ada' })
    await time.run(MAX_RENEWAL_PAUSE_MS)
    expect(lease.signal.aborted).toBe(true)
  })

  it('that a message reports makes the holder renew the lease once, and the answer of the store decides', async () => {
    const { time, lock, operator, counts, listeners, inner } = setUp()
    const [kept, forced] = [await lock.hold('kept', LONG), await lock.hold('forced', LONG)]
    // A claim that waits listens.
    lock.acquire('kept', { blockingTimeoutSeconds: 1_000 }).catch(() => undefined)
    await time.run(1_100)
    const idsOf = async (lockName: string) => (await inner.inspect({ lockName })).leases.map(({ claimId }) => claimId)
    const report = (ids: readonly string[]): void => {
      for (const claimId of ids) for (const each of listeners) each.lost(claimId, new Error('it was taken'))
    }
    const { renewals } = counts
    report(await idsOf('kept'))
    await time.run(10)
    expect({ renewals: counts.renewals - renewals, held: kept.held }).toEqual({ renewals: 1, held: true })
    const ids = await idsOf('forced')
    await operator.forceRelease('forced', { by: 'ada' })
    report(ids)
    await time.run(10)
    expect({ kept: kept.held, forced: forced.held }).toEqual({ kept: true, forced: false })
    expect(String(forced.signal.reason)).toMatch(/it was taken/)
  })

  it('that a message reports falsely is not the reason for a later loss', async () => {
    const { time, lock, listeners, inner } = setUp()
    const reasons: string[] = []
    lock.on('lost', ({ reason }) => void reasons.push(reason))
    const lease = await lock.hold('name', LONG)
    lock.acquire('name', { blockingTimeoutSeconds: 1_000 }).catch(() => undefined)
    await time.run(1_100)
    const [{ lockName, claimId } = { lockName: '', claimId: '' }] = (await inner.inspect({})).leases
    for (const each of listeners) each.lost(claimId, new Error('forged'))
    await time.run(10)
    await inner.release([{ lockName, claimId }])
    await time.run(MAX_RENEWAL_PAUSE_MS)
    expect({ reasons, error: String(lease.signal.reason) }).toEqual({
      reasons: ['missing'],
      error: expect.stringContaining('the store no longer has it'),
    })
  })

  it('rule 13: a flood of forged messages makes a lease renew once a second at most', async () => {
    const { time, lock, counts, listeners, inner } = setUp()
    const leases = await Promise.all(Array.from({ length: 50 }, (_, at) => lock.hold(`flood:${at}`, LONG)))
    lock.acquire('flood:0', { blockingTimeoutSeconds: 1_000 }).catch(() => undefined)
    await time.run(1_100)
    const ids = (await inner.inspect({ pageSize: 1_000 })).leases.map(({ claimId }) => claimId)
    const { renewals } = counts
    for (let ms = 0; ms < 10_000; ms += 20) {
      for (const claimId of ids) for (const each of listeners) each.lost(claimId, new Error('forged'))
      await time.run(20)
    }
    const bound = 50 * (10_000 / MIN_HINT_PAUSE_MS + 1)
    expect(counts.renewals - renewals).toBeGreaterThan(50)
    expect(counts.renewals - renewals).toBeLessThanOrEqual(bound)
    expect(leases.every(({ held }) => held)).toBe(true)
  })
})
