import assert from 'node:assert/strict'
import type { Driver, RateLimit, RateRequest } from '../../../core/driver.ts'
import { consumeOne, unwrap } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { outlast, sleep } from '../timing.ts'
import { HOURLY, isJustBelow, requestOn, TEN_AN_HOUR, TWENTY_A_DAY } from './rate-requests.ts'

/** Several limits in one request, and requests on one name with different limits, as in a rolling deploy. */
export const ratePolicies: Group = (test) => {
  test('several limits are charged together or not at all', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { limit: 1, periodMs: 30, burst: 1 }, 1, { ...HOURLY, burst: 4 })
    let allowed = 0
    // The narrow limit refuses most of these; the wide one must not be charged for them.
    for (;;) {
      const answer = await consumeOne(driver, request)
      if (answer.allowed) allowed += 1
      else if (answer.retryAfterMs > 1_000) break
      await sleep(2) // until the narrow limit has room again
    }
    assert.equal(allowed, 4)
  })

  test('of several limits the tightest decides, in any position', async (context) => {
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

  test('the answer says how much of each of several limits is used', async (context) => {
    const driver = await context.driver()
    const request = requestOn(context.lockName, { ...HOURLY, burst: 5 }, 2, { limit: 2, periodMs: 3_600_000, burst: 5 })
    const [first = 0, second = 0] = (await consumeOne(driver, request)).usedMs
    assert.ok(isJustBelow(first, 2 * HOURLY.periodMs), `${first}`)
    assert.ok(isJustBelow(second, HOURLY.periodMs), `${second}`)
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
    test(`failure 56: each limit holds on its own when one name has policies with ${relation}`, async (context) => {
      const driver = await context.driver()
      // A store might remember only the policy that came first.
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

  test('failure 56: a request of cost 0 writes nothing, for any limits', async (context) => {
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

  test('a limit that has run out leaves the other limits as they are', async (context) => {
    const driver = await context.driver()
    const brief = { limit: 1, periodMs: 20, burst: 1 }
    await consumeOne(driver, requestOn(context.lockName, brief, 1, { ...HOURLY, burst: 2 }))
    await outlast(20)
    assert.equal((await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))).remaining, 0)
    assert.equal((await consumeOne(driver, requestOn(context.lockName, brief))).allowed, true)
    assert.equal((await consumeOne(driver, requestOn(context.lockName, { ...HOURLY, burst: 2 }))).allowed, false)
  })
}

const THIRTY_A_DAY = { limit: 30, periodMs: 86_400_000, burst: 30 }
/**
 * A rolling deploy that changes a limit: the changed limit has its own state, and the other limits keep theirs.
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
 * What a store must answer while no unit is given back: each limit counts the requests that were allowed.
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

/** How many of so many equal requests in one list are allowed. */
async function allowedOf(driver: Driver, calls: number, request: RateRequest): Promise<number> {
  const answers = ((await driver.consume?.(Array.from({ length: calls }, () => request))) ?? []).map(unwrap)
  return answers.filter(({ allowed }) => allowed).length
}
