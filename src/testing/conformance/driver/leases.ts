import assert from 'node:assert/strict'
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
} from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, SHORT_MS } from '../timing.ts'

/** acquire, renew and release of one exclusive lease. */
export const leases: Group = (test) => {
  test('a free lock is granted, for the time that was asked for', async (context) => {
    const driver = await context.driver()
    const grant = await mustGrant(driver, context.claim())
    assert.equal(grant.ttlMs, LONG_MS)
    assert.ok(Number.isFinite(grant.acquiredAtMs))
  })

  test('a held lock is refused to another process, and the refusal says who holds it', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    const grant = await mustGrant(a, claim)
    const { holder } = await mustRefuse(b, context.claim())
    assert.equal(holder?.lockName, claim.lockName)
    assert.equal(holder.claimId, claim.claimId)
    assert.equal(holder.holderId, claim.holderId)
    assert.equal(holder.mode, 'exclusive')
    assert.equal(holder.fencingToken, grant.fencingToken)
  })

  test('two claims of one driver exclude each other, even of one holder', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim({ holderId: 'one and the same' }))
    await mustRefuse(driver, context.claim({ holderId: 'one and the same' }))
  })

  test('a lock that was released is granted to the next', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    const { fencingToken } = await mustGrant(a, claim)
    assert.equal(await releaseOne(a, claim, fencingToken), true)
    await mustGrant(b, context.claim())
  })

  test('different lock names do not affect each other', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim())
    await mustGrant(driver, context.claim({ lockName: context.name('other') }))
  })

  test('rule 5: asking again with the same claim returns the same lease and token', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    const first = await mustGrant(driver, claim)
    const second = await mustGrant(driver, claim)
    assert.equal(second.fencingToken, first.fencingToken)
    assert.equal(second.acquiredAtMs, first.acquiredAtMs)
    assert.equal((await leasesOn(driver, claim.lockName)).length, 1)
  })

  test(
    'rule 5: asking again over another connection is also granted, and leaves one lease',
    ['ttl'],
    async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const claim = context.claim()
      const first = await mustGrant(a, claim)
      const second = await mustGrant(b, claim)
      assert.equal((await leaseOn(b, claim.lockName)).fencingToken, second.fencingToken)
      if (second.fencingToken === first.fencingToken) {
        assert.equal(second.acquiredAtMs, first.acquiredAtMs)
        return
      }
      // A driver that cannot know whether the first lease is being released may replace it. Then the first lease has
      // ended, and the second has a higher token.
      assert.ok(second.fencingToken > first.fencingToken)
      assert.equal(await renewOne(a, claim, first.fencingToken, LONG_MS), 'lost')
    },
  )

  test(
    'rule 7: a release with a smaller or larger token answers no and leaves the lease',
    ['fencing'],
    async (context) => {
      const driver = await context.driver()
      const claim = context.claim()
      const { fencingToken } = await mustGrant(driver, claim)
      assert.equal(await releaseOne(driver, claim, fencingToken - 1), false)
      assert.equal(await releaseOne(driver, claim, fencingToken + 1), false)
      assert.equal((await leaseOn(driver, claim.lockName)).claimId, claim.claimId)
    },
  )

  test('rule 7: a release by another claim answers no and leaves the lease, token or not', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [claim, rival] = [context.claim(), context.claim()]
    const { fencingToken } = await mustGrant(a, claim)
    for (const driver of [a, b]) {
      assert.equal(await releaseOne(driver, rival, fencingToken), false)
      assert.equal(await releaseOne(driver, rival), false)
    }
    assert.equal((await leaseOn(b, claim.lockName)).claimId, claim.claimId)
  })

  test('rule 7: a renewal with the wrong token or claim answers lost and moves nothing', async (context) => {
    const driver = await context.driver()
    const [claim, rival] = [context.claim(), context.claim()]
    const { fencingToken } = await mustGrant(driver, claim)
    const before = await leaseOn(driver, claim.lockName)
    if (context.capabilities.fencing) assert.equal(await renewOne(driver, claim, fencingToken + 1, SHORT_MS), 'lost')
    assert.equal(await renewOne(driver, rival, fencingToken, SHORT_MS), 'lost')
    const after = await leaseOn(driver, claim.lockName)
    // A store may derive the end from the remaining time, so two reads may differ by a millisecond.
    const movedMs = (after.expiresAtMs ?? 0) - (before.expiresAtMs ?? 0)
    assert.ok(Math.abs(movedMs) <= 2, `its end moved by ${movedMs} ms`)
    assert.deepEqual({ ...after, expiresAtMs: before.expiresAtMs }, { ...before, expiresAtMs: before.expiresAtMs })
  })

  test('a lease that was released is neither released nor renewed again', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    const { fencingToken } = await mustGrant(driver, claim)
    assert.equal(await releaseOne(driver, claim, fencingToken), true)
    assert.equal(await releaseOne(driver, claim, fencingToken), false)
    assert.equal(await renewOne(driver, claim, fencingToken, LONG_MS), 'lost')
    assert.deepEqual(await leasesOn(driver, claim.lockName), [])
  })

  test('a lease that is held is renewed', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    const { fencingToken } = await mustGrant(driver, claim)
    const renewed = context.capabilities.expiry === 'session' ? 'held' : 'renewed'
    assert.equal(await renewOne(driver, claim, fencingToken, LONG_MS), renewed)
    await mustRefuse(await context.driver(), context.claim())
  })

  test('rule 7, failure 12: releasing an ended lease answers no and leaves a rival’s lease', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [stale, rival] = [context.claim({ ttlMs: SHORT_MS }), context.claim()]
    const { fencingToken } = await mustGrant(a, stale)
    await context.leaseEnds(a, SHORT_MS)
    assert.equal(await releaseOne(a, stale, fencingToken), false, 'no client released it, and it had ended')
    await mustGrant(b, rival)
    const before = await leaseOn(b, rival.lockName)
    assert.equal(await releaseOne(a, stale, fencingToken), false)
    assert.equal(await releaseOne(a, stale), false)
    await assertUntouched(b, before)
  })

  test('rule 7, failure 13: renewing an ended lease answers lost and re-creates nothing', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [stale, rival] = [context.claim({ ttlMs: SHORT_MS }), context.claim()]
    const { fencingToken } = await mustGrant(a, stale)
    await context.leaseEnds(a, SHORT_MS)
    assert.equal(await renewOne(a, stale, fencingToken, LONG_MS), 'lost')
    assert.deepEqual(await leasesOn(b, stale.lockName), [])
    await mustGrant(b, rival)
    const before = await leaseOn(b, rival.lockName)
    assert.equal(await renewOne(a, stale, fencingToken, LONG_MS), 'lost')
    await assertUntouched(b, before)
  })

  test('fault: after an expiry takeover the new holder can release, and the stale one cannot', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [stale, rival] = [context.claim({ ttlMs: SHORT_MS }), context.claim()]
    const old = await mustGrant(a, stale)
    await context.leaseEnds(a, SHORT_MS)
    const { fencingToken } = await mustGrant(b, rival)
    assert.equal(await releaseOne(a, stale, old.fencingToken), false)
    assert.equal(await releaseOne(b, rival, fencingToken), true)
  })

  test('rule 6: a release without a token withdraws a grant whose answer was never seen', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    await acquireOne(a, claim)
    assert.equal(await releaseOne(a, claim), true)
    assert.equal(await releaseOne(a, claim), false)
    await mustGrant(b, context.claim())
  })

  test('a claim that was withdrawn may be made again, and is a new lease', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    const first = await mustGrant(driver, claim)
    await releaseOne(driver, claim)
    const second = await mustGrant(driver, claim)
    if (context.capabilities.fencing) assert.ok(second.fencingToken > first.fencingToken)
    assert.equal((await leasesOn(driver, claim.lockName)).length, 1)
  })

  test('rule 1: grant, refusal and inspect report the same time of acquisition', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const { acquiredAtMs } = await mustGrant(a, context.claim())
    assert.equal((await mustRefuse(b, context.claim())).holder?.acquiredAtMs, acquiredAtMs)
    assert.equal((await leaseOn(b, context.lockName)).acquiredAtMs, acquiredAtMs)
  })

  test('after close every call rejects', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    const { fencingToken } = await mustGrant(driver, claim)
    await driver.close()
    await assert.rejects(driver.acquire([context.claim()], newCall()))
    await assert.rejects(driver.renew([{ ...claim, fencingToken, ttlMs: LONG_MS }]))
    await assert.rejects(driver.release([{ ...claim, fencingToken }]))
    await assert.rejects(driver.inspect({ lockName: claim.lockName }))
  })

  test('closing a driver leaves its leases as they are', ['ttl'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    await mustGrant(a, claim)
    await a.close()
    assert.equal((await mustRefuse(b, context.claim())).holder?.claimId, claim.claimId)
  })
}
