import assert from 'node:assert/strict'
import type { Claim, Driver } from '../../../core/driver.ts'
import { InvalidArgumentError } from '../../../core/errors.ts'
import { withClientClockAhead } from '../client-clock.ts'
import {
  acquireOne,
  assertUntouched,
  leaseOn,
  leasesOn,
  mustGrant,
  mustRefuse,
  newCall,
  releaseOne,
  renewOne,
  untilGranted,
  unwrap,
} from '../driver-calls.ts'
import type { Need } from '../needs.ts'
import type { Group } from '../runner.ts'
import type { TestContext } from '../test-context.ts'
import { atLeast, LONG_MS, monotonicMs, outlast, SHORT_MS, sleep } from '../timing.ts'

/** Above a minute, and above what a timer of 2^31 ms or a 32-bit number of milliseconds can hold. */
const LONG_TTLS = [
  ['an hour', 3_600_000],
  ['40 days', 40 * 86_400_000],
] as const
/** A TTL that is extended before it ends. */
const FIRST_MS = 1_000
/** How long a test may stall between two steps. */
const STALLED_MS = 60_000

/** The store ends a lease when its time to live is over by the store's own clock. */
export const expiry: Group = (test) => {
  test('fault: a lease ends when its time to live is over, with no tolerance before or after', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const rival = context.claim()
    const sentMs = monotonicMs()
    await mustGrant(a, context.claim({ ttlMs: SHORT_MS }))
    const answeredMs = monotonicMs()
    for (;;) {
      const askedMs = monotonicMs()
      const answer = await acquireOne(b, rival)
      if (answer.granted) break
      // The TTL began before the answer came. A request that is sent later than this must not be refused.
      assert.ok(askedMs - answeredMs <= SHORT_MS * 1.01 + 5, 'the lease outlived its time to live')
      await sleep(2)
    }
    assert.ok(monotonicMs() - sentMs >= atLeast(SHORT_MS), 'the lease ended before its time')
  })

  test('rule 1: the end of a lease is its beginning plus its time to live, on one clock', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim())
    const { acquiredAtMs, expiresAtMs } = await leaseOn(driver, context.lockName)
    assert.ok(expiresAtMs !== undefined)
    assert.ok(Math.abs(expiresAtMs - acquiredAtMs - LONG_MS) <= 5, `${expiresAtMs - acquiredAtMs} ms`)
  })

  for (const mode of ['exclusive', 'shared'] as const) {
    const title = (how: string) =>
      `${mode}: a lease that was ${how} for longer lasts longer, also when rivals have asked`
    const lasts = async (
      context: TestContext,
      longer: (driver: Driver, claim: Claim) => Promise<void>,
    ): Promise<void> => {
      const [a, b] = [await context.driver(), await context.driver()]
      const claim = context.claim({ mode, ttlMs: FIRST_MS })
      await mustGrant(a, claim)
      await mustRefuse(b, context.claim())
      await longer(a, claim)
      await mustRefuse(b, context.claim())
      await outlast(FIRST_MS)
      await mustRefuse(b, context.claim())
    }
    const needs: Need[] = mode === 'shared' ? ['shared'] : []
    test(title('renewed'), needs, (context) =>
      lasts(context, async (driver, claim) => {
        const { fencingToken } = await leaseOn(driver, claim.lockName)
        assert.equal(await renewOne(driver, claim, fencingToken, LONG_MS), 'renewed')
      }),
    )
    test(title('asked for again'), needs, (context) =>
      lasts(context, async (driver, claim) => {
        await mustGrant(driver, { ...claim, ttlMs: LONG_MS })
      }),
    )
  }

  for (const [what, ttlMs] of LONG_TTLS) {
    test(`a lease of ${what} is kept for ${what}, or refused by the driver's own bound`, async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const claim = context.claim({ ttlMs })
      const [answer] = await a.acquire([claim], newCall())
      if (answer instanceof InvalidArgumentError) return
      const { fencingToken } = await mustGrant(a, claim)
      await mustRefuse(b, context.claim())
      const endsIn = async (): Promise<number> => {
        const { acquiredAtMs, expiresAtMs = 0 } = await leaseOn(b, context.lockName)
        return expiresAtMs - acquiredAtMs
      }
      const granted = await endsIn()
      assert.ok(granted >= ttlMs - 5 && granted < ttlMs + STALLED_MS, `${granted} ms`)
      assert.equal(await renewOne(a, claim, fencingToken, LONG_MS), 'renewed')
      assert.equal(await renewOne(a, claim, fencingToken, ttlMs), 'renewed')
      await mustRefuse(b, context.claim())
      const renewed = await endsIn()
      assert.ok(renewed >= ttlMs - 5 && renewed < ttlMs + STALLED_MS, `${renewed} ms`)
    })
  }

  test('rule 1, failure 6: a client whose clock is 11 s ahead ends no other lease', ['ownClock'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim({ ttlMs: 10_000 })
    const { fencingToken } = await mustGrant(a, claim)
    const rivals = [context.claim(), context.claim({ mode: 'shared' }), context.claim({ mode: 'shared', limit: 1 })]
    const { shared, limit } = context.capabilities
    const possible = rivals.filter(
      (rival) => (rival.limit === undefined || limit) && (rival.mode !== 'shared' || shared),
    )
    await withClientClockAhead(11_000, async () => {
      for (const rival of possible) await mustRefuse(b, rival)
    })
    assert.equal(await renewOne(a, claim, fencingToken, LONG_MS), 'renewed')
  })

  test(
    'rule 1, failure 6: a lease taken by a client whose clock is 11 s behind does not end early',
    ['ownClock'],
    async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      await withClientClockAhead(-11_000, () => mustGrant(a, context.claim({ ttlMs: 10_000 })))
      await mustRefuse(b, context.claim())
    },
  )

  test('rule 5: asking again starts the time to live anew', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    await mustGrant(driver, claim)
    const before = await leaseOn(driver, context.lockName)
    await sleep(50) // so that the two ends differ visibly
    await mustGrant(driver, claim)
    const after = await leaseOn(driver, context.lockName)
    assert.ok((after.expiresAtMs ?? 0) - (before.expiresAtMs ?? 0) >= atLeast(40))
    assert.equal(after.acquiredAtMs, before.acquiredAtMs)
  })

  test('rule 5: asking again with a shorter time to live shortens the lease', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    const first = await mustGrant(a, claim)
    const again = await mustGrant(a, { ...claim, ttlMs: SHORT_MS })
    assert.equal(again.fencingToken, first.fencingToken)
    await outlast(SHORT_MS)
    await mustGrant(b, context.claim())
  })

  test('a renewal moves the end later', async (context) => {
    const driver = await context.driver()
    const claim = context.claim({ ttlMs: 10_000 })
    const { fencingToken } = await mustGrant(driver, claim)
    const before = await leaseOn(driver, context.lockName)
    assert.equal(await renewOne(driver, claim, fencingToken, 30_000), 'renewed')
    const after = await leaseOn(driver, context.lockName)
    // The renewal came after the grant, so it moved the end by at least the difference. A stalled test may add 10 s.
    const movedMs = (after.expiresAtMs ?? 0) - (before.expiresAtMs ?? 0)
    assert.ok(movedMs >= atLeast(20_000) && movedMs < 30_000, `${movedMs} ms`)
    assert.deepEqual({ ...after, expiresAtMs: 0 }, { ...before, expiresAtMs: 0 })
  })

  test('a renewal moves the end sooner', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    const { fencingToken } = await mustGrant(a, claim)
    assert.equal(await renewOne(a, claim, fencingToken, SHORT_MS), 'renewed')
    await outlast(SHORT_MS)
    await mustGrant(b, context.claim())
  })

  test('a renewed lease outlives the time to live that it was granted with', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim({ ttlMs: 2_000 })
    const { fencingToken } = await mustGrant(a, claim)
    assert.equal(await renewOne(a, claim, fencingToken, LONG_MS), 'renewed')
    await outlast(2_000)
    await mustRefuse(b, context.claim())
    assert.equal(await releaseOne(a, claim, fencingToken), true)
  })

  test('fault: a rival’s shorter time to live does not end the lease that it asks for', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim())
    const before = await leaseOn(a, context.lockName)
    const rival = context.claim({ ttlMs: 50 })
    await mustRefuse(b, rival)
    await outlast(50)
    await mustRefuse(b, rival)
    await assertUntouched(a, before)
  })

  test('a lease that has expired is no longer shown', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim({ ttlMs: SHORT_MS }))
    await outlast(SHORT_MS)
    assert.deepEqual(await leasesOn(driver, context.lockName), [])
  })

  test('fault: of two processes that race for an expired lease, at most one gets it', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    for (let round = 0; round < 8; round += 1) {
      const lockName = context.name(`${round}`)
      await mustGrant(a, context.claim({ lockName, ttlMs: 50 }))
      await outlast(50)
      const rivals = [context.claim({ lockName }), context.claim({ lockName })] as const
      const answers = await Promise.all([a.acquire([rivals[0]], newCall()), b.acquire([rivals[1]], newCall())])
      const granted = answers
        .flat()
        .map(unwrap)
        .filter((answer) => answer.granted)
      assert.ok(granted.length <= 1, 'both got it')
    }
  })

  test('a claim that asks again after its own lease ran out gets a new one, with a new beginning', async (context) => {
    const driver = await context.driver()
    const claim = context.claim({ ttlMs: SHORT_MS })
    const first = await mustGrant(driver, claim)
    await outlast(SHORT_MS)
    const second = await untilGranted(driver, claim)
    assert.ok(second.acquiredAtMs > first.acquiredAtMs)
    if (context.capabilities.fencing) assert.ok(second.fencingToken > first.fencingToken)
  })
}
