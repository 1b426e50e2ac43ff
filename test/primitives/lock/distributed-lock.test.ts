import { AsyncLocalStorage } from 'node:async_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import type { Lease } from '../../../src/core/lease/lease.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import {
  AbortedError,
  ClosedError,
  DistributedLock,
  type DistributedLockOptions,
  getDistributedLock,
  LeaseLostError,
  type LockOptions,
  NotAcquiredError,
  NotHeldError,
} from '../../../src/index.ts'
import { gate } from '../../harness/gate.ts'

const opened: DistributedLock[] = []

function openLock(options: DistributedLockOptions = {}): DistributedLock {
  const lock = new DistributedLock({ driver: memoryDriver(), ...options })
  opened.push(lock)
  return lock
}

afterEach(async () => {
  for (const lock of opened.splice(0)) await lock.close()
})

describe('two tasks of one process, through getDistributedLock()', () => {
  process.env['HOLDFAST_URL'] = 'memory:two-tasks'

  it('share one instance', async () => {
    expect(getDistributedLock()).toBe(getDistributedLock())
    await getDistributedLock().close()
    expect(getDistributedLock().closed).toBe(false)
  })

  it('the first call’s options count; other options later are rejected without showing their values', async () => {
    await getDistributedLock().close()
    const options = { url: 'memory:secret', defaults: { timeoutSeconds: 7 } }
    const lock = getDistributedLock(options)
    expect(getDistributedLock()).toBe(lock)
    expect(getDistributedLock({ url: 'memory:secret', defaults: { timeoutSeconds: 7 } })).toBe(lock)
    expect(() => getDistributedLock({ ...options, url: 'memory:secret-other' })).toThrow(
      /options.url must be left out, or the same as in the first call, but is "another"/,
    )
    expect(() => getDistributedLock({ url: 'memory:secret' })).toThrow(/defaults/)
    await lock.close()
    // A call without options means the same lock as before, not that of an environment variable.
    const again = getDistributedLock()
    expect(again).not.toBe(lock)
    expect(getDistributedLock(options)).toBe(again)
    await again.close()
    await getDistributedLock({ url: 'memory:two-tasks' }).close()
  })

  it('the second is refused while the first holds the lock', async () => {
    const first = await getDistributedLock().acquire('task')
    const second = await getDistributedLock().acquire('task', { blocking: false })
    expect(first.acquired).toBe(true)
    expect(second).toMatchObject({
      acquired: false,
      holder: { lockName: 'task', holderId: getDistributedLock().holderId },
    })
    expect(await getDistributedLock().release('task')).toBe(true)
  })

  it('the second waits until the first is done', async () => {
    const order: string[] = []
    const inside = gate()
    const first = getDistributedLock().withLock('task', async () => {
      await inside.opened
      order.push('first')
    })
    const second = getDistributedLock().withLock(
      'task',
      async () => {
        order.push('second')
      },
      { blocking: true },
    )
    inside.open()
    await Promise.all([first, second])
    expect(order).toEqual(['first', 'second'])
  })
})

describe('defaults', () => {
  const heldBy = async (lock: DistributedLock) => {
    const lease = await lock.hold('name')
    return {
      lease,
      waits: (options: LockOptions) => lock.acquire('name', { ...options, signal: AbortSignal.timeout(20) }),
    }
  }
  const IS_REFUSED = { acquired: false }
  const waited = expect.objectContaining({ code: 'ABORTED' })

  it.each<[LockOptions, LockOptions, boolean]>([
    [{}, {}, false],
    [{}, { blocking: true }, true],
    [{}, { blockingTimeoutSeconds: 5 }, true],
    [{}, { blockingTimeoutSeconds: 0 }, false],
    [{}, { blocking: false, blockingTimeoutSeconds: 5 }, false],
    [{ blocking: true }, {}, true],
    [{ blocking: true }, { blocking: false }, false],
    [{ blocking: true }, { blockingTimeoutSeconds: 0 }, false],
    [{ blockingTimeoutSeconds: 5 }, {}, true],
    [{ blockingTimeoutSeconds: 5 }, { blocking: false }, false],
    [{ blocking: false }, { blockingTimeoutSeconds: 5 }, true],
    [{ blocking: false, blockingTimeoutSeconds: 5 }, {}, false],
    [{ blocking: false, blockingTimeoutSeconds: 5 }, { blocking: true }, true],
  ])('defaults %j and options %j wait: %s', async (defaults, options, waits) => {
    const lock = openLock({ defaults })
    const { waits: ask } = await heldBy(lock)
    if (waits) await expect(ask(options)).rejects.toEqual(waited)
    else expect(await ask(options)).toMatchObject(IS_REFUSED)
  })

  it('set every option of a claim for all calls that do not set it', async () => {
    const metadata = { by: 'default' }
    const lock = openLock({ defaults: { timeoutSeconds: 7, metadata, heartbeat: false } })
    const lease = await lock.hold('a')
    expect(lease.remainingSeconds).toBeGreaterThan(6)
    expect(lease.remainingSeconds).toBeLessThan(7)
    expect(lease.metadata).toEqual(metadata)
    expect((await lock.hold('b', { metadata: { by: 'call' } })).metadata).toEqual({ by: 'call' })
    const signal = AbortSignal.abort()
    await expect(openLock({ defaults: { signal } }).acquire('a')).rejects.toThrow(AbortedError)
  })

  it('are checked when the instance is made', () => {
    expect(() => openLock({ defaults: { timeoutSeconds: -1 } })).toThrow(/timeoutSeconds/)
    expect(() => openLock({ defaults: 7 as never })).toThrow(/defaults/)
  })
})

describe('re-entry', () => {
  it('a nested withLock of the same name does not deadlock, and has the same token', async () => {
    const lock = openLock()
    const tokens = await lock.withLock('name', (outer) =>
      lock.withLock('name', async (inner) => [outer.fencingToken, inner.fencingToken]),
    )
    expect(tokens[0]).toBe(tokens[1])
  })

  it('acquire and hold inside the callback enter the lock again, too', async () => {
    const lock = openLock()
    await lock.withLock('name', async () => {
      expect((await lock.acquire('name', { blocking: false })).acquired).toBe(true)
      await using lease = await lock.hold('name', { blocking: false })
      expect(lease.held).toBe(true)
    })
  })

  it('an inner release by lease, by name or by the end of withLock does not end the outer lease', async () => {
    const lock = openLock()
    const rival = (): Promise<boolean> => isFree(lock, 'name')
    await lock.withLock('name', async (outer) => {
      await lock.withLock('name', async (inner) => {
        expect(await inner.release()).toBe(true)
        expect(await inner.release()).toBe(false)
        expect(inner.held).toBe(false)
        expect(() => inner.assertHeld()).toThrow(NotHeldError)
        expect(outer.held).toBe(true)
      })
      await lock.withLock('name', async () => {
        expect(await lock.release('name')).toBe(true)
        expect(await lock.release('name')).toBe(false)
      })
      await lock.acquire('name')
      expect(await lock.release('name')).toBe(true)
      expect(outer.held).toBe(true)
      expect(await rival()).toBe(false)
      expect(await lock.release('name')).toBe(true)
      expect(outer.held).toBe(false)
      expect(await rival()).toBe(true)
    })
  })

  it('a task that was started inside the callback and outlives it does not re-enter', async () => {
    const lock = openLock()
    const go = gate()
    let straggler: Promise<boolean> | undefined
    await lock.withLock('name', async () => {
      straggler = go.opened.then(async () => (await lock.acquire('name', { blocking: false })).acquired)
    })
    const other = await lock.acquire('name')
    go.open()
    expect(other.acquired).toBe(true)
    expect(await straggler).toBe(false)
  })

  it('an inner lease that outlives the outer one is lost before the lock is released', async () => {
    const order: string[] = []
    const driver = memoryDriver()
    const release: Driver['release'] = (leases) => {
      order.push('given back')
      return driver.release(leases)
    }
    const lock = openLock({ driver: { ...driver, release } })
    let inner: Lease[] = []
    await lock.withLock('name', async () => {
      inner = [await lock.hold('name'), await lock.hold('name'), await lock.hold('name')]
      const [kept, , released] = inner
      kept?.signal.addEventListener('abort', () => order.push('lost'))
      released?.signal.addEventListener('abort', () => order.push('lost after its release'))
      await released?.release()
    })
    expect(order).toEqual(['lost', 'given back'])
    const [kept, unwatched, released] = inner
    for (const lease of [kept, unwatched]) {
      expect(lease?.held).toBe(false)
      expect(lease?.signal.reason).toBeInstanceOf(LeaseLostError)
      expect(() => lease?.assertHeld()).toThrow(LeaseLostError)
      expect(await lease?.release()).toBe(false)
    }
    expect(released?.signal.aborted).toBe(false)
  })

  it('an inner lease is lost with the outer one, for the same reason', async () => {
    const driver = memoryDriver()
    const [lock, operator] = [openLock({ driver }), openLock({ driver })]
    const held = lock.withLock('name', async (outer) => {
      const [watched, unwatched] = [await lock.hold('name'), await lock.hold('name')]
      const aborted = new Promise((resolve) => watched.signal.addEventListener('abort', resolve))
      await operator.forceRelease('name', { by: 'an operator' })
      await aborted
      expect(outer.signal.reason).toBeInstanceOf(LeaseLostError)
      for (const { signal } of [watched, unwatched]) expect(signal.reason).toBe(outer.signal.reason)
    })
    await expect(held).rejects.toThrow(LeaseLostError)
  })

  it('an inner extend never shortens an extension of the outer lease at the same time', async () => {
    const driver = memoryDriver()
    let sent = gate()
    let answered = Promise.resolve()
    const renew: Driver['renew'] = async (renewals) => {
      const answers = await driver.renew(renewals)
      sent.open()
      await answered
      return answers
    }
    const lock = openLock({ driver: { ...driver, renew } })
    await lock.withLock(
      'name',
      async (outer) => {
        const inner = await lock.hold('name')
        let seconds = 60
        const orders = [
          () => [outer.extend(seconds), inner.extend(seconds - 20)],
          () => [inner.extend(seconds - 20), outer.extend(seconds)],
        ]
        for (const extend of orders) {
          expect(await Promise.all(extend())).toEqual([true, true])
          expect(outer.remainingSeconds).toBeGreaterThan(seconds - 10)
          expect(await outer.extend(10)).toBe(true)
          expect(outer.remainingSeconds).toBeGreaterThan(seconds - 10)
          seconds += 60
        }
        // The inner renewal is in flight when the outer lease is extended.
        const answer = gate()
        answered = answer.opened
        sent = gate()
        const first = inner.extend(seconds - 20)
        await sent.opened
        const second = outer.extend(seconds)
        answer.open()
        expect(await Promise.all([first, second])).toEqual([true, true])
        expect(outer.remainingSeconds).toBeGreaterThan(seconds - 10)
      },
      { heartbeat: false },
    )
  })

  it('after the outer lease was released and the name acquired again, the name means the new lease', async () => {
    const lock = openLock()
    await lock.withLock('name', async (outer) => {
      await outer.release()
      const again = await lock.acquire('name')
      expect(again.acquired && again.lock.fencingToken).toBeGreaterThan(outer.fencingToken)
      expect(await lock.extend('name', 60)).toBe(true)
      expect(await lock.release('name')).toBe(true)
      expect(await isFree(lock, 'name')).toBe(true)
    })
  })

  it('another name inside the callback is claimed in the store', async () => {
    const lock = openLock()
    await lock.withLock('name', async () => {
      await lock.acquire('other')
      expect(await isFree(lock, 'other')).toBe(false)
    })
  })
})

/** Tries to acquire the name outside any callback, as another task does. */
const outside = AsyncLocalStorage.snapshot()

async function isFree(lock: DistributedLock, lockName: string): Promise<boolean> {
  const result = await outside(() => lock.acquire(lockName, { blocking: false }))
  if (result.acquired) await result.lock.release()
  return result.acquired
}

/** The holder of the name according to the store. */
const isHeldBy = async (driver: Driver, lockName: string): Promise<string[]> =>
  (await driver.inspect({ lockName })).leases.map(({ holderId }) => holderId)

describe("reacquire: 'extend'", () => {
  it('asking again extends the lease of the same instance and resolves with acquired: true', async () => {
    const lock = openLock({ reacquire: 'extend' })
    const first = await lock.acquire('name', { timeoutSeconds: 5 })
    const again = await lock.acquire('name', { timeoutSeconds: 60, blocking: false })
    if (!first.acquired || !again.acquired) throw new Error('not acquired')
    expect(again.lock.fencingToken).toBe(first.lock.fencingToken)
    expect(again.lock.expiresAt.getTime() - again.lock.acquiredAt.getTime()).toBeGreaterThan(59_000)
  })

  it('two tasks that ask at the same time share one lease', async () => {
    const lock = openLock({ reacquire: 'extend' })
    const results = await Promise.all([lock.acquire('name'), lock.acquire('name'), lock.acquire('name')])
    const tokens = results.map((result) => result.acquired && result.lock.fencingToken)
    expect(new Set(tokens).size).toBe(1)
    expect(tokens[0]).not.toBe(false)
  })

  it('never shortens the lease, and renews it with heartbeat: true', async () => {
    const lock = openLock({ reacquire: 'extend' })
    await lock.acquire('long', { timeoutSeconds: 100 })
    const again = await lock.acquire('long', { timeoutSeconds: 1 })
    expect(again.acquired && again.lock.remainingSeconds).toBeGreaterThan(90)
    await lock.acquire('short', { timeoutSeconds: 0.3 })
    expect(await lock.withLock('short', () => sleep(600, 'done'), { timeoutSeconds: 0.3 })).toBe('done')
  })

  it('does not shorten an extension of another task at the same time', async () => {
    const lock = openLock({ reacquire: 'extend' })
    const lease = await lock.hold('name', { timeoutSeconds: 10, heartbeat: false })
    await Promise.all([60, 30].map((timeoutSeconds) => lock.acquire('name', { timeoutSeconds })))
    expect(lease.remainingSeconds).toBeGreaterThan(50)
  })

  it('the first withLock to end does not free the lock under the second', async () => {
    const driver = memoryDriver()
    const lock = openLock({ driver, reacquire: 'extend' })
    const [inFirst, inSecond, leaveFirst, leaveSecond] = [gate(), gate(), gate(), gate()]
    const first = lock.withLock('name', async () => {
      inFirst.open()
      await leaveFirst.opened
    })
    await inFirst.opened
    const second = lock.withLock('name', async (lease) => {
      inSecond.open()
      await leaveSecond.opened
      return lease.held
    })
    await inSecond.opened
    leaveFirst.open()
    await first
    expect((await isHeldBy(driver, 'name')).length).toBe(1)
    leaveSecond.open()
    expect(await second).toBe(true)
    expect(await isHeldBy(driver, 'name')).toEqual([])
  })

  it('a release ends its own use, the last one releases the lock, and a release by name does so at once', async () => {
    const driver = memoryDriver()
    const lock = openLock({ driver, reacquire: 'extend' })
    const [first, second] = [await lock.hold('name'), await lock.hold('name')]
    expect(await first.release()).toBe(true)
    expect(await first.release()).toBe(false)
    expect([first.held, second.held]).toEqual([false, true])
    expect((await isHeldBy(driver, 'name')).length).toBe(1)
    expect(await second.release()).toBe(true)
    expect(await isHeldBy(driver, 'name')).toEqual([])
    const [third, fourth] = [await lock.hold('name'), await lock.hold('name')]
    expect(await lock.release('name')).toBe(true)
    expect([third.held, fourth.held]).toEqual([false, false])
    expect(await isHeldBy(driver, 'name')).toEqual([])
  })

  it('does not give access to the lock of another instance', async () => {
    const driver = memoryDriver()
    await openLock({ driver, holderId: 'same id' }).acquire('name')
    const other = await openLock({ driver, holderId: 'same id', reacquire: 'extend' }).acquire('name', {
      blocking: false,
    })
    expect(other.acquired).toBe(false)
  })
})

describe('withLock', () => {
  it("resolves with the function's result, and its error comes before any other", async () => {
    const lock = openLock()
    expect(await lock.withLock('name', async () => 42)).toBe(42)
    const failure = new Error('the job failed')
    await expect(
      lock.withLock(
        'name',
        async (lease) => {
          blockEventLoop(550)
          expect(lease.held).toBe(false)
          throw failure
        },
        { timeoutSeconds: 0.5, blocking: true },
      ),
    ).rejects.toBe(failure)
  })

  it('rejects with LeaseLostError when the lease was lost before the function ended', async () => {
    const lock = openLock()
    const job = lock.withLock('name', async () => blockEventLoop(80), { timeoutSeconds: 0.06, blocking: true })
    await expect(job).rejects.toBeInstanceOf(LeaseLostError)
  })

  it('rejects with a NotAcquiredError that names the holder', async () => {
    const lock = openLock({ holderId: 'the only one' })
    await lock.acquire('name', { metadata: { order: 7 } })
    const job = lock.withLock('name', async () => 1, { blocking: false })
    const error: NotAcquiredError = await job.then(
      () => {
        throw new Error('ran')
      },
      (reason) => reason,
    )
    expect(error).toBeInstanceOf(NotAcquiredError)
    expect(error.holder).toMatchObject({ holderId: 'the only one', metadata: { order: 7 } })
  })

  it('a function that releases the lock early is not told that it lost it', async () => {
    const lock = openLock()
    expect(await lock.withLock('name', async (lease) => lease.release())).toBe(true)
  })
})

describe('failure 2, rules 2 and 3: an event loop blocked for longer than the ttl', () => {
  it('held is false in the first statement after it, signal is aborted, and no renewal revives the lease', async () => {
    const lock = openLock()
    const lease = await lock.hold('name', { timeoutSeconds: 0.15, blocking: true })
    const { signal } = lease
    blockEventLoop(200)
    expect(lease.held).toBe(false)
    expect(signal.aborted).toBe(true)
    expect(() => lease.assertHeld()).toThrow(LeaseLostError)
    await sleep(100) // for the renewal that was due meanwhile
    expect(lease.held).toBe(false)
    expect(await lease.extend(10)).toBe(false)
    expect(await lease.release()).toBe(false)
  })
})

describe('minHoldSeconds and maxHoldSeconds', () => {
  it('a release before minHoldSeconds keeps the lock until that time has passed', async () => {
    const lock = openLock()
    const started = performance.now()
    const result = await lock.acquire('cron:cleanup', { minHoldSeconds: 0.3 })
    if (!result.acquired) throw new Error('not acquired')
    expect(await lock.release('cron:cleanup')).toBe(true)
    expect(result.lock.held).toBe(false)
    expect((await lock.acquire('cron:cleanup', { blocking: false })).acquired).toBe(false)
    expect((await lock.acquire('cron:cleanup', { blocking: true })).acquired).toBe(true)
    expect(performance.now() - started).toBeGreaterThan(290)
  })

  it('failure 34: work that hangs loses its lock after maxHoldSeconds, although the heartbeat is on', async () => {
    const lock = openLock()
    const lease = await lock.hold('name', { timeoutSeconds: 0.2, maxHoldSeconds: 0.4 })
    await new Promise((resolve) => lease.signal.addEventListener('abort', resolve))
    expect(lease.held).toBe(false)
    expect((await lock.acquire('name')).acquired).toBe(true)
  })
})

describe('an instance', () => {
  it('releaseAll releases everything', async () => {
    const lock = openLock()
    await Promise.all(['a', 'b', 'c'].map((name) => lock.acquire(name)))
    await lock.releaseAll()
    const again = await Promise.all(['a', 'b', 'c'].map((name) => lock.acquire(name, { blocking: false })))
    expect(again.every((result) => result.acquired)).toBe(true)
  })

  it('that is closed ends its waits, releases its leases, and rejects every later call', async () => {
    const driver = memoryDriver()
    const lock = openLock({ driver })
    await lock.acquire('name')
    const waiting = expect(lock.acquire('name', { blocking: true })).rejects.toBeInstanceOf(ClosedError)
    await lock.close()
    await waiting
    await expect(lock.acquire('name')).rejects.toBeInstanceOf(ClosedError)
    await expect(lock.release('name')).rejects.toBeInstanceOf(ClosedError)
    expect(await driver.inspect({})).toEqual({ leases: [], waiters: [] })
  })

  it('shows a lease as its LockInfo in JSON', async () => {
    const lease = await openLock({ holderId: 'me' }).hold('name', { metadata: { a: 1 } })
    expect(Object.keys(JSON.parse(JSON.stringify(lease)))).toEqual([
      'lockName',
      'holderId',
      'acquiredAt',
      'expiresAt',
      'metadata',
      'fencingToken',
    ])
  })
})

function blockEventLoop(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}
