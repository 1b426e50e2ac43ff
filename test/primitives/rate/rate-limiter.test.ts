import { afterEach, describe, expect, it } from 'vitest'
import type { Driver, RateRequest } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import {
  AbortedError,
  ClosedError,
  InvalidArgumentError,
  RateLimitedError,
  RateLimiter,
  type RateLimiterOptions,
  StoreError,
  UnsupportedError,
} from '../../../src/index.ts'
import { VirtualTime } from '../../../src/testing/virtual-clock.ts'

const open: RateLimiter[] = []
afterEach(() => Promise.all(open.splice(0).map((limiter) => limiter.close())))

/** Limiters of several processes on one store, in virtual time. */
function scene() {
  const time = new VirtualTime()
  const clock = time.clock()
  const store = createMemoryStore(clock)
  const lists: (readonly RateRequest[])[] = []
  /** How long a round trip takes. */
  const slow = { ms: 0 }
  const driver: Driver = memoryDriver({ store })
  const counted: Driver = {
    ...driver,
    capabilities: { ...driver.capabilities, scope: 'network' },
    consume: async (requests) => {
      lists.push(requests)
      if (slow.ms > 0) await clock.sleep(slow.ms)
      return (await driver.consume?.(requests)) ?? []
    },
  }
  const limiter = (limits: RateLimiterOptions['limits'], options: Partial<RateLimiterOptions> = {}): RateLimiter => {
    const made = new RateLimiter({ driver: { ...counted }, clock, limits, ...options })
    open.push(made)
    return made
  }
  return { time, limiter, lists, slow }
}

const MINUTE = { limit: 60, periodSeconds: 60 }

describe('consume', () => {
  it('resolves with the remaining units and the time to try again', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ ...MINUTE, burst: 2 })
    expect(await limited.consume('key')).toMatchObject({ allowed: true, remaining: 1, retryAfterSeconds: 0 })
    expect(await limited.consume('key')).toMatchObject({ allowed: true, remaining: 0, resetAfterSeconds: 2 })
    const refused = await limited.consume('key')
    expect(refused).toMatchObject({ allowed: false, remaining: 0, resetAfterSeconds: 2 })
    expect(refused.retryAfterSeconds).toBeCloseTo(1, 2)
    await time.run(refused.retryAfterSeconds * 1_000)
    expect((await limited.consume('key')).allowed).toBe(true)
  })

  it('a remembered refusal gives the time for the requested cost, not for a smaller one', async () => {
    const { limiter, lists } = scene()
    const limited = limiter({ ...MINUTE, burst: 10 })
    await limited.consume('key', { cost: 10 })
    const one = await limited.consume('key')
    const ten = await limited.consume('key', { cost: 10 })
    expect(lists.length).toBe(2)
    expect(one.retryAfterSeconds).toBeCloseTo(1, 2)
    expect(ten.retryAfterSeconds).toBeCloseTo(10, 2)
  })

  it('has a burst of `limit` by default, and allows up to twice that in the first period', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ limit: 10, periodSeconds: 10 })
    const passed = async () =>
      (await Promise.all(Array.from({ length: 30 }, () => limited.consume('key')))).filter((r) => r.allowed).length
    let inFirstPeriod = await passed()
    expect(inFirstPeriod).toBe(10)
    for (let second = 1; second <= 10; second += 1) {
      await time.run(1_000)
      inFirstPeriod += await passed()
    }
    expect(inFirstPeriod).toBe(20)
    let inSecondPeriod = 0
    for (let second = 1; second <= 10; second += 1) {
      await time.run(1_000)
      inSecondPeriod += await passed()
    }
    expect(inSecondPeriod).toBe(10)
  })

  it('enforces several limits together, and returns the state of each', async () => {
    const { limiter, time } = scene()
    const limited = limiter([
      { limit: 10, periodSeconds: 1 },
      { limit: 15, periodSeconds: 3_600 },
    ])
    const count = async () => {
      const results = await Promise.all(Array.from({ length: 20 }, () => limited.consume('key')))
      return results.filter(({ allowed }) => allowed).length
    }
    expect(await count()).toBe(10)
    await time.run(1_000)
    expect(await count()).toBe(5)
    const { remaining, retryAfterSeconds, limits } = await limited.consume('key')
    expect(remaining).toBe(0)
    expect(retryAfterSeconds).toBeGreaterThan(200)
    expect(limits.map((limit) => limit.remaining)).toEqual([5, 0])
    expect(limits[0]?.resetAfterSeconds).toBeCloseTo(0.5)
    expect(limits[0]?.nextAfterSeconds).toBeCloseTo(0.1)
    expect(limits[1]?.nextAfterSeconds).toBeCloseTo(retryAfterSeconds, 0)
  })

  it('asks the store once for all calls of one turn', async () => {
    const { limiter, lists } = scene()
    const limited = limiter(MINUTE)
    await Promise.all(Array.from({ length: 64 }, () => limited.consume('hot')))
    expect(lists.map((list) => list.length)).toEqual([64])
  })

  it('has periods below one second', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ limit: 2, periodSeconds: 0.01 })
    for (let round = 0; round < 5; round += 1) {
      const results = await Promise.all([1, 2, 3].map(() => limited.consume('key')))
      expect(results.map(({ allowed }) => allowed)).toEqual([true, true, false])
      await time.run(10)
    }
  })

  it('consumeOrThrow rejects with an error that has the time to try again', async () => {
    const { limiter } = scene()
    const limited = limiter({ ...MINUTE, burst: 1 })
    expect((await limited.consumeOrThrow('key')).remaining).toBe(0)
    const error = await limited.consumeOrThrow('key').catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(Error)
    expect(error).toBeInstanceOf(RateLimitedError)
    expect(error).toMatchObject({ name: 'RateLimitedError', code: 'RATE_LIMITED', key: 'key' })
    expect((error as RateLimitedError).retryAfterSeconds).toBeCloseTo(1, 2)
    expect((error as RateLimitedError).message).toMatch(/"key" is over its rate limit, and can be tried again in \d/)
  })

  it('peek resolves with what consume would, and takes nothing', async () => {
    const { limiter } = scene()
    const limited = limiter({ ...MINUTE, burst: 3 })
    expect(await limited.peek('key')).toMatchObject({ allowed: true, remaining: 3, resetAfterSeconds: 0 })
    await limited.consume('key', { cost: 2 })
    const foreseen = await limited.peek('key', { cost: 2 })
    expect(foreseen).toMatchObject({ allowed: false, remaining: 1 })
    expect(foreseen.retryAfterSeconds).toBeCloseTo(1, 2)
    expect(await limited.consume('key')).toMatchObject({ allowed: true, remaining: 0 })
  })

  it('a failing store is an error, never a value', async () => {
    const failing = { ...memoryDriver(), consume: async () => Promise.reject(new Error('out of order')) }
    await using limited = new RateLimiter({ driver: failing, limits: MINUTE })
    await expect(limited.consume('key')).rejects.toBeInstanceOf(StoreError)
    await expect(limited.wait('key')).rejects.toBeInstanceOf(StoreError)
  })

  it('a driver without rate limits rejects with the reason', async () => {
    const { consume: _, ...without } = memoryDriver()
    await using limited = new RateLimiter({ driver: without, limits: MINUTE })
    await expect(limited.consume('key')).rejects.toBeInstanceOf(UnsupportedError)
  })
})

describe('a refusal', () => {
  it('is remembered until its time has passed, without asking the store', async () => {
    const { limiter, lists, time } = scene()
    const limited = limiter({ ...MINUTE, burst: 1 })
    await limited.consume('key')
    await limited.consume('key')
    const asked = lists.length
    await time.run(400)
    const again = await limited.consume('key')
    expect(again.allowed).toBe(false)
    expect(again.retryAfterSeconds).toBeCloseTo(0.6, 2)
    expect(lists.length).toBe(asked)
    await time.run(600)
    expect((await limited.consume('key')).allowed).toBe(true)
  })

  it('is checked again after ten seconds: the store may have been emptied', async () => {
    const { limiter, lists, time } = scene()
    const limited = limiter({ limit: 1, periodSeconds: 3_600 })
    for (let call = 0; call < 3; call += 1) await limited.consume('key')
    expect(lists.length).toBe(2)
    await time.run(10_000)
    expect((await limited.consume('key')).retryAfterSeconds).toBeCloseTo(3_590, 0)
    expect(lists.length).toBe(3)
  })

  it('does not apply to a smaller cost or another key', async () => {
    const { limiter } = scene()
    const limited = limiter({ ...MINUTE, burst: 4 })
    await limited.consume('key', { cost: 2 })
    expect((await limited.consume('key', { cost: 3 })).allowed).toBe(false)
    expect((await limited.consume('other', { cost: 3 })).allowed).toBe(true)
    expect((await limited.consume('key', { cost: 2 })).allowed).toBe(true)
    expect((await limited.consume('key')).allowed).toBe(false)
  })
})

describe('wait', () => {
  it('ends when its time is over, also if the store does not answer', async () => {
    const { limiter, time, slow } = scene()
    slow.ms = 60_000
    const limited = limiter(MINUTE, { callTimeoutSeconds: 30 })
    const waiting = limited.wait('key', { blockingTimeoutSeconds: 1 })
    const failed = expect(waiting).rejects.toBeInstanceOf(StoreError)
    let settled = false
    waiting.catch(() => {
      settled = true
    })
    await time.run(1_200)
    expect(settled).toBe(true)
    await failed
  })

  it('resolves when there are units, in the order of the calls, at any cost', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ ...MINUTE, burst: 3 })
    await limited.consume('key', { cost: 3 })
    const order: string[] = []
    const startedMs = time.nowMs
    const waits = [
      ['large', 3],
      ['small', 1],
      ['last', 1],
    ] as const
    const all = waits.map(([name, cost]) =>
      limited.wait('key', { cost }).then(() => order.push(`${name} ${Math.round((time.nowMs - startedMs) / 1_000)}`)),
    )
    await time.run(9_000)
    await Promise.all(all)
    expect(order).toEqual(['large 3', 'small 4', 'last 5'])
  })

  it('does not wait if there are units, and asks once for all calls', async () => {
    const { limiter, lists } = scene()
    const limited = limiter(MINUTE)
    const results = await Promise.all(
      Array.from({ length: 50 }, () => limited.wait('key', { blockingTimeoutSeconds: 0 })),
    )
    expect(results.every(({ allowed }) => allowed)).toBe(true)
    expect(lists.length).toBe(1)
  })

  it('rejects as soon as it is certain that there is not enough time', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ limit: 1, periodSeconds: 60 })
    await limited.consume('key')
    const startedMs = time.nowMs
    const error = await limited.wait('key', { blockingTimeoutSeconds: 59 }).catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(RateLimitedError)
    expect(time.nowMs).toBe(startedMs)
    await expect(limited.wait('key', { blockingTimeoutSeconds: 0 })).rejects.toBeInstanceOf(RateLimitedError)
  })

  it('rejects a call behind others when its own time is over', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ ...MINUTE, burst: 1 })
    await limited.consume('key')
    const patient = [1, 2, 3].map(() => limited.wait('key', { blockingTimeoutSeconds: 30 }))
    const hasty = limited.wait('key', { blockingTimeoutSeconds: 2 }).catch((reason: unknown) => reason)
    await time.run(2_100)
    expect(await hasty).toBeInstanceOf(RateLimitedError)
    await time.run(3_000)
    await Promise.all(patient)
  })

  it('can be aborted, first in the queue or behind others, without delaying the others', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ ...MINUTE, burst: 1 })
    await limited.consume('key')
    const controllers = [new AbortController(), new AbortController(), new AbortController()]
    const waits = controllers.map(({ signal }) => limited.wait('key', { signal }).catch((reason: unknown) => reason))
    await time.run(500)
    controllers[1]?.abort('no longer needed')
    controllers[0]?.abort()
    expect(await waits[0]).toBeInstanceOf(AbortedError)
    expect((await waits[1]) as AbortedError).toMatchObject({ code: 'ABORTED', cause: 'no longer needed' })
    await time.run(600)
    expect(await waits[2]).toMatchObject({ allowed: true })
    await expect(limited.wait('key', { signal: AbortSignal.abort() })).rejects.toBeInstanceOf(AbortedError)
  })

  it('one signal may serve many calls without a warning from Node', async () => {
    const { limiter } = scene()
    const limited = limiter({ ...MINUTE, burst: 1 })
    await limited.consume('key')
    const warnings: Error[] = []
    const hear = (warning: Error): unknown => warnings.push(warning)
    process.on('warning', hear)
    const shutdown = new AbortController()
    const waits = Array.from({ length: 20 }, () =>
      limited.wait('key', { blockingTimeoutSeconds: 60, signal: shutdown.signal }),
    )
    const ends = Promise.allSettled(waits)
    shutdown.abort()
    expect((await ends).every(({ status }) => status === 'rejected')).toBe(true)
    await new Promise((resolve) => setImmediate(resolve))
    process.off('warning', hear)
    expect(warnings).toEqual([])
  })

  it('ends with the limiter', async () => {
    const { limiter, time } = scene()
    const limited = limiter({ ...MINUTE, burst: 1 })
    await limited.consume('key')
    const waits = [1, 2].map(() => limited.wait('key').catch((reason: unknown) => reason))
    await time.run(100)
    await limited.close()
    for (const wait of waits) expect(await wait).toBeInstanceOf(ClosedError)
    await expect(limited.consume('key')).rejects.toBeInstanceOf(ClosedError)
    await expect(limited.wait('key')).rejects.toBeInstanceOf(ClosedError)
  })
})

describe('a local share', () => {
  const HUNDRED = { limit: 100, periodSeconds: 100 }

  it('costs one round trip per block, and takes its units in advance', async () => {
    const { limiter, lists } = scene()
    const shared = limiter(HUNDRED, { localShare: { units: 25, keepSeconds: 10 } })
    const results = []
    for (let call = 0; call < 50; call += 1) results.push(await shared.consume('hot'))
    expect(results.every(({ allowed }) => allowed)).toBe(true)
    expect(results.map(({ remaining }) => remaining)).toEqual(Array.from({ length: 50 }, (_, call) => 99 - call))
    expect(lists.length).toBe(2)
    const other = limiter(HUNDRED)
    expect((await other.consume('hot')).remaining).toBe(49)
  })

  it('fetches one block for calls at the same time', async () => {
    const { limiter, lists } = scene()
    const shared = limiter(HUNDRED, { localShare: { units: 64, keepSeconds: 10 } })
    await Promise.all(Array.from({ length: 64 }, () => shared.consume('hot')))
    expect(lists.map((list) => list.map(({ cost }) => cost))).toEqual([[64]])
  })

  it('never allows more than was taken, and uses the rest to the last unit', async () => {
    const { limiter } = scene()
    const processes = [1, 2, 3, 4].map(() => limiter(HUNDRED, { localShare: { units: 30, keepSeconds: 10 } }))
    let allowed = 0
    for (let call = 0; call < 200; call += 1) {
      const results = await Promise.all(processes.map((each) => each.consume('hot')))
      allowed += results.filter((result) => result.allowed).length
    }
    expect(allowed).toBe(100)
  })

  it.each([10, 15, 30, 50, 64])('of %i hands out all units to calls of different costs', async (units) => {
    const { limiter, lists } = scene()
    const shared = limiter(HUNDRED, { localShare: { units, keepSeconds: 10 } })
    let given = 0
    for (let call = 0; call < 100; call += 1) {
      const cost = call % 2 === 0 ? 1 : 10
      if ((await shared.consume('hot', { cost })).allowed) given += cost
    }
    expect(given).toBe(100)
    // The blocks, one that is refused, and what calls ask for themselves after that.
    expect(lists.length).toBeLessThan(20)
  })

  it('hands out the rest of a block with the next one, but no longer than its own time', async () => {
    const { limiter, time, lists, slow } = scene()
    const slowly = { limit: 100, periodSeconds: 10_000_000 }
    const shared = limiter(slowly, { localShare: { units: 10, keepSeconds: 5 } })
    await shared.consume('hot')
    await time.run(3_000)
    slow.ms = 1_000
    const large = shared.consume('hot', { cost: 10 })
    // It waits for no block: the rest is enough.
    expect((await shared.consume('hot', { cost: 2 })).allowed).toBe(true)
    await time.run(1_000)
    expect((await large).remaining).toBe(100 - 13)
    await time.run(1_000) // the time of the first block, which was used first
    expect((await shared.consume('hot', { cost: 7 })).remaining).toBe(80)
    expect(lists.length).toBe(2)
    slow.ms = 0
    await shared.consume('other')
    await time.run(4_999)
    await shared.consume('other', { cost: 10 })
    await time.run(1)
    await shared.consume('other', { cost: 2 })
    await time.run(4_999)
    // 9 of the first block were used in time, and 3 of the second one. Its other 7 are lost.
    await shared.consume('other', { cost: 1 })
    expect((await limiter(slowly).peek('other')).remaining).toBe(100 - 30)
  })

  it('loses units that are not used in time, at most those of a block', async () => {
    const { limiter, time } = scene()
    const shared = limiter(HUNDRED, { localShare: { units: 30, keepSeconds: 5 } })
    await shared.consume('hot')
    await time.run(5_000)
    await shared.consume('hot')
    expect((await limiter(HUNDRED).peek('hot')).remaining).toBe(100 - 60 + 5)
  })

  it('a round trip that takes longer than forSeconds costs one block, and the call is answered from it', async () => {
    const { limiter, time, lists, slow } = scene()
    slow.ms = 6_000
    const shared = limiter(HUNDRED, { localShare: { units: 30, keepSeconds: 5 }, callTimeoutSeconds: 60 })
    const results = Promise.all([shared.consume('hot'), shared.consume('hot')])
    await time.run(60_000)
    expect((await results).map(({ allowed }) => allowed)).toEqual([true, true])
    expect(lists.length).toBe(1)
  })

  it('each call is answered after at most two round trips, however many others want units', async () => {
    const { limiter, time, lists, slow } = scene()
    slow.ms = 10
    const shared = limiter(HUNDRED, { localShare: { units: 5, keepSeconds: 60 } })
    const results = Promise.all(Array.from({ length: 200 }, () => shared.consume('hot')))
    await time.run(25)
    expect((await results).filter(({ allowed }) => allowed).length).toBe(100)
    expect(lists.length).toBeLessThanOrEqual(2)
  })

  it('a failing store rejects the calls that wait for the block, and the next one asks again', async () => {
    let fails = true
    const inner = memoryDriver()
    const driver: Driver = {
      ...inner,
      consume: async (requests) => {
        if (fails) throw new Error('out of order')
        return (await inner.consume?.(requests)) ?? []
      },
    }
    await using shared = new RateLimiter({ driver, limits: HUNDRED, localShare: { units: 10, keepSeconds: 5 } })
    const results = await Promise.allSettled([shared.consume('hot'), shared.consume('hot')])
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected'])
    fails = false
    expect((await shared.consume('hot')).allowed).toBe(true)
  })
})

describe('bad input is rejected before anything is sent', () => {
  const limit = { limit: 10, periodSeconds: 1, burst: 5 }
  it.each([
    ['options', undefined],
    ['limits', { limits: [] }],
    ['limits', { limits: [limit, limit, limit, limit, limit] }],
    ['limits', { limits: 7 }],
    ['limits[1]', { limits: [limit, null] }],
    ['limits.limit', { limits: { ...limit, limit: 0 } }],
    ['limits.limit', { limits: { ...limit, limit: 1.5 } }],
    ['limits[0].limit', { limits: [{ ...limit, limit: '10' }] }],
    ['limits.periodSeconds', { limits: { ...limit, periodSeconds: 0 } }],
    ['limits.periodSeconds', { limits: { ...limit, periodSeconds: Number.NaN } }],
    ['limits.periodSeconds', { limits: { ...limit, periodSeconds: 1e9 } }],
    ['limits.burst', { limits: { ...limit, burst: 0 } }],
    ['limits.burst', { limits: { limit: 1, periodSeconds: 3_600, burst: 1_000_000 } }],
    ['localShare', { limits: limit, localShare: 5 }],
    ['localShare.units', { limits: limit, localShare: { units: 6, keepSeconds: 1 } }],
    ['localShare.keepSeconds', { limits: limit, localShare: { units: 5, keepSeconds: 0 } }],
    ['url', { limits: limit, url: 'carrier-pigeon:' }],
  ])('%s in the constructor: %o', (argument, options) => {
    expect(() => new RateLimiter(options as unknown as RateLimiterOptions)).toThrow(InvalidArgumentError)
    try {
      new RateLimiter(options as unknown as RateLimiterOptions)
    } catch (error) {
      expect((error as InvalidArgumentError).argument).toBe(argument)
    }
  })

  it.each([
    ['key', '', {}],
    ['key', 'nul\0', {}],
    ['cost', 'key', { cost: 0 }],
    ['cost', 'key', { cost: 6 }],
    ['cost', 'key', { cost: 1.5 }],
    ['blockingTimeoutSeconds', 'key', { blockingTimeoutSeconds: -1 }],
    ['signal', 'key', { signal: 'now' }],
    ['options', 'key', null],
  ])('%s in a call: %o %o', async (argument, key, options) => {
    const { limiter, lists } = scene()
    const error = await limiter(limit)
      .wait(key, options as object)
      .catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(InvalidArgumentError)
    expect((error as InvalidArgumentError).argument).toBe(argument)
    expect(lists).toEqual([])
  })
})
