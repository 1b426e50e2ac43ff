import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { DistributedLock, RateLimiter } from '../../../src/index.ts'

const folder = mkdtempSync(join(tmpdir(), 'holdfast-turns-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** How often a timer of 1 ms fires while `work` is awaited in a loop for 100 ms, and 200 times at least. */
async function timersDuring(work: () => Promise<unknown>): Promise<number> {
  // Opening the store returns to the event loop and must not count.
  await work()
  let fired = 0
  const timer = setInterval(() => {
    fired += 1
  }, 1)
  const started = performance.now()
  // A busy machine may not run this process at all for 100 ms.
  for (let times = 0; times < 200 || performance.now() - started < 100; times += 1) await work()
  clearInterval(timer)
  return fired
}

describe('failure 48: a loop of awaits on a local store lets timers run', () => {
  for (const url of ['memory:turns', `sqlite:${join(folder, 'turns.db')}`]) {
    const store = url.split(':', 1)[0]

    it(`sequential locks on ${store}`, async () => {
      await using lock = new DistributedLock({ url })
      expect(await timersDuring(() => lock.withLock('item', () => 1))).toBeGreaterThan(0)
    })

    it(`refused claims on ${store}`, async () => {
      await using lock = new DistributedLock({ url })
      await lock.acquire('item')
      expect(await timersDuring(() => lock.acquire('item', { blocking: false }))).toBeGreaterThan(0)
    })

    it(`re-entered locks on ${store}`, async () => {
      await using lock = new DistributedLock({ url })
      await lock.withLock('entered', async () => {
        expect(await timersDuring(() => lock.withLock('entered', () => 1))).toBeGreaterThan(0)
        expect(await timersDuring(() => lock.withLocks(['entered'], () => 1))).toBeGreaterThan(0)
        expect(await timersDuring(async () => (await lock.hold('entered')).release())).toBeGreaterThan(0)
      })
    })

    it(`locks that their instance acquires again on ${store}`, async () => {
      await using lock = new DistributedLock({ url, reacquire: 'extend' })
      await lock.acquire('extended', { timeoutSeconds: 60 })
      expect(await timersDuring(() => lock.acquire('extended', { timeoutSeconds: 1 }))).toBeGreaterThan(0)
    })

    it(`rate-limiting steps on ${store}`, async () => {
      await using limiter = new RateLimiter({ url, limits: { limit: 1_000_000, periodSeconds: 1 } })
      expect(await timersDuring(() => limiter.consume('key'))).toBeGreaterThan(0)
    })

    it(`waits for units that are available on ${store}`, async () => {
      await using limiter = new RateLimiter({ url, limits: { limit: 1_000_000, periodSeconds: 1 } })
      expect(await timersDuring(() => limiter.wait('waited for'))).toBeGreaterThan(0)
    })

    it(`refused rate-limiting steps, answered from memory, on ${store}`, async () => {
      await using limiter = new RateLimiter({ url, limits: { limit: 1, periodSeconds: 3_600 } })
      await limiter.consume('used up')
      expect(await timersDuring(() => limiter.consume('used up'))).toBeGreaterThan(0)
      expect(await timersDuring(() => limiter.peek('used up'))).toBeGreaterThan(0)
    })
  }
})
