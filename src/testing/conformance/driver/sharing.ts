import assert from 'node:assert/strict'
import {
  acquireOne,
  leaseOn,
  leasesOn,
  mustGrant,
  mustRefuse,
  newCall,
  releaseOne,
  untilGranted,
  unwrap,
} from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, outlast, SHORT_MS, until } from '../timing.ts'

/** Readers, writers and semaphores are one claim: exclusive or shared, with or without a limit. */
export const sharing: Group = (test) => {
  test('shared leases coexist, across processes', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim({ mode: 'shared' }))
    await mustGrant(a, context.claim({ mode: 'shared' }))
    await mustGrant(b, context.claim({ mode: 'shared' }))
    assert.equal((await leasesOn(b, context.lockName)).length, 3)
  })

  test('an exclusive claim is refused beside a shared lease, and a shared one beside an exclusive', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [reader, writer] = [context.claim({ mode: 'shared' }), context.claim()]
    const { fencingToken } = await mustGrant(a, reader)
    assert.equal((await mustRefuse(b, writer)).holder?.mode, 'shared')
    await releaseOne(a, reader, fencingToken)
    await mustGrant(b, writer)
    assert.equal((await mustRefuse(a, reader)).holder?.mode, 'exclusive')
  })

  test('a writer is admitted when the last reader has released, not before', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [first, second] = [context.claim({ mode: 'shared' }), context.claim({ mode: 'shared' })]
    const grants = [await mustGrant(a, first), await mustGrant(b, second)]
    await releaseOne(a, first, grants[0]?.fencingToken)
    await mustRefuse(a, context.claim())
    await releaseOne(b, second, grants[1]?.fencingToken)
    await mustGrant(a, context.claim())
  })

  for (const permits of [256, 65_536]) {
    test(`${permits} permits are counted exactly`, ['limit'], async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const limit = 3 * permits - 1
      const first = context.claim({ mode: 'shared', limit, permits })
      const { fencingToken } = await mustGrant(a, first)
      await mustGrant(b, context.claim({ mode: 'shared', limit, permits }))
      await mustRefuse(a, context.claim({ mode: 'shared', limit, permits }))
      await mustRefuse(a, context.claim({ mode: 'shared', limit: 2 * permits }))
      await releaseOne(a, first, fencingToken)
      await mustGrant(a, context.claim({ mode: 'shared', limit, permits }))
    })
  }

  test('rule 7: releasing one shared lease leaves the others', async (context) => {
    const driver = await context.driver()
    const [first, second] = [context.claim({ mode: 'shared' }), context.claim({ mode: 'shared' })]
    const grant = await mustGrant(driver, first)
    await mustGrant(driver, second)
    assert.equal(await releaseOne(driver, second, grant.fencingToken), false, 'another lease’s token')
    assert.equal(await releaseOne(driver, first, grant.fencingToken), true)
    assert.equal((await leaseOn(driver, context.lockName)).claimId, second.claimId)
  })

  test('rule 5: a shared claim that asks again in its turn has one lease, and its release ends it', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    for (let round = 0; round < 20; round += 1) {
      const writer = context.claim()
      const reader = context.claim({ mode: 'shared', waiterTtlMs: LONG_MS })
      const { fencingToken } = await untilGranted(a, writer)
      const before = await acquireOne(b, reader)
      assert.ok(!before.granted)
      // Both at once: the store decides which comes first.
      await Promise.all([releaseOne(a, writer, fencingToken), acquireOne(b, reader)])
      const grant = await untilGranted(b, reader)
      assert.equal(await releaseOne(b, reader, grant.fencingToken), true)
      await until('the lock to be free', async () => (await leasesOn(a, context.lockName)).length === 0)
    }
  })

  test('a shared lease expires alone, and the others remain', ['ttl'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const lasting = context.claim({ mode: 'shared' })
    await mustGrant(a, lasting)
    await mustGrant(b, context.claim({ mode: 'shared', ttlMs: SHORT_MS }))
    await outlast(SHORT_MS)
    assert.equal((await leaseOn(b, context.lockName)).claimId, lasting.claimId)
  })

  test(
    'failure 64: permits that have expired and are asked for again count once',
    ['limit', 'ttl'],
    async (context) => {
      const driver = await context.driver()
      const limit = 700
      const claims = Array.from({ length: limit }, () => context.claim({ mode: 'shared', limit }))
      const brief = claims.map((claim) => ({ ...claim, ttlMs: SHORT_MS }))
      assert.ok((await driver.acquire(brief, newCall())).every((answer) => unwrap(answer).granted))
      await outlast(SHORT_MS)
      const again = (await driver.acquire(claims, newCall())).map(unwrap)
      assert.equal(again.filter(({ granted }) => granted).length, limit)
      await mustRefuse(driver, context.claim({ mode: 'shared', limit }))
      await driver.release(claims)
      await mustGrant(driver, context.claim())
    },
  )

  test('a limit of n admits n and refuses the next, across processes', ['limit'], async (context) => {
    const drivers = [await context.driver(), await context.driver()] as const
    const claims = [1, 2, 3].map(() => context.claim({ mode: 'shared', limit: 3 }))
    const grants = [
      await mustGrant(drivers[0], claims[0] as (typeof claims)[0]),
      await mustGrant(drivers[1], claims[1] as (typeof claims)[0]),
      await mustGrant(drivers[0], claims[2] as (typeof claims)[0]),
    ]
    const next = context.claim({ mode: 'shared', limit: 3 })
    await mustRefuse(drivers[1], next)
    await releaseOne(drivers[0], claims[0] as (typeof claims)[0], grants[0]?.fencingToken)
    await mustGrant(drivers[1], next)
  })

  test(
    'a permit that becomes free goes to one waiter, and the next one waits on',
    ['limit', 'queue'],
    async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const permit = (waiterTtlMs = 0) => context.claim({ mode: 'shared', limit: 2, waiterTtlMs })
      const [first, second] = [permit(), permit()]
      const grants = [await mustGrant(a, first), await mustGrant(a, second)]
      const [early, late] = [permit(LONG_MS), permit(LONG_MS)]
      await mustRefuse(b, early)
      await mustRefuse(b, late)
      await releaseOne(a, first, grants[0]?.fencingToken)
      await untilGranted(b, early)
      await mustRefuse(b, late)
      assert.equal((await leasesOn(a, context.lockName)).length, 2)
      await releaseOne(a, second, grants[1]?.fencingToken)
      await untilGranted(b, late)
    },
  )

  test('a claim takes as many permits as it asks for', ['limit'], async (context) => {
    const driver = await context.driver()
    const permits = (count: number) => context.claim({ mode: 'shared', limit: 5, permits: count })
    await mustGrant(driver, permits(3))
    await mustRefuse(driver, permits(3))
    await mustGrant(driver, permits(2))
    await mustRefuse(driver, permits(1))
  })

  test('rule 5: asking again takes no second permit', ['limit'], async (context) => {
    const driver = await context.driver()
    const claim = context.claim({ mode: 'shared', limit: 2 })
    await mustGrant(driver, claim)
    await mustGrant(driver, claim)
    await mustGrant(driver, context.claim({ mode: 'shared', limit: 2 }))
  })

  test('a claim is judged by its own limit, not by the limits of others', ['limit'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    for (let count = 0; count < 3; count += 1) await mustGrant(a, context.claim({ mode: 'shared', limit: 3 }))
    await mustRefuse(b, context.claim({ mode: 'shared', limit: 2 }))
    await mustRefuse(b, context.claim({ mode: 'shared', limit: 3 }))
    await mustGrant(b, context.claim({ mode: 'shared', limit: 4 }))
    await mustGrant(b, context.claim({ mode: 'shared' }))
    await mustRefuse(b, context.claim({ mode: 'shared', limit: 5 }))
  })

  test('fault: a semaphore’s permits are never ended by another caller’s time to live', ['limit'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const lasting = context.claim({ mode: 'shared', limit: 1 })
    await mustGrant(a, lasting)
    const hasty = context.claim({ mode: 'shared', limit: 1, ttlMs: 50 })
    await mustRefuse(b, hasty)
    await outlast(50)
    await mustRefuse(b, hasty)
    assert.equal((await leaseOn(b, context.lockName)).claimId, lasting.claimId)
  })

  test('the permit of a dead holder becomes free again', ['limit'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim({ mode: 'shared', limit: 1, ttlMs: SHORT_MS }))
    await context.leaseEnds(a, SHORT_MS)
    await mustGrant(b, context.claim({ mode: 'shared', limit: 1 }))
  })
}
