import assert from 'node:assert/strict'
import type { Claim, Driver } from '../../../core/driver.ts'
import { leaseOn, leasesOn, mustGrant, mustRefuse, releaseOne, renewOne, unwrap, waitersOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, until } from '../timing.ts'
import { listenOn } from './wake-ups.ts'

/** A claim with `steal` ends every lease on its name and is granted before all waiters, in one step. */
export const steal: Group = (test) => {
  test('a lock that is held is granted to the thief at once, with a higher token', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, thief] = [context.claim(), context.claim({ steal: true })]
    const held = await mustGrant(a, holder)
    const stolen = await mustGrant(b, thief)
    if (context.capabilities.fencing) assert.ok(stolen.fencingToken > held.fencingToken)
    const lease = await leaseOn(a, context.lockName)
    assert.equal(lease.claimId, thief.claimId)
    assert.equal(lease.holderId, thief.holderId)
    assert.equal(lease.fencingToken, stolen.fencingToken)
  })

  test('a thief with stealUpTo is refused if there is a newer lease', ['fencing'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [older, newer] = [context.claim(), context.claim()]
    const { fencingToken: stealUpTo } = await mustGrant(a, older)
    await releaseOne(a, older, stealUpTo)
    const { fencingToken } = await mustGrant(a, newer)
    await mustRefuse(b, context.claim({ steal: true, stealUpTo, waitMs: LONG_MS }))
    assert.equal(await renewOne(a, newer, fencingToken, LONG_MS), 'renewed')
    if (context.capabilities.queue) assert.deepEqual(await waitersOf(b, context.lockName), [])
    const thief = context.claim({ steal: true, stealUpTo: fencingToken })
    await mustGrant(b, thief)
    assert.equal(await renewOne(a, newer, fencingToken, LONG_MS), 'lost')
  })

  test('one newer shared lease protects all shared leases of the name', ['fencing', 'shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const readers = [context.claim({ mode: 'shared' }), context.claim({ mode: 'shared' })]
    const tokens: number[] = []
    for (const reader of readers) tokens.push((await mustGrant(a, reader)).fencingToken)
    const [first = 0, second = 0] = tokens
    await mustRefuse(b, context.claim({ steal: true, stealUpTo: first }))
    assert.equal((await leasesOn(b, context.lockName)).length, 2)
    const { fencingToken } = await mustGrant(b, context.claim({ steal: true, stealUpTo: second }))
    assert.deepEqual(
      (await leasesOn(b, context.lockName)).map((lease) => lease.fencingToken),
      [fencingToken],
    )
  })

  test('a free lock is granted to a thief as to any claim', async (context) => {
    const driver = await context.driver()
    const thief = context.claim({ steal: true, waitMs: LONG_MS })
    const { fencingToken } = await mustGrant(driver, thief)
    assert.equal(await releaseOne(driver, thief, fencingToken), true)
    assert.deepEqual(await leasesOn(driver, context.lockName), [])
  })

  test('rule 7: the old holder’s renewal and release answer no, and leave the thief’s lease', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, thief] = [context.claim(), context.claim({ steal: true })]
    const held = await mustGrant(a, holder)
    const stolen = await mustGrant(b, thief)
    assert.equal(await renewOne(a, holder, held.fencingToken, LONG_MS), 'lost')
    assert.equal(await releaseOne(a, holder, held.fencingToken), false)
    assert.equal(await releaseOne(a, holder), false)
    assert.equal(await renewOne(b, thief, stolen.fencingToken, LONG_MS), 'renewed')
    assert.equal(await releaseOne(b, thief, stolen.fencingToken), true)
  })

  test('rule 10: waiters keep their places, and are served in turn after the thief', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const thief = context.claim({ steal: true, waitMs: LONG_MS })
    const line = [context.claim({ waitMs: LONG_MS }), context.claim({ waitMs: LONG_MS })]
    await mustGrant(a, context.claim())
    for (const waiter of line) await mustRefuse(b, waiter)
    const stolen = await mustGrant(a, thief)
    assert.deepEqual(await waitersOf(a, context.lockName), idsOf(line))
    for (const waiter of line) await mustRefuse(b, waiter)
    let last = { driver: a, claim: thief, token: stolen.fencingToken }
    for (const waiter of line) {
      await releaseOne(last.driver, last.claim, last.token)
      last = { driver: b, claim: waiter, token: (await mustGrant(b, waiter)).fencingToken }
    }
  })

  test('a lock that is free for its first waiter can be stolen before that waiter asks', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, waiter] = [context.claim(), context.claim({ waitMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, waiter)
    await releaseOne(a, holder, fencingToken)
    const thief = context.claim({ steal: true })
    await mustGrant(a, thief)
    assert.equal((await leaseOn(a, context.lockName)).claimId, thief.claimId)
  })

  for (const mode of ['exclusive', 'shared'] as const) {
    test(
      `rule 10: the first waiter of ${mode} leases is woken by a theft, because the thief’s lease may end sooner`,
      ['queue', 'wake', 'shared', 'ttl'],
      async (context) => {
        const [a, b] = [await context.driver(), await context.driver()]
        const waiter = context.claim({ waitMs: LONG_MS })
        await mustGrant(a, context.claim({ mode }))
        const heard = await listenOn(b)
        const before = await mustRefuse(b, waiter)
        await mustGrant(a, context.claim({ steal: true, ttlMs: LONG_MS / 2 }))
        await until('a wake-up', () => heard.tellsOf(waiter))
        const after = await mustRefuse(b, waiter)
        assert.ok((after.askAgainMs ?? LONG_MS) < (before.askAgainMs ?? 0), JSON.stringify([before, after]))
      },
    )
  }

  test('a theft ends every shared lease', ['shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const readers = [context.claim({ mode: 'shared' }), context.claim({ mode: 'shared' })]
    const tokens: number[] = []
    for (const reader of readers) tokens.push((await mustGrant(a, reader)).fencingToken)
    const thief = context.claim({ steal: true })
    const stolen = await mustGrant(b, thief)
    assert.equal((await leaseOn(a, context.lockName)).claimId, thief.claimId)
    for (const [index, reader] of readers.entries()) {
      assert.equal(await renewOne(a, reader, tokens[index] as number, LONG_MS), 'lost')
      assert.equal(await releaseOne(a, reader, tokens[index]), false)
    }
    await mustRefuse(a, context.claim({ mode: 'shared' }))
    await releaseOne(b, thief, stolen.fencingToken)
    await mustGrant(a, context.claim({ mode: 'shared' }))
    await mustGrant(b, context.claim({ mode: 'shared' }))
  })

  test('rule 5: a thief that asks again gets the same lease, and steals nothing a second time', async (context) => {
    const driver = await context.driver()
    const thief = context.claim({ steal: true })
    await mustGrant(driver, context.claim())
    const first = await mustGrant(driver, thief)
    assert.equal((await mustGrant(driver, thief)).fencingToken, first.fencingToken)
    assert.equal(await releaseOne(driver, thief), true)
    assert.deepEqual(await leasesOn(driver, context.lockName), [])
  })

  test('of two thieves the last one holds the lock', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [first, second] = [context.claim({ steal: true }), context.claim({ steal: true })]
    const lost = await mustGrant(a, first)
    const won = await mustGrant(b, second)
    if (context.capabilities.fencing) assert.ok(won.fencingToken > lost.fencingToken)
    assert.equal(await renewOne(a, first, lost.fencingToken, LONG_MS), 'lost')
    assert.equal((await leaseOn(a, context.lockName)).claimId, second.claimId)
  })

  test('a list of a holder, a waiter and a thief is taken in its order', async (context) => {
    const driver = await context.driver()
    const waitMs = context.capabilities.queue ? LONG_MS : 0
    const [holder, waiter] = [context.claim({ waitMs }), context.claim({ waitMs })]
    const [thief, other] = [context.claim({ steal: true, waitMs }), context.claim({ lockName: context.name('other') })]
    const answers = (await driver.acquire([holder, waiter, thief, other])).map(unwrap)
    assert.deepEqual(
      answers.map(({ granted }) => granted),
      [true, false, true, true],
    )
    const [held] = answers
    assert.ok(held?.granted)
    assert.equal(await renewOne(driver, holder, held.fencingToken, LONG_MS), 'lost')
    assert.equal((await leaseOn(driver, context.lockName)).claimId, thief.claimId)
    if (context.capabilities.queue) assert.deepEqual(await waitersOf(driver, context.lockName), [waiter.claimId])
  })

  test('the thief’s metadata is stored', ['metadata'], async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim({ metadata: { of: 'the holder' } }))
    await mustGrant(driver, context.claim({ steal: true, metadata: { by: 'an operator' } }))
    assert.deepEqual((await leaseOn(driver, context.lockName)).metadata, { by: 'an operator' })
  })
}

const waitersOf = async (driver: Driver, lockName: string): Promise<string[]> =>
  idsOf(await waitersOn(driver, lockName))

const idsOf = (claims: readonly Pick<Claim, 'claimId'>[]): string[] => claims.map(({ claimId }) => claimId)
