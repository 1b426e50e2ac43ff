import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it, vi } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import {
  AbortedError,
  DistributedLock,
  InvalidArgumentError,
  LeaseLostError,
  type LockOptions,
  NotAcquiredError,
  StoreError,
} from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

describe('withLocks: arguments', () => {
  const driver = memoryDriver()
  const lock = new DistributedLock({ driver })

  it.each([
    [[], /lockNames must be a list of 1 to 100 lock names/],
    [Array.from({ length: 101 }, (_, index) => `${index}`), /a list of 1 to 100/],
    ['name', /a list of 1 to 100/],
    [['a', ''], /lockNames\[1\] must be a string of 1 to 255/],
    [['a', 7], /lockNames\[1\]/],
  ])('rule 13: %j is refused', async (names, rule) => {
    const attempt = lock.withLocks(names as string[], () => {})
    await expect(attempt).rejects.toBeInstanceOf(InvalidArgumentError)
    await expect(attempt).rejects.toThrow(rule)
  })

  it('fn must be a function', async () => {
    await expect(lock.withLocks(['a'], undefined as unknown as () => void)).rejects.toThrow(/fn must be a function/)
  })
})

describe('withLocks: the order in which it waits', () => {
  it('is that of the names’ UTF-8 bytes, in any order of the argument', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    await using other = new DistributedLock({ driver })
    // In the order of UTF-16 code units, the emoji would come before the last name.
    const inOrder = ['A', 'a', 'é', '€', '\uffee', '😀']
    for (const [index, name] of inOrder.entries()) {
      const inTheWay = await other.hold(name)
      const job = lock.withLocks(inOrder.toReversed(), () => 'done', { blocking: true })
      while ((await driver.inspect({ lockName: name })).waiters.length === 0) await sleep(1)
      const held = (await driver.inspect({})).leases.filter(({ holderId }) => holderId === lock.holderId)
      expect(held.map(({ lockName }) => lockName).sort()).toEqual(inOrder.slice(0, index).sort())
      await inTheWay.release()
      expect(await job).toBe('done')
    }
  })
})

describe('withLocks: all or nothing', () => {
  it('one waiting time applies to all of them together', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    await using other = new DistributedLock({ driver })
    const [a, b] = [await other.hold('a'), await other.hold('b')]
    const startedMs = performance.now()
    const job = lock.withLocks(['a', 'b'], () => {}, { blockingTimeoutSeconds: 2 })
    await sleep(1_800) // most of that time
    await a.release()
    await expect(job).rejects.toBeInstanceOf(NotAcquiredError)
    expect(performance.now() - startedMs).toBeGreaterThan(1_950)
    expect((await other.acquire('a', { blocking: false })).acquired).toBe(true)
    expect(b.held).toBe(true)
  })

  it('minHoldSeconds does not keep locks that are released because another was refused', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    await using other = new DistributedLock({ driver })
    await other.hold('b')
    const options = { minHoldSeconds: 30, blocking: false }
    await expect(lock.withLocks(['a', 'b'], () => {}, options)).rejects.toBeInstanceOf(NotAcquiredError)
    expect((await other.acquire('a', { blocking: false })).acquired).toBe(true)
  })

  it('an abort while waiting leaves nothing behind', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    await using other = new DistributedLock({ driver })
    await other.hold('b')
    const abort = new AbortController()
    const job = lock.withLocks(['a', 'b'], () => {}, { blocking: true, signal: abort.signal })
    while ((await driver.inspect({ lockName: 'b' })).waiters.length === 0) await sleep(1)
    abort.abort()
    await expect(job).rejects.toBeInstanceOf(AbortedError)
    const { leases, waiters } = await driver.inspect({})
    expect([leases.map(({ lockName }) => lockName), waiters]).toEqual([['b'], []])
  })

  it('a short outage does not end a wait; a call that does not wait rejects', async () => {
    const inner = memoryDriver()
    let failures = 0
    const acquire: typeof inner.acquire = (claims, call) => {
      failures -= 1
      if (failures >= 0) throw new StoreError('down for a moment')
      return inner.acquire(claims, call)
    }
    await using lock = new DistributedLock({ driver: { ...inner, acquire } })
    failures = 2
    expect(await lock.withLocks(['a', 'b'], () => 'ran', { blocking: true })).toBe('ran')
    failures = 2
    await expect(lock.withLocks(['a', 'b'], () => 'ran', { blocking: false })).rejects.toBeInstanceOf(StoreError)
    expect((await inner.inspect({})).leases).toEqual([])
  })

  it('a lease that is lost while waiting for others ends the wait, and the function does not run', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    await using other = new DistributedLock({ driver })
    await other.hold('b')
    const job = lock.withLocks(['a', 'b'], () => 'ran', {
      timeoutSeconds: 0.3,
      heartbeat: false,
      blockingTimeoutSeconds: 60,
    })
    const lost = await job.catch((error: unknown) => error)
    expect(lost).toBeInstanceOf(LeaseLostError)
    expect((lost as LeaseLostError).lockName).toBe('a')
    await vi.waitFor(async () => expect((await driver.inspect({ lockName: 'b' })).waiters).toEqual([]))
  })

  it('a lease lost while the function runs is an error at its end; an error of the function comes first', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    const brief = { timeoutSeconds: 0.4, heartbeat: false }
    await expect(lock.withLocks(['a', 'b'], () => sleep(450), brief)).rejects.toBeInstanceOf(LeaseLostError)
    const failing = lock.withLocks(
      ['a', 'b'],
      async () => {
        await sleep(450)
        throw new Error('mine')
      },
      brief,
    )
    await expect(failing).rejects.toThrow('mine')
  })
})

describe('withLocks: the waiting time (virtual time)', () => {
  const NEVER = new Promise<never>(() => {})
  const LIMIT = { blockingTimeoutSeconds: 1 }

  /** A store that does not answer some calls. `ended` is the result of a call of `withLocks`, and its time. */
  function scene(silent: (call: 'acquire' | 'release') => boolean, groups = true) {
    const time = new VirtualTime()
    const store = createMemoryStore(time.clock())
    const driver = memoryDriver({ store })
    const quiet: Driver = {
      ...driver,
      capabilities: { ...driver.capabilities, groups },
      // An answer takes some time, as with every real store.
      acquire: async (claims, call) => {
        if (silent('acquire')) return NEVER
        await new Promise<void>((resolve) => time.in(1, resolve))
        return driver.acquire(claims, call)
      },
      release: (leases) => (silent('release') ? NEVER : driver.release(leases)),
    }
    const random = seededRandom(7)
    const open = (using: Driver) => new DistributedLock({ driver: using, clock: time.clock(), random })
    const [lock, other] = [open(quiet), open(memoryDriver({ store }))]
    const hold = async (name: string) => {
      const holding = other.hold(name, { timeoutSeconds: 60, heartbeat: false })
      await time.run(1)
      return holding
    }
    const ended = async (names: string[], options: LockOptions) => {
      const startedMs = time.nowMs
      const job = lock.withLocks(names, () => 'done', options)
      const end = job.then(
        (result) => ({ result, error: undefined, afterMs: time.nowMs - startedMs }),
        (error: Error) => ({ result: undefined, error, afterMs: time.nowMs - startedMs }),
      )
      await time.run(60_000)
      return end
    }
    return { time, hold, ended }
  }

  it('a store that does not answer is an error when the waiting time is over', async () => {
    const { ended } = scene(() => true)
    const { error, afterMs } = await ended(['a', 'b'], LIMIT)
    expect(error).toBeInstanceOf(StoreError)
    expect(error?.message).toMatch(/^the store did not answer a claim of "a" in time \(waited 1\.0 s\)/)
    expect(afterMs).toBe(1_000)
  })

  it('so is a store that stops answering while it waits for the second lock', async () => {
    let asked = 0
    const { hold, ended } = scene((call) => call === 'acquire' && ++asked > 2)
    await hold('b')
    const { error, afterMs } = await ended(['a', 'b'], LIMIT)
    expect(error).toBeInstanceOf(StoreError)
    expect(afterMs).toBe(1_000)
  })

  it.each([
    ['what was granted before one was refused', false, 1_000],
    ['what was held while the rest was waited for', true, 1_250],
  ])(
    'releases that are not answered, of %s, do not prolong it by more than a quarter of a second',
    async (_, groups, ms) => {
      const { hold, ended } = scene((call) => call === 'release', groups)
      await hold('b')
      const { error, afterMs } = await ended(['a', 'b'], LIMIT)
      expect(error).toBeInstanceOf(NotAcquiredError)
      expect(afterMs).toBe(ms)
    },
  )

  it('the error says how long it waited for all of them, and names the holder of the missing one', async () => {
    const { time, hold, ended } = scene(() => false)
    const a = await hold('a')
    const b = await hold('b')
    time.in(600, () => void a.release())
    const { error, afterMs } = await ended(['a', 'b'], LIMIT)
    expect(error).toMatchObject({ code: 'NOT_ACQUIRED', lockName: 'b', holder: { holderId: b.holderId } })
    expect(error?.message).toMatch(/\(waited 1\.0 s\)$/)
    expect(afterMs).toBe(1_000)
  })

  it('an abort meanwhile rejects at once', async () => {
    const { time, ended } = scene(() => true)
    const abort = new AbortController()
    time.in(400, () => abort.abort())
    const { error, afterMs } = await ended(['a', 'b'], { ...LIMIT, signal: abort.signal })
    expect(error).toBeInstanceOf(AbortedError)
    expect(afterMs).toBe(400)
  })
})
