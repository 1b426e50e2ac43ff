import assert from 'node:assert/strict'
import type { Driver } from '../../../core/driver.ts'
import { leaseOn, mustGrant, releaseOne, renewOne, untilGranted } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, outlast, SHORT_MS } from '../timing.ts'

/** Rule 8: tokens rise strictly for a lock name, atomically with the grant. */
export const tokens: Group = (test) => {
  test('rule 8: a token is a positive safe integer, the same in grant and inspect', async (context) => {
    const driver = await context.driver()
    const { fencingToken } = await mustGrant(driver, context.claim())
    assert.ok(Number.isSafeInteger(fencingToken) && fencingToken > 0, `${fencingToken}`)
    assert.equal((await leaseOn(driver, context.lockName)).fencingToken, fencingToken)
  })

  test('rule 8: tokens rise over releases, whichever process is granted', async (context) => {
    const drivers = [await context.driver(), await context.driver()]
    let last = 0
    for (let round = 0; round < 20; round += 1) {
      const driver = drivers[round % 2] as Driver
      const claim = context.claim()
      const { fencingToken } = await mustGrant(driver, claim)
      assert.ok(fencingToken > last, `${fencingToken} after ${last}`)
      last = fencingToken
      await releaseOne(driver, claim, fencingToken)
    }
  })

  test('rule 8: a token is higher after the lease before it ended by itself', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const first = await mustGrant(a, context.claim({ ttlMs: SHORT_MS }))
    await context.leaseEnds(a, SHORT_MS)
    const second = await untilGranted(b, context.claim())
    assert.ok(second.fencingToken > first.fencingToken)
  })

  test('rule 8: a token is higher after an unseen grant was withdrawn', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    const unseen = await mustGrant(a, claim)
    await releaseOne(a, claim)
    const next = await mustGrant(b, context.claim())
    assert.ok(next.fencingToken > unseen.fencingToken)
  })

  test('rule 8: a token is higher after a name was idle for a second', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    const { fencingToken } = await mustGrant(a, claim)
    await releaseOne(a, claim, fencingToken)
    await outlast(1_100) // so that a store has forgotten the idle name
    assert.ok((await mustGrant(b, context.claim())).fencingToken > fencingToken)
  })

  test('a renewal leaves the token as it is', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    const { fencingToken } = await mustGrant(driver, claim)
    await renewOne(driver, claim, fencingToken, LONG_MS)
    assert.equal((await leaseOn(driver, context.lockName)).fencingToken, fencingToken)
  })

  test('rule 8: shared leases of one name have rising tokens of their own', ['shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const first = await mustGrant(a, context.claim({ mode: 'shared' }))
    const second = await mustGrant(b, context.claim({ mode: 'shared' }))
    assert.ok(second.fencingToken > first.fencingToken)
  })

  test('fault: processes that race for a lock hold it in the order of their tokens', async (context) => {
    const drivers = await Promise.all([context.driver(), context.driver(), context.driver()])
    const seen: number[] = []
    const race = async (driver: Driver): Promise<void> => {
      for (let round = 0; round < 10; round += 1) {
        const claim = context.claim()
        const { fencingToken } = await untilGranted(driver, claim)
        // Recorded while the lock is held, so in the order of holding.
        seen.push(fencingToken)
        await releaseOne(driver, claim, fencingToken)
      }
    }
    await Promise.all(drivers.map(race))
    assert.equal(seen.length, 30)
    assert.deepEqual(
      seen,
      [...new Set(seen)].sort((x, y) => x - y),
    )
  })
}
