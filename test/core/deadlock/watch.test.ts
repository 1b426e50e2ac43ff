import { describe, expect, it, vi } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import {
  DeadlockError,
  DistributedLock,
  type InstanceOptions,
  OnceOnly,
  ReadWriteLock,
  Semaphore,
  StoreError,
} from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

/** Instances on one store, in virtual time. */
function setUp() {
  const time = new VirtualTime()
  const store = createMemoryStore(time.clock())
  const random = seededRandom(7)
  let searches = 0
  function settings(holderId: string): InstanceOptions {
    const driver: Driver = memoryDriver({ store })
    const watched: Driver = {
      ...driver,
      // An answer takes some time, as with every real store.
      async acquire(claims, call) {
        await new Promise<void>((resolve) => time.in(1, resolve))
        return driver.acquire(claims, call)
      },
      inspect(query) {
        // A search starts with the lock name that a claim waits for, and then reads the wait markers of its holders.
        if (query.lockName?.startsWith('waits:') !== true) searches += 1
        return driver.inspect(query)
      },
    }
    return { driver: watched, holderId, clock: time.clock(), random }
  }
  const open = (holderId: string): DistributedLock => new DistributedLock(settings(holderId))
  const work = (ms: number): Promise<void> => new Promise((resolve) => time.in(ms, resolve))
  return { time, open, settings, work, searches: () => searches }
}

const LONG = { blockingTimeoutSeconds: 3_600, timeoutSeconds: 3_600 }

describe('the time of a search', () => {
  it('a deadlock ends between 1 and 1.5 s after it began', async () => {
    const { time, open } = setUp()
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

  it('a claim that waits long searches less and less often, in the end once in 15 to 30 s', async () => {
    const { time, open, searches } = setUp()
    const lock = open('a')
    const holding = lock.hold('x', LONG)
    const waiting = lock.withLock('own', () => lock.withLock('x', () => 'done', LONG), LONG)
    await time.run(900)
    expect(searches()).toBe(0)
    await time.run(400)
    expect(searches()).toBe(1)
    await time.run(3_000_000)
    expect(searches()).toBeGreaterThan(80)
    expect(searches()).toBeLessThan(220)
    const held = await holding
    void held.release()
    await time.run(1_000)
    expect(await waiting).toBe('done')
  })

  it('the claims of an instance share their searches: at most two a second', async () => {
    const { time, open, searches } = setUp()
    const lock = open('a')
    const holding = lock.hold('x', LONG)
    const waiting = Array.from({ length: 200 }, (_, index) =>
      lock.withLock(`own ${index}`, () => lock.withLock('x', () => 'done', LONG), LONG),
    )
    await time.run(60_000)
    expect(searches()).toBeLessThanOrEqual(60 * 2)
    const held = await holding
    void held.release()
    await time.run(10_000)
    expect(new Set(await Promise.all(waiting))).toEqual(new Set(['done']))
  }, 60_000)
})

describe('what a search reads and writes', () => {
  it('locks that are acquired together are one member of a cycle', async () => {
    const { time, open, work } = setUp()
    const [a, b] = [open('a'), open('b')]
    const nested = a.withLock('y', () => work(100).then(() => a.withLock('x', () => 'nested', LONG)), LONG)
    const together = work(50).then(() => b.withLocks(['x', 'y'], () => 'together', LONG))
    const ends = Promise.allSettled([nested, together])
    await time.run(5_000)
    expect((await ends).map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
  })

  it('wait markers are removed when the wait ends, however it ends', async () => {
    const { time, open, settings, work } = setUp()
    const markers = async () => (await settings('reader').driver?.inspect({ prefix: 'waits:' }))?.leases ?? []
    const [a, b] = [open('a'), open('b')]
    const cross = (lock: DistributedLock, own: string, other: string) =>
      lock.withLock(own, () => work(100).then(() => lock.withLock(other, () => 'done', LONG)), LONG)
    const held = a.withLock('held', () => work(4_000), LONG)
    const [stop, closing] = [new AbortController(), open('c')]
    const ends = Promise.allSettled([
      held,
      cross(a, 'x', 'y'),
      cross(b, 'y', 'x'),
      a.withLock('1', () => a.withLock('held', () => 'granted', LONG), LONG),
      a.withLock('2', () => a.withLock('held', () => 'too late', { ...LONG, blockingTimeoutSeconds: 2 }), LONG),
      a.withLock('3', () => a.withLock('held', () => 'aborted', { ...LONG, signal: stop.signal }), LONG),
      closing.withLock('4', () => closing.withLock('held', () => 'closed', LONG), LONG),
    ])
    await time.run(800)
    const written = await markers()
    expect(written.map(({ metadata }) => metadata?.['waitsFor']).sort()).toEqual(
      ['held', 'held', 'held', 'held', 'x', 'y'].sort(),
    )
    // The name of a marker is the chain id of the lease around its claim.
    expect(written.every(({ lockName, claimId }) => claimId.startsWith(`${lockName.slice('waits:'.length)}.`))).toBe(
      true,
    )
    stop.abort()
    const closed = closing.close()
    await time.run(10_000)
    await Promise.all([ends, closed])
    expect(await markers()).toEqual([])
  })

  it('wait markers are never in one batch with leases', async () => {
    const { time, settings } = setUp()
    const { driver, ...rest } = settings('a')
    const batches: string[][] = []
    const record = <Each extends { lockName: string }>(list: readonly Each[]): readonly Each[] => {
      batches.push(list.map(({ lockName }) => (lockName.startsWith('waits:') ? 'marker' : 'lease')))
      return list
    }
    const acquire: Driver['acquire'] = (claims, call) => (driver as Driver).acquire(record(claims), call)
    const release: Driver['release'] = (leases) => (driver as Driver).release(record(leases))
    const lock = new DistributedLock({ ...rest, driver: { ...(driver as Driver), acquire, release } })
    const holding = lock.hold('x', LONG)
    const waiting = lock.withLock('own', () => lock.withLock('x', () => 'done', LONG), LONG)
    await time.run(2_000)
    await Promise.all([(await holding).release(), time.run(2_000)])
    expect(await waiting).toBe('done')
    const withMarkers = batches.filter((list) => list.includes('marker'))
    // At least one batch to write a marker and one to remove it.
    expect(withMarkers.length).toBeGreaterThan(1)
    expect(withMarkers.filter((list) => list.includes('lease'))).toEqual([])
  })

  it('an instance whose wait markers are rejected writes no more of them, and warns once', async () => {
    const { time, settings } = setUp()
    const { driver, ...rest } = settings('a')
    let denied = 0
    const deny = async <Answer>(list: readonly { lockName: string }[], ask: () => Promise<Answer>) => {
      if (!list.some(({ lockName }) => lockName.startsWith('waits:'))) return ask()
      denied += 1
      throw new StoreError('NOPERM', { retryable: false })
    }
    const store = driver as Driver
    const lock = new DistributedLock({
      ...rest,
      driver: {
        ...store,
        acquire: (claims, call) => deny(claims, () => store.acquire(claims, call)),
        release: (leases) => deny(leases, () => store.release(leases)),
      },
    })
    const failed: string[] = []
    lock.on('releaseFailed', ({ lockName }) => failed.push(lockName))
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const holding = lock.hold('x', LONG)
    const nested = (own: string) => lock.withLock(own, () => lock.withLock('x', () => 'done', LONG), LONG)
    const waiting = [nested('one'), nested('two')]
    await time.run(2_000)
    const later = nested('three')
    await time.run(2_000)
    await Promise.all([(await holding).release(), time.run(2_000)])
    expect(await Promise.all([...waiting, later])).toEqual(['done', 'done', 'done'])
    const warnings = warn.mock.calls.map(([message]) => String(message))
    vi.restoreAllMocks()
    expect(warnings).toEqual([expect.stringContaining('does not look for deadlocks')])
    expect(failed).toEqual([])
    expect(denied).toBe(1)
  })

  it('nothing, if the store does not show its waiters', async () => {
    const { time, settings, searches } = setUp()
    const { driver, ...rest } = settings('a')
    if (driver === undefined) throw new Error('no driver')
    const capabilities = { ...driver.capabilities, queue: false }
    const lock = new DistributedLock({ ...rest, driver: { ...driver, capabilities } })
    const holding = lock.hold('x', LONG)
    const waiting = lock.withLock('own', () => lock.withLock('x', () => 'done', LONG), LONG)
    await time.run(60_000)
    expect(searches()).toBe(0)
    void (await holding).release()
    await time.run(10_000)
    expect(await waiting).toBe('done')
  })
})

describe('branches of one callback that wait for each other are no deadlock', () => {
  it('three branches acquire one lock after each other', async () => {
    const { time, open, work } = setUp()
    const lock = open('a')
    const branches = lock.withLock(
      'outer',
      () => Promise.all([1, 2, 3].map((branch) => lock.withLock('job', () => work(3_000).then(() => branch), LONG))),
      LONG,
    )
    await outcome(branches, time.run(15_000), [1, 2, 3])
  })

  it('three branches acquire all permits of a semaphore after each other', async () => {
    const { time, open, settings, work } = setUp()
    const lock = open('a')
    const workers = new Semaphore({ ...settings('b'), limit: 2 })
    const permits = { ...LONG, permits: 2 }
    const branch = (each: number) => workers.withPermits('job', () => work(3_000).then(() => each), permits)
    const branches = lock.withLock('outer', () => Promise.all([1, 2, 3].map(branch)), LONG)
    await outcome(branches, time.run(15_000), [1, 2, 3])
  })

  it('three branches ask for the result of one key', async () => {
    const { time, open, settings, work } = setUp()
    const lock = open('a')
    const jobs = new OnceOnly(settings('b'))
    const branch = (each: number) => jobs.once('job', () => work(3_000).then(() => each), { forSeconds: 600 })
    const branches = lock.withLock('outer', () => Promise.all([1, 2, 3].map(branch)), LONG)
    await outcome(branches, time.run(15_000), [1, 1, 1])
  })

  it('branches at any depth wait while each holds a lock of its own', async () => {
    const { time, open, work } = setUp()
    const lock = open('a')
    const branch = (each: number) =>
      lock.withLock(
        `own ${each}`,
        () => lock.withLocks(['job', 'tool'], () => work(3_000).then(() => each), LONG),
        LONG,
      )
    const branches = lock.withLock('outer', () => Promise.all([1, 2, 3].map(branch)), LONG)
    await outcome(branches, time.run(15_000), [1, 2, 3])
  })

  it('unless two branches each hold what the other one waits for', async () => {
    const { time, open, work } = setUp()
    const lock = open('a')
    const cross = (own: string, other: string) =>
      lock.withLock(own, () => work(100).then(() => lock.withLock(other, () => 'done', LONG)), LONG)
    const branches = lock.withLock('outer', () => Promise.allSettled([cross('x', 'y'), cross('y', 'x')]), LONG)
    await time.run(5_000)
    const ends = await branches
    expect(ends.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
    const [error] = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason as unknown] : []))
    expect(error).toBeInstanceOf(DeadlockError)
  })
})

/** Shows an error as it is, instead of a promise that never settles. */
async function outcome(work: Promise<unknown>, time: Promise<void>, expected: unknown): Promise<void> {
  const ended = work.catch((error: unknown) => error)
  await time
  expect(await Promise.race([ended, 'still waiting'])).toEqual(expected)
}

describe('a claim that does not wait is refused, and is not a deadlock:', () => {
  const AT_ONCE = { blocking: false }

  it('a writer inside its own read lock', async () => {
    const pages = new ReadWriteLock({ driver: memoryDriver() })
    await pages.withRead('page', async () => {
      expect(await pages.acquireWrite('page', AT_ONCE)).toMatchObject({ acquired: false })
      await expect(pages.withWrite('page', () => 'written', AT_ONCE)).rejects.toMatchObject({ code: 'NOT_ACQUIRED' })
      await expect(pages.holdWrite('page', { blockingTimeoutSeconds: 0 })).rejects.toMatchObject({
        code: 'NOT_ACQUIRED',
      })
    })
    await pages.close()
  })

  it('more permits than its own callback leaves', async () => {
    const workers = new Semaphore({ driver: memoryDriver(), limit: 2 })
    await workers.withPermits('s', async () => {
      expect(await workers.acquire('s', { ...AT_ONCE, permits: 2 })).toMatchObject({ acquired: false })
      expect(await workers.acquire('s', AT_ONCE)).toMatchObject({ acquired: true })
    })
    await workers.close()
  })

  it('a run that asks for its own key', async () => {
    const jobs = new OnceOnly({ driver: memoryDriver() })
    const once = { forSeconds: 60, blockingTimeoutSeconds: 0 }
    const run = jobs.once('key', () => jobs.once('key', () => 'inner', once), once)
    await expect(run).rejects.toMatchObject({ code: 'NOT_ACQUIRED' })
    await jobs.close()
  })
})
