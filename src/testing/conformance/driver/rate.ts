import assert from 'node:assert/strict'
import type { Driver, RateAnswer, RateChange, RateLimit, RateRequest } from '../../../core/driver.ts'
import { consumeOne, unwrap } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { atLeast, monotonicMs, outlast, sleep } from '../timing.ts'

/** The rate-limiting step (GCRA): a burst at once after a rest, and then one for each period ÷ limit. */
export const rate: Group = (test) => {
  test('a burst is allowed at once, and what is over is refused', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const request = requestOn(context.lockName, { ...HOURLY, burst: 3 })
    const answers = [await consumeOne(a, request), await consumeOne(b, request), await consumeOne(a, request)]
    assert.deepEqual(
      answers.map(({ allowed, remaining, retryAfterMs }) => ({ allowed, remaining, retryAfterMs })),
      [2, 1, 0].map((remaining) => ({ allowed: true, remaining, retryAfterMs: 0 })),
    )
    const refused = await consumeOne(b, request)
    assert.equal(refused.allowed, false)
    assert.equal(refused.remaining, 0)
  })

  test('names do not touch each other, and a rate does not touch a lock', async (context) => {
    const driver = await context.driver()
    const limit = { ...HOURLY, burst: 1 }
    assert.equal((await consumeOne(driver, requestOn(context.name('a'), limit))).allowed, true)
    assert.equal((await consumeOne(driver, requestOn(context.name('b'), limit))).allowed, true)
    assert.equal((await consumeOne(driver, requestOn(context.name('a'), limit))).allowed, false)
    assert.deepEqual((await driver.inspect({ prefix: context.lockName })).leases, [])
  })

  test('a cost counts as so many', async (context) => {
    const driver = await context.driver()
    const limit = { ...HOURLY, burst: 5 }
    const take = (cost: number) => consumeOne(driver, requestOn(context.lockName, limit, cost))
    assert.equal((await take(3)).remaining, 2)
    assert.equal((await take(3)).allowed, false)
    assert.equal((await take(2)).remaining, 0)
  })

  test('what is refused is not charged', async (context) => {
    const driver = await context.driver()
    const limit = { ...HOURLY, burst: 2 }
    const take = (cost: number) => consumeOne(driver, requestOn(context.lockName, limit, cost))
    for (let count = 0; count < 5; count += 1) assert.equal((await take(3)).allowed, false)
    const allowed = await take(2)
    assert.equal(allowed.allowed, true)
    assert.equal(allowed.remaining, 0)
  })

  test('who waits as long as retryAfter says is allowed then, and nobody is earlier', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { limit: 4, periodMs: 1_000, burst: 1 })
    const startedMs = monotonicMs()
    assert.equal((await consumeOne(driver, request)).allowed, true)
    const refused = await untilRefused(driver, request)
    assert.ok(refused.retryAfterMs > 0 && refused.retryAfterMs <= 250, `${refused.retryAfterMs}`)
    await outlast(refused.retryAfterMs)
    assert.equal((await consumeOne(driver, request)).allowed, true)
    assert.ok(monotonicMs() - startedMs >= atLeast(250))
  })

  test('reset says when everything is as if nothing had been taken', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { limit: 10, periodMs: 1_000, burst: 3 })
    let answer = await consumeOne(driver, request)
    assert.ok(answer.resetAfterMs > 0 && answer.resetAfterMs <= 101, `${answer.resetAfterMs}`)
    answer = await consumeOne(driver, request)
    assert.ok(answer.resetAfterMs <= 201, `${answer.resetAfterMs}`)
    await outlast(answer.resetAfterMs)
    assert.equal((await consumeOne(driver, request)).remaining, 2)
  })

  test('retryAfter and reset are measured in the period’s own units, however long it is', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { ...HOURLY, burst: 2 })
    const first = await consumeOne(driver, request)
    assert.ok(isJustBelow(first.resetAfterMs, HOURLY.periodMs), `${first.resetAfterMs}`)
    const second = await consumeOne(driver, request)
    assert.ok(isJustBelow(second.resetAfterMs, 2 * HOURLY.periodMs), `${second.resetAfterMs}`)
    const refused = await consumeOne(driver, request)
    assert.ok(isJustBelow(refused.retryAfterMs, HOURLY.periodMs), `${refused.retryAfterMs}`)
    assert.ok(isJustBelow(refused.resetAfterMs, 2 * HOURLY.periodMs), `${refused.resetAfterMs}`)
  })

  test('fault: a period below one second ends', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { limit: 2, periodMs: 100, burst: 2 })
    for (let round = 0; round < 3; round += 1) {
      assert.equal((await consumeOne(driver, request)).remaining, 1, 'a full burst after a rest')
      await outlast(100)
    }
  })

  test('fault: at no edge of a window passes more than burst and time allow', async (context) => {
    const drivers = [await context.driver(), await context.driver()]
    const limit = { limit: 10, periodMs: 200, burst: 5 }
    const request = requestOn(context.lockName, limit)
    const startedMs = monotonicMs()
    let allowed = 0
    while (monotonicMs() - startedMs < 600) {
      for (const driver of drivers) if ((await consumeOne(driver, request)).allowed) allowed += 1
      await sleep(1) // lets other tests run; the rate is far above the limit all the same
    }
    const elapsedMs = (monotonicMs() - startedMs) * 1.01 + 2
    const most = limit.burst + Math.ceil((elapsedMs * limit.limit) / limit.periodMs)
    assert.ok(allowed <= most, `${allowed} of at most ${most}`)
  })

  test('several limits are charged together or not at all', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { limit: 1, periodMs: 30, burst: 1 }, 1, { ...HOURLY, burst: 4 })
    let allowed = 0
    // The narrow limit refuses most of these; the wide one must not be charged for them.
    for (;;) {
      const answer = await consumeOne(driver, request)
      if (answer.allowed) allowed += 1
      else if (answer.retryAfterMs > 1_000) break
      await sleep(2) // for the narrow limit to come free again
    }
    assert.equal(allowed, 4)
  })

  test('of several limits the tightest decides, wherever it stands', async (context) => {
    const driver = await context.driver()
    const [wide, tight] = [
      { ...HOURLY, burst: 10 },
      { ...HOURLY, burst: 2 },
    ]
    for (const [name, ...limits] of [
      ['tight last', wide, tight],
      ['tight first', tight, wide],
    ] as const) {
      const request = { name: context.name(name), cost: 1, limits }
      assert.equal((await consumeOne(driver, request)).remaining, 1)
      assert.equal((await consumeOne(driver, request)).remaining, 0)
      assert.equal((await consumeOne(driver, request)).allowed, false)
    }
  })

  test('requests on one name in one list are taken in their order', async (context) => {
    const driver = await context.driver()
    const take = (cost: number) => requestOn(context.lockName, { ...HOURLY, burst: 3 }, cost)
    const answers = ((await driver.consume?.([take(2), take(2), take(1)])) ?? []).map(unwrap)
    assert.deepEqual(
      answers.map(({ allowed }) => allowed),
      [true, false, true],
    )
  })

  test('requests that are alike, in one list and on one name, are each answered as if they came one by one', async (context) => {
    const driver = await context.driver()
    const one = requestOn(context.lockName, { ...HOURLY, burst: 3 })
    const answers = ((await driver.consume?.([one, one, one, one, one])) ?? []).map(unwrap)
    assert.deepEqual(
      answers.map(({ allowed, remaining }) => [allowed, remaining]),
      [true, true, true, false, false].map((allowed, index) => [allowed, Math.max(0, 2 - index)]),
    )
    for (const [index, { resetAfterMs }] of answers.entries()) {
      assert.ok(isJustBelow(resetAfterMs, Math.min(index + 1, 3) * HOURLY.periodMs), `${index}: ${resetAfterMs}`)
    }
    for (const { allowed, retryAfterMs } of answers) assert.equal(retryAfterMs > 0, !allowed)
    assert.equal((await consumeOne(driver, one)).allowed, false)
  })

  test('a list may have many names, whatever they are made of, each with its own answer', async (context) => {
    const driver = await context.driver()
    const names = ['b', 'a', '\u{1f600}', '\uffee', '"{}', 'a,b', "it's \\"].map((name) => context.name(name))
    const once = [{ ...HOURLY, burst: 1 }]
    const ask = async () => {
      const requests = names.map((name, index) => ({ name, cost: index === 1 ? 0 : 1, limits: once }))
      return ((await driver.consume?.(requests)) ?? []).map(unwrap)
    }
    assert.deepEqual(
      (await ask()).map(({ allowed, remaining }) => [allowed, remaining]),
      names.map((_, index) => [true, index === 1 ? 1 : 0]),
    )
    assert.deepEqual(
      (await ask()).map(({ allowed }) => allowed),
      names.map((_, index) => index === 1),
    )
  })

  test('a cost of nothing only looks', async (context) => {
    const driver = await context.driver()
    const look = requestOn(context.lockName, { ...HOURLY, burst: 2 }, 0)
    const { allowed, remaining, retryAfterMs, resetAfterMs } = await consumeOne(driver, look)
    assert.deepEqual([allowed, remaining, retryAfterMs, resetAfterMs], [true, 2, 0, 0])
    await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))
    for (let looks = 0; looks < 3; looks += 1) assert.equal((await consumeOne(driver, look)).remaining, 1)
    await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))
    assert.equal((await consumeOne(driver, look)).remaining, 0)
  })

  test('a burst can be had to its last unit, also where period ÷ limit has no end of decimals', async (context) => {
    const driver = await context.driver()
    for (const limit of [3, 7, 13]) {
      const request = requestOn(context.name(`${limit}`), { limit, periodMs: 20 * HOURLY.periodMs, burst: limit })
      const seen = []
      for (let count = 0; count <= limit; count += 1) seen.push((await consumeOne(driver, request)).allowed)
      assert.deepEqual(seen, [...new Array(limit).fill(true), false])
    }
  })

  test('each of several limits says when it will be as if nothing had been taken', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { ...HOURLY, burst: 5 }, 2, { limit: 2, periodMs: 3_600_000, burst: 5 })
    const [first = 0, second = 0] = (await consumeOne(driver, request)).usedMs
    assert.ok(isJustBelow(first, 2 * HOURLY.periodMs), `${first}`)
    assert.ok(isJustBelow(second, HOURLY.periodMs), `${second}`)
  })

  for (const burst of [150, 999]) {
    test(`a burst of ${burst} is so many units, not one more or less, by ones and at once`, async (context) => {
      const driver = await context.driver()
      assert.ok(driver.consume)
      const limit = { ...HOURLY, burst }
      const ones = await driver.consume(Array.from({ length: burst + 1 }, () => requestOn(context.lockName, limit)))
      assert.equal(ones.filter((answer) => unwrap(answer).allowed).length, burst)
      const atOnce = context.name('at once')
      assert.equal((await consumeOne(driver, requestOn(atOnce, limit, burst))).allowed, true)
      assert.equal((await consumeOne(driver, requestOn(atOnce, limit))).allowed, false)
    })
  }

  test('processes that consume at once get no more than there is, and no less', async (context) => {
    const drivers = await Promise.all([context.driver(), context.driver(), context.driver()])
    const request = requestOn(context.lockName, { ...HOURLY, burst: 10 })
    const answers = await Promise.all(
      drivers.flatMap((driver) => Array.from({ length: 8 }, () => consumeOne(driver, request))),
    )
    assert.equal(answers.filter(({ allowed }) => allowed).length, 10)
  })

  test('failure 56: 10 per hour beside 10 per hour and 20 per day allows 10 of 60 calls', async (context) => {
    const [old, fresh] = [await context.driver(), await context.driver()]
    let allowed = 0
    for (let round = 0; round < 10; round += 1) {
      allowed += await allowedOf(old, 3, { name: context.lockName, cost: 1, limits: [TEN_AN_HOUR] })
      allowed += await allowedOf(fresh, 3, { name: context.lockName, cost: 1, limits: [TEN_AN_HOUR, TWENTY_A_DAY] })
    }
    assert.equal(allowed, 10)
  })

  test('failure 56: calls without the daily limit do not reset it: 20 per day allows 20 of 90', async (context) => {
    const driver = await context.driver()
    const often = { limit: 1_000, periodMs: 3_600_000, burst: 1_000 }
    let allowed = 0
    for (let round = 0; round < 18; round += 1) {
      allowed += await allowedOf(driver, 5, requestOn(context.lockName, often, 1, TWENTY_A_DAY))
      assert.equal((await consumeOne(driver, requestOn(context.lockName, often))).allowed, true)
    }
    assert.equal(allowed, 20)
  })

  for (const [relation, policies] of Object.entries(MIXED_POLICIES)) {
    test(`failure 56: each limit holds by itself when one name has policies with ${relation}`, async (context) => {
      const driver = await context.driver()
      // The policy that comes first may be the one that a store remembers.
      for (const [round, order] of [policies, policies.toReversed()].entries()) {
        const name = context.name(`${round}`)
        const left = countdown()
        for (let call = 0; call < 45; call += 1) {
          const limits = order[call % order.length] as readonly RateLimit[]
          const { allowed, remaining } = await consumeOne(driver, { name, cost: 1, limits })
          assert.deepEqual([allowed, remaining], left.take(limits), `call ${call} of round ${round}`)
        }
      }
    })
  }

  test('failure 56: requests of one list on one name may have different limits', async (context) => {
    const driver = await context.driver()
    const left = countdown()
    const requests = Array.from({ length: 60 }, (_, call) => ({
      name: context.lockName,
      cost: call % 5 === 4 ? 0 : 1,
      limits: CHANGED_LIMITS[call % CHANGED_LIMITS.length] as readonly RateLimit[],
    }))
    const answers = ((await driver.consume?.(requests)) ?? []).map(unwrap)
    assert.deepEqual(
      answers.map(({ allowed, remaining }) => [allowed, remaining]),
      requests.map(({ limits, cost }) => left.take(limits, cost)),
    )
  })

  test('failure 56: a look writes nothing, whichever limits it looks at', async (context) => {
    const driver = await context.driver()
    const ask = (cost: number, ...limits: RateLimit[]) => consumeOne(driver, { name: context.lockName, cost, limits })
    const look = async (): Promise<number[]> => {
      const all = [[TEN_AN_HOUR], [TWENTY_A_DAY], [TWENTY_A_DAY, TEN_AN_HOUR], [{ ...TEN_AN_HOUR, burst: 3 }]]
      const answers = []
      for (const limits of all) answers.push((await ask(0, ...limits)).remaining)
      return answers
    }
    assert.deepEqual(await look(), [10, 20, 10, 3])
    for (let call = 0; call < 10; call += 1) assert.equal((await ask(1, TEN_AN_HOUR, TWENTY_A_DAY)).allowed, true)
    for (let looks = 0; looks < 3; looks += 1) assert.deepEqual(await look(), [0, 10, 0, 3])
    assert.equal((await ask(1, TEN_AN_HOUR)).allowed, false)
    assert.equal((await ask(1, TWENTY_A_DAY)).remaining, 9)
    assert.equal((await ask(1, { ...TEN_AN_HOUR, burst: 3 })).remaining, 2)
  })

  test('a limit that a request names twice is charged once', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, TEN_AN_HOUR, 1, TEN_AN_HOUR)
    for (let call = 1; call <= 10; call += 1) assert.equal((await consumeOne(driver, request)).remaining, 10 - call)
    const { allowed, usedMs } = await consumeOne(driver, request)
    assert.equal(allowed, false)
    assert.equal(usedMs.length, 2)
  })

  test('an entry of a limit that has run out leaves the others as they are', async (context) => {
    const driver = await context.driver()
    const brief = { limit: 1, periodMs: 20, burst: 1 }
    await consumeOne(driver, requestOn(context.lockName, brief, 1, { ...HOURLY, burst: 2 }))
    await outlast(20)
    assert.equal((await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))).remaining, 0)
    assert.equal((await consumeOne(driver, requestOn(context.lockName, brief))).allowed, true)
    assert.equal((await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))).allowed, false)
  })

  test('a reset forgets what was taken, for everybody', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    for (const limits of [[{ ...HOURLY, burst: 2 }], [{ ...HOURLY, burst: 2 }, TWENTY_A_DAY]]) {
      const request = { name: context.name(`${limits.length}`), cost: 2, limits }
      assert.equal((await consumeOne(a, request)).allowed, true)
      assert.equal((await consumeOne(b, request)).allowed, false)
      const { remaining, resetAfterMs, usedMs, blockedMs } = await consumeOne(b, changeOf(request, 'reset'))
      assert.deepEqual([remaining, resetAfterMs, usedMs, blockedMs], [2, 0, limits.map(() => 0), undefined])
      assert.equal((await consumeOne(a, request)).allowed, true)
      assert.equal((await consumeOne(b, request)).allowed, false)
    }
    const untouched = requestOn(context.name('never used'), TEN_AN_HOUR)
    assert.equal((await consumeOne(a, changeOf(untouched, 'reset'))).remaining, 10)
  })

  test('a block refuses everything for its time, whatever is left, and says when it ends', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    for (const limits of [[TEN_AN_HOUR], [TEN_AN_HOUR, TWENTY_A_DAY]]) {
      const request = { name: context.name(`${limits.length}`), cost: 1, limits }
      assert.equal((await consumeOne(a, request)).remaining, 9)
      const block = await consumeOne(b, changeOf(request, { blockMs: 3_600_000 }))
      assert.ok(isJustBelow(block.blockedMs ?? 0, 3_600_000), JSON.stringify(block))
      const refused = await consumeOne(a, request)
      assert.deepEqual([refused.allowed, refused.remaining], [false, 0])
      for (const ms of [refused.retryAfterMs, refused.blockedMs ?? 0]) {
        assert.ok(isJustBelow(ms, 3_600_000), JSON.stringify(refused))
      }
      assert.ok(refused.resetAfterMs >= refused.retryAfterMs, JSON.stringify(refused))
      const looked = await consumeOne(b, { ...request, cost: 0 })
      assert.equal(looked.remaining, 0)
      assert.ok(isJustBelow(looked.blockedMs ?? 0, 3_600_000), JSON.stringify(looked))
    }
  })

  test('a block changes nothing of what was taken before, and forgets nothing', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { ...HOURLY, burst: 3 }, 2)
    assert.equal((await consumeOne(driver, request)).remaining, 1)
    await consumeOne(driver, changeOf(request, { blockMs: 100 }))
    assert.equal((await consumeOne(driver, request)).allowed, false)
    await outlast(100)
    const { allowed, remaining, blockedMs } = await consumeOne(driver, request)
    assert.deepEqual([allowed, remaining, blockedMs], [false, 1, undefined])
    assert.equal((await consumeOne(driver, { ...request, cost: 1 })).remaining, 0)
  })

  test('a block of a name that was never used ends, and then leaves it as it was', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, TEN_AN_HOUR, 1, TWENTY_A_DAY)
    const { blockedMs = 0 } = await consumeOne(driver, changeOf(request, { blockMs: 100 }))
    assert.ok(blockedMs > 0 && blockedMs <= 100, `${blockedMs}`)
    await outlast(blockedMs)
    assert.equal((await consumeOne(driver, request)).remaining, 9)
  })

  test('a block is replaced by another, sooner or later, and ended by 0 or a reset', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, TEN_AN_HOUR)
    await consumeOne(driver, request)
    const block = (blockMs: number) => consumeOne(driver, changeOf(request, { blockMs }))
    for (const blockMs of [600_000, 3_600_000, 600_000]) {
      assert.ok(isJustBelow((await block(blockMs)).blockedMs ?? 0, blockMs))
      assert.ok(isJustBelow((await consumeOne(driver, request)).retryAfterMs, blockMs))
    }
    assert.equal((await block(0)).blockedMs, undefined)
    assert.equal((await consumeOne(driver, request)).remaining, 8)
    await block(600_000)
    assert.equal((await consumeOne(driver, changeOf(request, 'reset'))).remaining, 10)
    assert.equal((await consumeOne(driver, request)).remaining, 9)
  })

  test('a reset and a block change the request’s own limits, and no others of the name', async (context) => {
    const driver = await context.driver()
    const [hourly, daily] = [requestOn(context.lockName, TEN_AN_HOUR), requestOn(context.lockName, TWENTY_A_DAY)]
    const both = requestOn(context.lockName, TWENTY_A_DAY, 1, TEN_AN_HOUR)
    await consumeOne(driver, both)
    await consumeOne(driver, changeOf(hourly, 'reset'))
    assert.equal((await consumeOne(driver, hourly)).remaining, 9)
    assert.equal((await consumeOne(driver, daily)).remaining, 18)
    await consumeOne(driver, changeOf(hourly, { blockMs: 3_600_000 }))
    assert.equal((await consumeOne(driver, daily)).remaining, 17)
    const refused = await consumeOne(driver, both)
    assert.ok(!refused.allowed && isJustBelow(refused.retryAfterMs, 3_600_000), 'one of its limits is blocked')
    assert.equal((await consumeOne(driver, daily)).remaining, 16)
    await consumeOne(driver, changeOf(daily, 'reset'))
    assert.equal((await consumeOne(driver, daily)).remaining, 19)
    assert.equal((await consumeOne(driver, hourly)).allowed, false)
  })

  test('a reset and a block in a list come after what stands before them, and before what stands behind', async (context) => {
    const driver = await context.driver()
    const one = requestOn(context.lockName, { ...HOURLY, burst: 1 })
    const block = changeOf(one, { blockMs: 3_600_000 })
    const reset = changeOf(one, 'reset')
    const other = requestOn(context.name('other'), { ...HOURLY, burst: 1 })
    const list = [one, one, reset, other, one, reset, block, one, reset, one]
    const answers = ((await driver.consume?.(list)) ?? []).map(unwrap)
    assert.deepEqual(
      answers.map(({ allowed }, at) => list[at]?.change !== undefined || allowed),
      [true, false, true, true, true, true, true, false, true, true],
    )
  })
}

/** One an hour: nothing comes back while a test runs, however slow the machine is. */
const HOURLY = { limit: 1, periodMs: 3_600_000 }

const TEN_AN_HOUR = { limit: 10, periodMs: 3_600_000, burst: 10 }
const TWENTY_A_DAY = { limit: 20, periodMs: 86_400_000, burst: 20 }
const THIRTY_A_DAY = { limit: 30, periodMs: 86_400_000, burst: 30 }
/**
 * A rolling deploy that changes a limit: the new one has a state of its own, and the other limits go on as they were.
 */
const CHANGED_LIMITS = [
  [TWENTY_A_DAY, TEN_AN_HOUR],
  [TEN_AN_HOUR, THIRTY_A_DAY],
  [{ ...TEN_AN_HOUR, burst: 9 }, TWENTY_A_DAY],
]

const MIXED_POLICIES: Readonly<Record<string, readonly (readonly RateLimit[])[]>> = {
  'some of the other’s limits': [[TWENTY_A_DAY], [TEN_AN_HOUR, TWENTY_A_DAY]],
  'the same limits in another order': [
    [TEN_AN_HOUR, TWENTY_A_DAY],
    [TWENTY_A_DAY, TEN_AN_HOUR],
  ],
  'other limits': [[TEN_AN_HOUR], [TWENTY_A_DAY]],
  'a changed limit': CHANGED_LIMITS,
}

/**
 * What a store must answer as long as nothing comes back: each limit counts the calls that it allowed together with
 * others.
 */
function countdown() {
  const left = new Map<string, number>()
  const idOf = (limit: RateLimit): string => JSON.stringify([limit.limit, limit.periodMs, limit.burst])
  const leftOf = (limits: readonly RateLimit[]): number =>
    Math.min(...limits.map((limit) => left.get(idOf(limit)) ?? limit.burst))
  return {
    take(limits: readonly RateLimit[], cost = 1): [allowed: boolean, remaining: number] {
      const allowed = leftOf(limits) >= cost
      const charged = allowed ? cost : 0
      for (const limit of limits) left.set(idOf(limit), (left.get(idOf(limit)) ?? limit.burst) - charged)
      return [allowed, leftOf(limits)]
    },
  }
}

const requestOn = (name: string, limit: RateLimit, cost = 1, ...more: RateLimit[]): RateRequest => ({
  name,
  cost,
  limits: [limit, ...more],
})

const changeOf = ({ name, limits }: RateRequest, change: RateChange): RateRequest => ({ name, cost: 0, limits, change })

/** So many calls in one list. */
async function allowedOf(driver: Driver, calls: number, request: RateRequest): Promise<number> {
  const answers = ((await driver.consume?.(Array.from({ length: calls }, () => request))) ?? []).map(unwrap)
  return answers.filter(({ allowed }) => allowed).length
}

async function untilRefused(driver: Driver, request: RateRequest): Promise<RateAnswer> {
  for (;;) {
    const answer = await consumeOne(driver, request)
    if (!answer.allowed) return answer
  }
}

/** At most a minute of the test's own time has passed. */
const isJustBelow = (ms: number, boundMs: number): boolean => ms <= boundMs + 1 && ms > boundMs - 60_000
