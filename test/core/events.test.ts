import { AsyncLocalStorage } from 'node:async_hooks'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { setImmediate } from 'node:timers/promises'
import { runInNewContext } from 'node:vm'
import { afterEach, describe, expect, it, vi } from 'vitest'
import type { Driver, Refusal } from '../../src/core/driver.ts'
import { Emitter } from '../../src/core/events.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import {
  ClosedError,
  DistributedLock,
  type LockEvent,
  type LockEvents,
  RateLimitedError,
  RateLimiter,
  StoreError,
} from '../../src/index.ts'
import { rejectionOf } from '../harness/rejection.ts'
import { unreadableValues } from '../harness/unreadable.ts'

const ended: (() => void)[] = []
afterEach(() => {
  for (const end of ended.splice(0)) end()
})

describe('events', () => {
  it('report the life of a claim, on the instance and on the diagnostics channels', async () => {
    const emitted: string[] = []
    const published: string[] = []
    const lock = new DistributedLock({ driver: memoryDriver() })
    for (const event of ['waiting', 'acquired', 'refused', 'released', 'lost'] satisfies LockEvent[]) {
      lock.on(event, ({ lockName }) => emitted.push(`${event} ${lockName}`))
      const trace = (message: unknown) => published.push(`${event} ${(message as { lockName: string }).lockName}`)
      subscribe(`holdfast:${event}`, trace)
      ended.push(() => unsubscribe(`holdfast:${event}`, trace))
    }
    const first = await lock.hold('name')
    await lock.acquire('name', { blocking: false })
    const second = lock.hold('name', { blocking: true })
    await first.release()
    await second
    await lock.close()
    expect(emitted).toEqual([
      'acquired name',
      'refused name',
      'waiting name',
      'released name',
      'acquired name',
      'released name',
    ])
    expect(published).toEqual(emitted)
  })

  it('create no payload while there is no listener', () => {
    const emitter = new Emitter()
    const made = () => {
      throw new Error('made')
    }
    emitter.heard('listenFailed')?.(made())
    const stop = emitter.on('listenFailed', () => undefined)
    expect(() => emitter.heard('listenFailed')?.(made())).toThrow('made')
    stop()
    emitter.heard('listenFailed')?.(made())
  })

  it('a listener that throws or rejects causes a warning, and ends neither the lock nor the process', async () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    await using lock = new DistributedLock({ driver: memoryDriver() })
    lock.on('acquired', () => {
      throw new Error('in a listener')
    })
    lock.on('acquired', async () => {
      throw new Error('in an async listener')
    })
    let calls = 0
    lock.on('acquired', () => {
      calls += 1
    })
    expect((await lock.acquire('name')).acquired).toBe(true)
    const warnings = warn.mock.calls.map(([message, options]) => [String(message), options])
    vi.restoreAllMocks()
    expect(calls).toBe(1)
    expect(warnings).toEqual(
      ['in a listener', 'in an async listener'].map((message) => [
        `a listener of "acquired" threw Error: ${message}`,
        expect.objectContaining({ code: 'HOLDFAST_LISTENER_FAILED', detail: expect.stringContaining(message) }),
      ]),
    )
  })
})

describe('a listener that throws what cannot be printed', () => {
  it.each(Object.entries(unreadableValues()))('%s, causes a warning and nothing else', async (_, thrown) => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    await using lock = new DistributedLock({ driver: memoryDriver() })
    lock.on('acquired', () => {
      throw thrown
    })
    lock.on('acquired', () => Promise.reject(thrown))
    const results = await Promise.all(['a', 'b', 'c'].map((name) => lock.acquire(name)))
    const warnings = warn.mock.calls.map(([message]) => String(message))
    vi.restoreAllMocks()
    expect(results.map(({ acquired }) => acquired)).toEqual([true, true, true])
    expect(warnings).toHaveLength(6)
    for (const warning of warnings) expect(warning).toMatch(/^a listener of "acquired" threw ./)
  })
})

describe('a listener', () => {
  it('that returns a promise of another realm, or a thenable, causes a warning if that rejects', async () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const emitter = new Emitter()
    emitter.on('listenFailed', () => runInNewContext('Promise.reject(new Error("elsewhere"))'))
    emitter.on('listenFailed', () => ({
      // biome-ignore lint/suspicious/noThenProperty: a thenable is what this is about
      then: (_: unknown, failed: (error: Error) => void) => failed(new Error('later')),
    }))
    emitter.heard('listenFailed')?.({ error: undefined })
    await setImmediate()
    const warnings = warn.mock.calls.map(([message]) => String(message))
    vi.restoreAllMocks()
    expect(warnings.sort()).toEqual(
      ['elsewhere', 'later'].map((each) => `a listener of "listenFailed" threw Error: ${each}`),
    )
  })

  it('that removes itself and registers again is called once for one event', () => {
    const emitter = new Emitter()
    let calls = 0
    let stop: () => void
    const again = (): void => {
      calls += 1
      stop()
      if (calls < 100) stop = emitter.on('listenFailed', again)
    }
    stop = emitter.on('listenFailed', again)
    emitter.heard('listenFailed')?.({ error: undefined })
    expect(calls).toBe(1)
  })

  it('that is registered twice is called twice, and each registration is removed separately', () => {
    const emitter = new Emitter()
    let calls = 0
    const listener = (): void => {
      calls += 1
    }
    const stop = emitter.on('listenFailed', listener)
    emitter.on('listenFailed', listener)
    emitter.heard('listenFailed')?.({ error: undefined })
    expect(calls).toBe(2)
    stop()
    stop()
    emitter.heard('listenFailed')?.({ error: undefined })
    expect(calls).toBe(3)
  })

  it('that another listener has removed during the event is not called', () => {
    const emitter = new Emitter()
    let stop = (): void => undefined
    emitter.on('listenFailed', () => stop())
    stop = emitter.on('listenFailed', () => {
      throw new Error('called')
    })
    emitter.heard('listenFailed')?.({ error: undefined })
  })
})

describe('the events of a claim', () => {
  const ends = ['acquired', 'refused', 'acquireFailed'] as const

  it('begin with `requested`, and end with exactly one of `acquired`, `refused` and `acquireFailed`', async () => {
    const lock = new DistributedLock({ driver: memoryDriver(), deadlockAfterSeconds: false })
    const told: string[] = []
    for (const event of ['requested', 'waiting', ...ends] as const) lock.on(event, () => told.push(event))
    const story = (): string => told.splice(0).join(' ')
    const lease = await lock.hold('name')
    expect(story()).toBe('requested acquired')
    await lock.acquire('name')
    expect(story()).toBe('requested refused')
    const waits = (signal?: AbortSignal) =>
      rejectionOf(() => lock.hold('name', { blockingTimeoutSeconds: 0.05, ...(signal && { signal }) }))
    await waits()
    expect(story()).toBe('requested waiting refused')
    const abort = new AbortController()
    lock.on('waiting', () => abort.abort())
    await waits(abort.signal)
    expect(story()).toBe('requested waiting acquireFailed')
    const last = rejectionOf(() => lock.hold('name', { blocking: true }))
    await lock.close()
    expect(await last).toBeInstanceOf(ClosedError)
    expect(story()).toMatch(/^requested (waiting )?acquireFailed$/)
    expect(lease.held).toBe(false)
  })

  it('begin in the async context of the caller', async () => {
    const storage = new AsyncLocalStorage<string>()
    await using lock = new DistributedLock({ url: 'memory:' })
    const contexts: unknown[] = []
    lock.on('requested', () => contexts.push(storage.getStore()))
    // The first call opens the store.
    await storage.run('first', () => lock.withLock('a', () => {}))
    await Promise.all(['second', 'third'].map((each) => storage.run(each, () => lock.acquire(each))))
    expect(contexts).toEqual(['first', 'second', 'third'])
  })

  it('leave nothing behind when a listener of `requested` closes the instance', async () => {
    const driver = memoryDriver()
    const lock = new DistributedLock({ driver })
    await using other = new DistributedLock({ driver })
    await other.hold('name')
    let closing: Promise<void> | undefined
    lock.on('requested', () => {
      closing = lock.close()
    })
    expect(await rejectionOf(() => lock.hold('name', { blocking: true }))).toBeInstanceOf(ClosedError)
    await closing
    expect((await driver.inspect({ lockName: 'name' })).waiters).toEqual([])
  })

  it('name the holder and the place in the queue', async () => {
    await using lock = new DistributedLock({ driver: memoryDriver(), holderId: 'me' })
    const { fencingToken } = await lock.hold('name', { metadata: { job: 'nightly' } })
    const told: unknown[] = []
    lock.on('waiting', ({ holder, ahead }) => told.push([holder?.holderId, holder?.fencingToken, ahead]))
    lock.on('refused', ({ holder }) => told.push([holder?.holderId, holder?.metadata]))
    await lock.acquire('name')
    for (const _ of [1, 2]) void rejectionOf(() => lock.hold('name', { blocking: true }))
    await vi.waitFor(() => expect(told).toHaveLength(3))
    expect(told).toEqual([
      ['me', { job: 'nightly' }],
      ['me', fencingToken, 0],
      ['me', fencingToken, 1],
    ])
  })

  it('are emitted although the driver cannot read the holder', async () => {
    const driver = memoryDriver()
    const unreadable: Refusal = {
      granted: false,
      get holder(): never {
        throw new SyntaxError('not JSON')
      },
    }
    await using lock = new DistributedLock({
      driver: { ...driver, acquire: async (claims) => claims.map(() => unreadable) },
    })
    const told: unknown[] = []
    lock.on('refused', ({ holder }) => told.push(holder))
    expect(await rejectionOf(() => lock.acquire('name'))).toBeInstanceOf(SyntaxError)
    expect(told).toEqual([undefined])
  })
})

describe('the events of a lease', () => {
  const nextEvent = <E extends LockEvent>(lock: DistributedLock, event: E): Promise<LockEvents[E]> =>
    new Promise((resolve) => lock.on(event, resolve))

  it.each([
    ['expired', { heartbeat: false }, () => undefined],
    [
      'missing',
      { heartbeat: true },
      (driver: Driver, claimId: string) => driver.release([{ lockName: 'name', claimId }]),
    ],
    [
      'force-released',
      { heartbeat: true },
      (driver: Driver) => new DistributedLock({ driver }).forceRelease('name', { by: 'me' }),
    ],
  ] as const)('say that it was lost because it was %s, and how long it was held', async (reason, options, end) => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    const [granted, lost] = [nextEvent(lock, 'acquired'), nextEvent(lock, 'lost')]
    await lock.acquire('name', { timeoutSeconds: 0.2, ...options })
    await end(driver, (await granted).claimId)
    const { reason: told, heldMs } = await lost
    expect(told).toBe(reason)
    expect(heldMs).toBeGreaterThanOrEqual(0)
    expect(heldMs).toBeLessThan(60_000)
  })

  it('say how long a renewal took', async () => {
    await using lock = new DistributedLock({ driver: memoryDriver() })
    const renewed = nextEvent(lock, 'renewed')
    await lock.hold('name', { timeoutSeconds: 0.2 })
    expect((await renewed).tookMs).toBeGreaterThanOrEqual(0)
  })
})

describe('the events of a rate limiter and of a store', () => {
  const limits = { limit: 1, periodSeconds: 60 }

  it('report each decision once, and no look at the state', async () => {
    await using limiter = new RateLimiter({ url: 'memory:', limits })
    const told: unknown[] = []
    limiter.on('consumed', (event) => told.push(event))
    await limiter.consume('key')
    await limiter.peek('key')
    await limiter.consume('key')
    const wait = () => limiter.wait('key', { blockingTimeoutSeconds: 0.01 })
    expect(await rejectionOf(wait)).toBeInstanceOf(RateLimitedError)
    const base = { key: 'key', cost: 1, fallback: false }
    expect(told).toEqual([
      { ...base, allowed: true },
      { ...base, allowed: false },
      { ...base, allowed: false },
    ])
  })

  it('report every request of a waiting claim that the store does not answer', async () => {
    const driver = memoryDriver()
    let failures = 2
    await using lock = new DistributedLock({
      driver: {
        ...driver,
        async acquire(claims, call) {
          failures -= 1
          if (failures >= 0) throw new StoreError('cut')
          return driver.acquire(claims, call)
        },
      },
    })
    const told: unknown[] = []
    lock.on('storeFailed', ({ operation }) => told.push(operation))
    await lock.hold('name', { blocking: true })
    expect(told).toEqual(['acquire', 'acquire'])
  })
})
