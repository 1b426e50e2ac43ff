import { describe, expect, it } from 'vitest'
import type { Driver, DriverListener } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, LeaseLostError } from '../../../src/index.ts'

/** A memory driver whose leases end with their session and never expire. */
function sessionDriver() {
  const inner = memoryDriver()
  const listeners = new Set<DriverListener>()
  const driver: Driver = {
    ...inner,
    capabilities: { ...inner.capabilities, expiry: 'session' },
    acquire: (claims, call) =>
      inner
        .acquire(
          claims.map((claim) => ({ ...claim, ttlMs: 3_600_000 })),
          call,
        )
        .then((answers) =>
          answers.map((answer, index) =>
            answer instanceof Error || !answer.granted ? answer : { ...answer, ttlMs: claims[index]?.ttlMs ?? 0 },
          ),
        ),
    renew: async (renewals) => {
      const answers = await inner.renew(renewals.map((renewal) => ({ ...renewal, ttlMs: 3_600_000 })))
      return answers.map((answer) => (answer === 'renewed' ? 'held' : answer))
    },
    async listen(listener) {
      listeners.add(listener)
      return async () => {
        listeners.delete(listener)
      }
    },
  }
  return { driver, listeners }
}

describe('a store whose leases end with their session', () => {
  it('a lease is lost at once when its session ends, even if no claim waits', async () => {
    const { driver, listeners } = sessionDriver()
    const lock = new DistributedLock({ driver })
    const result = await lock.acquire('name', { timeoutSeconds: 60 })
    if (!result.acquired) throw new Error('not acquired')
    const [record] = (await driver.inspect({})).leases
    while (listeners.size === 0) await new Promise((resolve) => setImmediate(resolve))
    const cause = new Error('the connection was closed')
    for (const listener of listeners) listener.lost(record?.claimId ?? '', cause)
    expect(result.lock.held).toBe(false)
    expect(result.lock.signal.reason).toBeInstanceOf(LeaseLostError)
    expect(result.lock.signal.reason.cause).toBe(cause)
    await lock.close()
  })

  it('the process releases a lease without heartbeat when its TTL ends', async () => {
    const { driver } = sessionDriver()
    const lock = new DistributedLock({ driver })
    const result = await lock.acquire('name', { timeoutSeconds: 0.2 })
    if (!result.acquired) throw new Error('not acquired')
    expect((await lock.acquire('name', { blockingTimeoutSeconds: 30 })).acquired).toBe(true)
    expect(result.lock.held).toBe(false)
    await lock.close()
  })

  it('minHoldSeconds keeps the lock from others, and the process releases it afterwards', async () => {
    const { driver } = sessionDriver()
    const lock = new DistributedLock({ driver })
    await lock.acquire('name', { minHoldSeconds: 0.3 })
    expect(await lock.release('name')).toBe(true)
    expect((await lock.acquire('name', { blocking: false })).acquired).toBe(false)
    expect((await lock.acquire('name', { blocking: true })).acquired).toBe(true)
    await lock.close()
  })
})
