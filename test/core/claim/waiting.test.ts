import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { AbortedError, DistributedLock, type LockOptions, StoreError } from '../../../src/index.ts'
import { faultyDriver, noFaults } from '../../../src/testing/faulty-driver.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

describe('waiting claims of one process, on a store without a queue', () => {
  /** A store that answers after 5 ms, until `stopAnswering`. Another process holds the lock. */
  async function setUp() {
    const time = new VirtualTime()
    const store = createMemoryStore(time.clock())
    const inner = memoryDriver({ store })
    let isSilent = false
    const driver: Driver = {
      ...inner,
      capabilities: { ...inner.capabilities, queue: false },
      acquire: async (claims, call) => {
        await new Promise<void>((resolve) => isSilent || time.in(5, resolve))
        return inner.acquire(
          claims.map((claim) => ({ ...claim, waiterTtlMs: 0 })),
          call,
        )
      },
    }
    const settings = { clock: time.clock(), random: seededRandom(7) }
    const lock = new DistributedLock({ ...settings, driver })
    const holding = new DistributedLock({ ...settings, driver: inner }).hold('x', { timeoutSeconds: 600 })
    await time.run(1)
    await holding
    const claim = (blockingTimeoutSeconds: number) =>
      lock.acquire('x', { blockingTimeoutSeconds }).then(
        ({ acquired }) => acquired,
        (error: unknown) => error,
      )
    const stopAnswering = () => {
      isSilent = true
    }
    return { time, claim, stopAnswering }
  }

  it('end with contention when their waiting times end at the same moment', async () => {
    const { time, claim } = await setUp()
    const ends = Promise.all([claim(1), claim(1), claim(1), claim(1)])
    await time.run(2_000)
    expect(await ends).toEqual([false, false, false, false])
  })

  it('end with a StoreError when each of them has sent a request and none was answered', async () => {
    const { time, claim, stopAnswering } = await setUp()
    const first = claim(1)
    await time.run(500)
    stopAnswering()
    // Each is first for less than the call timeout, so none of their calls fails.
    const others = [4, 8, 12].map(claim)
    await time.run(30_000)
    expect(await first).toBe(false)
    for (const end of (await Promise.all(others)).slice(1)) expect(end).toBeInstanceOf(StoreError)
  })
})

it('a claim that a listener of `waiting` aborts leaves no waiter and no subscription', async () => {
  const time = new VirtualTime()
  const inner = memoryDriver({ store: createMemoryStore(time.clock()) })
  let subscriptions = 0
  const driver: Driver = {
    ...inner,
    listen: async (listener) => {
      const stop = await inner.listen?.(listener)
      subscriptions += 1
      return async () => {
        subscriptions -= 1
        await stop?.()
      }
    },
  }
  const settings = { clock: time.clock(), random: seededRandom(7) }
  const holder = new DistributedLock({ ...settings, driver: inner })
  const lock = new DistributedLock({ ...settings, driver })
  const abort = new AbortController()
  lock.on('waiting', () => abort.abort())
  const holding = holder.hold('x', { timeoutSeconds: 600 })
  await time.run(1)
  await holding
  const end = lock.acquire('x', { signal: abort.signal, blockingTimeoutSeconds: 60 }).catch((error: unknown) => error)
  // Longer than a subscription outlives its last waiter.
  await time.run(5_000)
  expect(await end).toBeInstanceOf(AbortedError)
  expect(subscriptions).toBe(0)
  expect((await inner.inspect({})).waiters).toEqual([])
})

it('the refusal of a claim that does not wait does not mention waiting, however long the answer took', async () => {
  const inner = memoryDriver()
  const driver: Driver = {
    ...inner,
    async acquire(claims, call) {
      await sleep(20)
      return inner.acquire(claims, call)
    },
  }
  const lock = new DistributedLock({ driver })
  await lock.acquire('name')
  const refused = await lock.acquire('name')
  expect(refused).toMatchObject({ acquired: false, error: expect.not.stringContaining('waited') })
  const late = await lock.acquire('name', { blockingTimeoutSeconds: 0.1 })
  expect(late).toMatchObject({ acquired: false, error: expect.stringContaining('waited') })
  await lock.close()
})

describe('rule 10: a caller that gives up is answered when its place is withdrawn', () => {
  /** A store that is 20 ms away, and a lock that another process holds. */
  async function setUp() {
    const time = new VirtualTime()
    const clock = time.clock()
    const inner = memoryDriver({ store: createMemoryStore(clock) })
    const random = seededRandom(7)
    const faults = () => ({ ...noFaults, requestMs: [20, 20], replyMs: [20, 20], wakeMs: [20, 20] }) as const
    const driver = faultyDriver(inner, { time, clock, random, faults, mode: 'hands over' })
    const settings = { clock, random }
    const lock = new DistributedLock({ ...settings, driver })
    const other = new DistributedLock({ ...settings, driver: inner })
    const holding = other.hold('x', { timeoutSeconds: 600 })
    await time.run(1)
    const held = await holding
    return { time, lock, other, held, inner }
  }

  const ways: [string, (abort: AbortController) => LockOptions][] = [
    ['its waiting time is over', () => ({ blockingTimeoutSeconds: 0.5 })],
    ['its signal aborts', ({ signal }) => ({ blockingTimeoutSeconds: 60, signal })],
    ['its instance is closed', () => ({ blockingTimeoutSeconds: 60 })],
  ]
  it.each(ways)('when %s', async (way, optionsOf) => {
    const { time, lock, other, held, inner } = await setUp()
    const abort = new AbortController()
    let next: Promise<unknown> | undefined
    const ended = lock
      .acquire('x', optionsOf(abort))
      .catch(() => undefined)
      .then(async () => {
        expect((await inner.inspect({})).waiters).toEqual([])
        // The lock that it has waited for is released, and asked for, in the moment of its answer.
        const released = held.release()
        next = other.acquire('x')
        await released
      })
    await time.run(500)
    abort.abort()
    const closed = way.includes('closed') ? lock.close() : undefined
    await time.run(1_000)
    await ended
    expect(await next).toMatchObject({ acquired: true })
    await closed
  })
})
