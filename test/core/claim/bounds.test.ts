import { getEventListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import type { Driver, DriverListener, StopListening } from '../../../src/core/driver.ts'
import { MAX_PENDING_CLAIMS } from '../../../src/core/limits.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { AbortedError, DistributedLock, OverloadError, StoreError } from '../../../src/index.ts'
import { gate } from '../../harness/gate.ts'

describe('a waiting claim', () => {
  it('ends at once on a permanent error', async () => {
    const failure = new StoreError('this file is not a database', { retryable: false })
    const driver: Driver = { ...memoryDriver(), acquire: async (claims) => claims.map(() => failure) }
    const lock = new DistributedLock({ driver })
    await expect(lock.acquire('name', { blockingTimeoutSeconds: 600 })).rejects.toBe(failure)
    await lock.close()
  })

  it('shares one abort listener with all claims of the same signal, and removes it at the end', async () => {
    const lock = new DistributedLock({ driver: memoryDriver() })
    await lock.hold('name')
    const abort = new AbortController()
    const claims = Array.from({ length: 50 }, () => lock.acquire('name', { blocking: true, signal: abort.signal }))
    const all = Promise.allSettled(claims)
    expect(getEventListeners(abort.signal, 'abort')).toHaveLength(1)
    abort.abort()
    for (const end of await all) expect(end).toMatchObject({ status: 'rejected', reason: expect.any(AbortedError) })
    expect(getEventListeners(abort.signal, 'abort')).toHaveLength(0)
    await lock.close()
  })
})

it('a subscription that ends while it still opens is stopped as soon as it is open', async () => {
  const open = gate()
  let stopped = 0
  const stop: StopListening = async () => {
    stopped += 1
  }
  const driver: Driver = {
    ...memoryDriver(),
    async listen(_: DriverListener) {
      await open.opened
      return stop
    },
  }
  const lock = new DistributedLock({ driver })
  await lock.hold('name')
  expect((await lock.acquire('name', { blockingTimeoutSeconds: 0.05 })).acquired).toBe(false)
  const closed = lock.close()
  open.open()
  await closed
  expect(stopped).toBe(1)
})

it('a driver that was opened for an instance is closed when the instance cannot be created', async () => {
  // The memory driver cannot be opened in a worker thread. The driver of the attempt must not stay open.
  const lock = new DistributedLock({ url: 'memory:', heartbeatThread: true })
  await expect(lock.acquire('name')).rejects.toThrow('cannot be opened in a worker thread')
  await lock.close()
})

it('a group of claims that would exceed MAX_PENDING_CLAIMS is not requested in part', async () => {
  const real = memoryDriver()
  const end = gate()
  let pending = 0
  const asked: string[] = []
  const driver: Driver = {
    ...real,
    async acquire(claims, call) {
      if (claims.some(({ group }) => group !== undefined)) {
        asked.push(...claims.map(({ lockName }) => lockName))
        return real.acquire(claims, call)
      }
      pending += claims.length
      await end.opened
      return claims.map(() => ({ granted: false }))
    },
  }
  const lock = new DistributedLock({ driver, callTimeoutSeconds: 60 })
  const others = Array.from({ length: MAX_PENDING_CLAIMS - 2 }, () => lock.acquire('crowded'))
  while (pending < others.length) await new Promise(setImmediate)
  await expect(lock.withLocks(['a', 'b', 'c'], () => 'ran')).rejects.toThrow(OverloadError)
  expect(asked).toEqual([])
  expect(await lock.withLocks(['a', 'b'], () => 'ran')).toBe('ran')
  end.open()
  await Promise.all(others)
  await lock.close()
})
