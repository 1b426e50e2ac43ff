import { setMaxListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { type Clock, systemClock } from '../../../src/core/time/clock.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'

function counted() {
  const inner = memoryDriver()
  const calls = { acquire: 0, renew: 0, release: 0, listen: 0 }
  const driver: Driver = {
    ...inner,
    acquire: (claims, call) => {
      calls.acquire += 1
      return inner.acquire(claims, call)
    },
    renew: (renewals) => {
      calls.renew += 1
      return inner.renew(renewals)
    },
    release: (leases) => {
      calls.release += 1
      return inner.release(leases)
    },
    listen: (listener) => {
      calls.listen += 1
      if (inner.listen === undefined) throw new Error('memory has listen')
      return inner.listen(listener)
    },
  }
  let timers = 0
  const clock: Clock = {
    now: () => systemClock.now(),
    setTimer(run, delayMs, keepsAlive) {
      timers += 1
      let live = true
      const end = () => {
        if (live) timers -= 1
        live = false
      }
      const timer = systemClock.setTimer(
        () => {
          end()
          run()
        },
        delayMs,
        keepsAlive,
      )
      return {
        cancel: () => {
          timer.cancel()
          end()
        },
      }
    },
  }
  return { driver, calls, clock, timers: () => timers }
}

describe('many at once', () => {
  it('10,000 leases with a heartbeat need one timer besides that of the calls, and renew in lists', async () => {
    const { driver, calls, clock, timers } = counted()
    const lock = new DistributedLock({ driver, clock })
    const renewed = new Set<string>()
    lock.on('renewed', ({ claimId }) => renewed.add(claimId))
    const leases = await Promise.all(
      Array.from({ length: 10_000 }, (_, i) => lock.hold(`lease:${i}`, { timeoutSeconds: 12 })),
    )
    expect(calls.acquire).toBe(10)
    expect(timers()).toBe(2)
    while (renewed.size < 10_000) await new Promise((resolve) => setTimeout(resolve, 50))
    expect(calls.renew).toBeLessThanOrEqual(40)
    expect(leases.every((lease) => lease.held)).toBe(true)
    await lock.releaseAll()
    expect(calls.release).toBe(10)
    await lock.close()
    expect(timers()).toBe(0)
  })

  it('1,000 waiters need one subscription and one timer besides that of the calls, and leave in one call', async () => {
    const { driver, calls, clock, timers } = counted()
    const lock = new DistributedLock({ driver, clock })
    await lock.acquire('name')
    const abort = new AbortController()
    setMaxListeners(0, abort.signal)
    const waiting = Array.from({ length: 1_000 }, () => lock.acquire('name', { blocking: true, signal: abort.signal }))
    const settled = Promise.allSettled(waiting)
    let queued = 0
    while (queued < 1_000) {
      await new Promise((resolve) => setTimeout(resolve, 5))
      queued = (await driver.inspect({ lockName: 'name' })).waiters.length
    }
    expect(calls.listen).toBe(1)
    expect(timers()).toBe(2)
    const releasesBefore = calls.release
    abort.abort()
    expect((await settled).every((each) => each.status === 'rejected')).toBe(true)
    while ((await driver.inspect({ lockName: 'name' })).waiters.length > 0)
      await new Promise((resolve) => setTimeout(resolve, 5))
    expect(calls.release - releasesBefore).toBe(1)
    await lock.close()
  })

  it('only the first waiter of a process sends requests if the store has no queue', async () => {
    const { driver, calls } = counted()
    const asked = new Set<string>()
    const without: Driver = {
      ...driver,
      capabilities: { ...driver.capabilities, queue: false },
      acquire: (claims, call) => {
        for (const claim of claims) asked.add(claim.claimId)
        return driver.acquire(claims, call)
      },
    }
    const lock = new DistributedLock({ driver: without })
    const first = await lock.hold('name')
    const order: number[] = []
    const all = Promise.all(
      Array.from({ length: 20 }, async (_, i) => {
        await using _lease = await lock.hold('name', { blocking: true })
        order.push(i)
      }),
    )
    await new Promise((resolve) => setTimeout(resolve, 50)) // long enough for each of them to send a request
    expect(asked.size).toBe(2)
    await first.release()
    await all
    expect(order).toEqual(Array.from({ length: 20 }, (_, i) => i))
    expect(calls.listen).toBe(1)
    await lock.close()
  })
})
