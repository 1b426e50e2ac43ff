import { describe, expect, it } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { DeadlockError, DistributedLock } from '../../src/index.ts'
import { seededRandom, VirtualTime } from '../../src/testing/virtual-clock.ts'

/** Instances on one store, in virtual time. */
function scene() {
  const time = new VirtualTime()
  const store = createMemoryStore(time.clock())
  const random = seededRandom(7)
  let looks = 0
  function open(holderId: string, deadlockAfterSeconds?: number): DistributedLock {
    const driver: Driver = memoryDriver({ store })
    const watched: Driver = {
      ...driver,
      // An answer takes some time, as everywhere.
      async acquire(claims) {
        await new Promise<void>((resolve) => time.in(1, resolve))
        return driver.acquire(claims)
      },
      inspect(query) {
        looks += 1
        return driver.inspect(query)
      },
    }
    const after = deadlockAfterSeconds !== undefined && { deadlockAfterSeconds }
    return new DistributedLock({ driver: watched, holderId, clock: time.clock(), random, ...after })
  }
  return { time, open, looks: () => looks }
}

const LONG = { blockingTimeoutSeconds: 3_600, timeoutSeconds: 3_600 }

describe('when it looks', () => {
  it('a deadlock ends between 1 and 1.5 s after its beginning', async () => {
    const { time, open } = scene()
    const locks = [open('a'), open('b')]
    let endedMs = 0
    let error: unknown
    const cross = (lock: DistributedLock | undefined, own: string, other: string) =>
      lock
        ?.withLock(
          own,
          async () => {
            await new Promise<void>((resolve) => time.in(100, resolve))
            return lock.withLock(other, () => 'done', LONG)
          },
          LONG,
        )
        .catch((reason: unknown) => {
          error = reason
          endedMs = time.nowMs
        })
    const work = [cross(locks[0], 'x', 'y'), cross(locks[1], 'y', 'x')]
    await time.run(5_000)
    expect(await Promise.all(work)).toContain('done')
    expect(error).toBeInstanceOf(DeadlockError)
    expect(endedMs - 100).toBeGreaterThanOrEqual(1_000)
    expect(endedMs - 100).toBeLessThan(1_500)
  })

  it('a claim that waits long looks later and later, at last once in 15 to 30 s', async () => {
    const { time, open, looks } = scene()
    const lock = open('a')
    const holding = lock.hold('x', LONG)
    const waiting = lock.withLock('own', () => lock.withLock('x', () => 'done', LONG), LONG)
    await time.run(900)
    expect(looks()).toBe(0)
    await time.run(400)
    expect(looks()).toBe(1)
    await time.run(3_000_000)
    expect(looks()).toBeGreaterThan(80)
    expect(looks()).toBeLessThan(220)
    const held = await holding
    void held.release()
    await time.run(1_000)
    expect(await waiting).toBe('done')
  })

  it('many claims of an instance look together, twice a second at most', async () => {
    const { time, open, looks } = scene()
    const lock = open('a')
    const holding = lock.hold('x', LONG)
    const waiting = Array.from({ length: 200 }, (_, index) =>
      lock.withLock(`own ${index}`, () => lock.withLock('x', () => 'done', LONG), LONG),
    )
    await time.run(60_000)
    // Two hundred names of their own and the one that is waited for are two pages.
    expect(looks()).toBeLessThanOrEqual(60 * 2 * 2)
    const held = await holding
    void held.release()
    await time.run(10_000)
    expect(new Set(await Promise.all(waiting))).toEqual(new Set(['done']))
  }, 60_000)
})
