import assert from 'node:assert/strict'
import { consumeOne, unwrap } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { outlast } from '../timing.ts'
import { changeOf, HOURLY, isJustBelow, requestOn, TEN_AN_HOUR, TWENTY_A_DAY } from './rate-requests.ts'

/** `RateRequest.change`: a reset, and a block. */
export const rateChanges: Group = (test) => {
  test('a reset forgets what was taken, for every process', async (context) => {
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

  test('a block refuses every request until it ends, and the answers say when that is', async (context) => {
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

  test('a block leaves what was taken before as it is', async (context) => {
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

  test('a block of an unused name ends, and leaves the name as it was', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, TEN_AN_HOUR, 1, TWENTY_A_DAY)
    const { blockedMs = 0 } = await consumeOne(driver, changeOf(request, { blockMs: 100 }))
    assert.ok(blockedMs > 0 && blockedMs <= 100, `${blockedMs}`)
    await outlast(blockedMs)
    assert.equal((await consumeOne(driver, request)).remaining, 9)
  })

  test('a block is replaced by a longer or shorter one, and ended by 0 or a reset', async (context) => {
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

  test('a reset and a block change the request’s own limits, and no other limits of the name', async (context) => {
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

  test('a reset and a block take effect at their place in the list', async (context) => {
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
