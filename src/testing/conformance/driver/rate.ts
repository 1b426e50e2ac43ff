import assert from 'node:assert/strict'
import type { Driver, RateAnswer, RateRequest } from '../../../core/driver.ts'
import { consumeOne, unwrap } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { atLeast, monotonicMs, outlast, sleep } from '../timing.ts'
import { HOURLY, isJustBelow, requestOn } from './rate-requests.ts'

/** The rate-limiting step (GCRA) under one limit: a burst at once after a rest, then one unit per period ÷ limit. */
export const rate: Group = (test) => {
  test('a burst is allowed at once, and anything above it is refused', async (context) => {
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

  test('names do not affect each other, and a rate limit does not affect a lock', async (context) => {
    const driver = await context.driver()
    const limit = { ...HOURLY, burst: 1 }
    assert.equal((await consumeOne(driver, requestOn(context.name('a'), limit))).allowed, true)
    assert.equal((await consumeOne(driver, requestOn(context.name('b'), limit))).allowed, true)
    assert.equal((await consumeOne(driver, requestOn(context.name('a'), limit))).allowed, false)
    assert.deepEqual((await driver.inspect({ prefix: context.lockName })).leases, [])
  })

  test('a cost of n counts as n units', async (context) => {
    const driver = await context.driver()
    const limit = { ...HOURLY, burst: 5 }
    const take = (cost: number) => consumeOne(driver, requestOn(context.lockName, limit, cost))
    assert.equal((await take(3)).remaining, 2)
    assert.equal((await take(3)).allowed, false)
    assert.equal((await take(2)).remaining, 0)
  })

  test('a refused request is not charged', async (context) => {
    const driver = await context.driver()
    const limit = { ...HOURLY, burst: 2 }
    const take = (cost: number) => consumeOne(driver, requestOn(context.lockName, limit, cost))
    for (let count = 0; count < 5; count += 1) assert.equal((await take(3)).allowed, false)
    const allowed = await take(2)
    assert.equal(allowed.allowed, true)
    assert.equal(allowed.remaining, 0)
  })

  test('a caller that waits for retryAfter is allowed then, and not earlier', async (context) => {
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

  test('resetAfter says when the whole burst is available again', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { limit: 10, periodMs: 1_000, burst: 3 })
    let answer = await consumeOne(driver, request)
    assert.ok(answer.resetAfterMs > 0 && answer.resetAfterMs <= 101, `${answer.resetAfterMs}`)
    answer = await consumeOne(driver, request)
    assert.ok(answer.resetAfterMs <= 201, `${answer.resetAfterMs}`)
    await outlast(answer.resetAfterMs)
    assert.equal((await consumeOne(driver, request)).remaining, 2)
  })

  test('retryAfter and resetAfter are exact for a long period', async (context) => {
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

  test('fault: no more pass at the edge of a window than burst and elapsed time allow', async (context) => {
    const drivers = [await context.driver(), await context.driver()]
    const limit = { limit: 10, periodMs: 200, burst: 5 }
    const request = requestOn(context.lockName, limit)
    const startedMs = monotonicMs()
    let allowed = 0
    while (monotonicMs() - startedMs < 600) {
      for (const driver of drivers) if ((await consumeOne(driver, request)).allowed) allowed += 1
      await sleep(1) // lets other tests run; the calls are still far above the limit
    }
    const elapsedMs = (monotonicMs() - startedMs) * 1.01 + 2
    const most = limit.burst + Math.ceil((elapsedMs * limit.limit) / limit.periodMs)
    assert.ok(allowed <= most, `${allowed} of at most ${most}`)
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

  test('equal requests on one name in one list are answered as if they came one by one', async (context) => {
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

  test('a list may have many names, with any characters, each with its own answer', async (context) => {
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

  test('a cost of 0 takes nothing', async (context) => {
    const driver = await context.driver()
    const look = requestOn(context.lockName, { ...HOURLY, burst: 2 }, 0)
    const { allowed, remaining, retryAfterMs, resetAfterMs } = await consumeOne(driver, look)
    assert.deepEqual([allowed, remaining, retryAfterMs, resetAfterMs], [true, 2, 0, 0])
    await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))
    for (let looks = 0; looks < 3; looks += 1) assert.equal((await consumeOne(driver, look)).remaining, 1)
    await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))
    assert.equal((await consumeOne(driver, look)).remaining, 0)
  })

  test('a burst can be used to its last unit, also if period ÷ limit is no finite decimal', async (context) => {
    const driver = await context.driver()
    for (const limit of [3, 7, 13]) {
      const request = requestOn(context.name(`${limit}`), { limit, periodMs: 20 * HOURLY.periodMs, burst: limit })
      const seen = []
      for (let count = 0; count <= limit; count += 1) seen.push((await consumeOne(driver, request)).allowed)
      assert.deepEqual(seen, [...new Array(limit).fill(true), false])
    }
  })

  for (const burst of [150, 999]) {
    test(`a burst of ${burst} is exactly that many units, one by one and all at once`, async (context) => {
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

  test('processes that consume at the same time get exactly the burst', async (context) => {
    const drivers = await Promise.all([context.driver(), context.driver(), context.driver()])
    const request = requestOn(context.lockName, { ...HOURLY, burst: 10 })
    const answers = await Promise.all(
      drivers.flatMap((driver) => Array.from({ length: 8 }, () => consumeOne(driver, request))),
    )
    assert.equal(answers.filter(({ allowed }) => allowed).length, 10)
  })
}

async function untilRefused(driver: Driver, request: RateRequest): Promise<RateAnswer> {
  for (;;) {
    const answer = await consumeOne(driver, request)
    if (!answer.allowed) return answer
  }
}
