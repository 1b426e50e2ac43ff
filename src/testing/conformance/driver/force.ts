import assert from 'node:assert/strict'
import type { Claim, Driver } from '../../../core/driver.ts'
import {
  leaseOn,
  leasesOn,
  mustGrant,
  mustRefuse,
  newCall,
  releaseOne,
  renewOne,
  unwrap,
  waitersOn,
} from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, until } from '../timing.ts'
import { listenOn } from './wake-ups.ts'

/** A claim with `forceUpTo` ends the leases on its name and is granted before all waiters, in one step. */
export const force: Group = (test) => {
  test('a lock that is held is granted at once to a claim with force, with a higher token', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, taker] = [context.claim(), context.claim({ forceUpTo: ANY })]
    const held = await mustGrant(a, holder)
    const taken = await mustGrant(b, taker)
    if (context.capabilities.fencing) assert.ok(taken.fencingToken > held.fencingToken)
    const lease = await leaseOn(a, context.lockName)
    assert.equal(lease.claimId, taker.claimId)
    assert.equal(lease.holderId, taker.holderId)
    assert.equal(lease.fencingToken, taken.fencingToken)
  })

  test('a claim with forceUpTo is refused if there is a newer lease', ['fencing'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [older, newer] = [context.claim(), context.claim()]
    const { fencingToken: forceUpTo } = await mustGrant(a, older)
    await releaseOne(a, older, forceUpTo)
    const { fencingToken } = await mustGrant(a, newer)
    await mustRefuse(b, context.claim({ forceUpTo, waiterTtlMs: LONG_MS }))
    assert.equal(await renewOne(a, newer, fencingToken, LONG_MS), 'renewed')
    if (context.capabilities.queue) assert.deepEqual(await waitersOf(b, context.lockName), [])
    const taker = context.claim({ forceUpTo: fencingToken })
    await mustGrant(b, taker)
    assert.equal(await renewOne(a, newer, fencingToken, LONG_MS), 'lost')
  })

  test('one newer shared lease protects all shared leases of the name', ['fencing', 'shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const readers = [context.claim({ mode: 'shared' }), context.claim({ mode: 'shared' })]
    const tokens: number[] = []
    for (const reader of readers) tokens.push((await mustGrant(a, reader)).fencingToken)
    const [first = 0, second = 0] = tokens
    await mustRefuse(b, context.claim({ forceUpTo: first }))
    assert.equal((await leasesOn(b, context.lockName)).length, 2)
    const { fencingToken } = await mustGrant(b, context.claim({ forceUpTo: second }))
    assert.deepEqual(
      (await leasesOn(b, context.lockName)).map((lease) => lease.fencingToken),
      [fencingToken],
    )
  })

  test('a free lock is granted to a claim with force as to any claim', async (context) => {
    const driver = await context.driver()
    const taker = context.claim({ forceUpTo: ANY, waiterTtlMs: LONG_MS })
    const { fencingToken } = await mustGrant(driver, taker)
    assert.equal(await releaseOne(driver, taker, fencingToken), true)
    assert.deepEqual(await leasesOn(driver, context.lockName), [])
  })

  test('rule 7: the old holder’s renewal and release answer no, and leave the new holder’s lease', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, taker] = [context.claim(), context.claim({ forceUpTo: ANY })]
    const held = await mustGrant(a, holder)
    const taken = await mustGrant(b, taker)
    assert.equal(await renewOne(a, holder, held.fencingToken, LONG_MS), 'lost')
    assert.equal(await releaseOne(a, holder, held.fencingToken), false)
    assert.equal(await releaseOne(a, holder), false)
    assert.equal(await renewOne(b, taker, taken.fencingToken, LONG_MS), 'renewed')
    assert.equal(await releaseOne(b, taker, taken.fencingToken), true)
  })

  test(
    'rule 10: waiters keep their places, and are served in turn after the new holder',
    ['queue'],
    async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const taker = context.claim({ forceUpTo: ANY, waiterTtlMs: LONG_MS })
      const line = [context.claim({ waiterTtlMs: LONG_MS }), context.claim({ waiterTtlMs: LONG_MS })]
      await mustGrant(a, context.claim())
      for (const waiter of line) await mustRefuse(b, waiter)
      const taken = await mustGrant(a, taker)
      assert.deepEqual(await waitersOf(a, context.lockName), idsOf(line))
      for (const waiter of line) await mustRefuse(b, waiter)
      let last = { driver: a, claim: taker, token: taken.fencingToken }
      for (const waiter of line) {
        await releaseOne(last.driver, last.claim, last.token)
        last = { driver: b, claim: waiter, token: (await mustGrant(b, waiter)).fencingToken }
      }
    },
  )

  test(
    'a lock that is free for its first waiter can be taken by force before that waiter asks',
    ['queue'],
    async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
      const { fencingToken } = await mustGrant(a, holder)
      await mustRefuse(b, waiter)
      await releaseOne(a, holder, fencingToken)
      const taker = context.claim({ forceUpTo: ANY })
      await mustGrant(a, taker)
      assert.equal((await leaseOn(a, context.lockName)).claimId, taker.claimId)
    },
  )

  for (const mode of ['exclusive', 'shared'] as const) {
    test(
      `rule 10: the first waiter of ${mode} leases is woken by a forced release, because the new lease may end sooner`,
      ['queue', 'wake', 'shared', 'ttl'],
      async (context) => {
        const [a, b] = [await context.driver(), await context.driver()]
        const waiter = context.claim({ waiterTtlMs: LONG_MS })
        await mustGrant(a, context.claim({ mode }))
        const heard = await listenOn(b)
        const before = await mustRefuse(b, waiter)
        await mustGrant(a, context.claim({ forceUpTo: ANY, ttlMs: LONG_MS / 2 }))
        await until('a wake-up', () => heard.tellsOf(waiter))
        const after = await mustRefuse(b, waiter)
        assert.ok((after.askAgainMs ?? LONG_MS) < (before.askAgainMs ?? 0), JSON.stringify([before, after]))
      },
    )
  }

  test('a forced release ends every shared lease', ['shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const readers = [context.claim({ mode: 'shared' }), context.claim({ mode: 'shared' })]
    const tokens: number[] = []
    for (const reader of readers) tokens.push((await mustGrant(a, reader)).fencingToken)
    const taker = context.claim({ forceUpTo: ANY })
    const taken = await mustGrant(b, taker)
    assert.equal((await leaseOn(a, context.lockName)).claimId, taker.claimId)
    for (const [index, reader] of readers.entries()) {
      assert.equal(await renewOne(a, reader, tokens[index] as number, LONG_MS), 'lost')
      assert.equal(await releaseOne(a, reader, tokens[index]), false)
    }
    await mustRefuse(a, context.claim({ mode: 'shared' }))
    await releaseOne(b, taker, taken.fencingToken)
    await mustGrant(a, context.claim({ mode: 'shared' }))
    await mustGrant(b, context.claim({ mode: 'shared' }))
  })

  test('rule 5: a claim with force that asks again gets the same lease, and ends no other', async (context) => {
    const driver = await context.driver()
    const taker = context.claim({ forceUpTo: ANY })
    await mustGrant(driver, context.claim())
    const first = await mustGrant(driver, taker)
    assert.equal((await mustGrant(driver, taker)).fencingToken, first.fencingToken)
    assert.equal(await releaseOne(driver, taker), true)
    assert.deepEqual(await leasesOn(driver, context.lockName), [])
  })

  test('of two claims with force the last one holds the lock', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [first, second] = [context.claim({ forceUpTo: ANY }), context.claim({ forceUpTo: ANY })]
    const lost = await mustGrant(a, first)
    const won = await mustGrant(b, second)
    if (context.capabilities.fencing) assert.ok(won.fencingToken > lost.fencingToken)
    assert.equal(await renewOne(a, first, lost.fencingToken, LONG_MS), 'lost')
    assert.equal((await leaseOn(a, context.lockName)).claimId, second.claimId)
  })

  test('a list of a holder, a waiter and a claim with force is taken in its order', async (context) => {
    const driver = await context.driver()
    const waiterTtlMs = context.capabilities.queue ? LONG_MS : 0
    const [holder, waiter] = [context.claim({ waiterTtlMs }), context.claim({ waiterTtlMs })]
    const [taker, other] = [
      context.claim({ forceUpTo: ANY, waiterTtlMs }),
      context.claim({ lockName: context.name('other') }),
    ]
    const answers = (await driver.acquire([holder, waiter, taker, other], newCall())).map(unwrap)
    assert.deepEqual(
      answers.map(({ granted }) => granted),
      [true, false, true, true],
    )
    const [held] = answers
    assert.ok(held?.granted)
    assert.equal(await renewOne(driver, holder, held.fencingToken, LONG_MS), 'lost')
    assert.equal((await leaseOn(driver, context.lockName)).claimId, taker.claimId)
    if (context.capabilities.queue) assert.deepEqual(await waitersOf(driver, context.lockName), [waiter.claimId])
  })

  test('the metadata of a claim with force is stored', ['metadata'], async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim({ metadata: { of: 'the holder' } }))
    await mustGrant(driver, context.claim({ forceUpTo: ANY, metadata: { by: 'an operator' } }))
    assert.deepEqual((await leaseOn(driver, context.lockName)).metadata, { by: 'an operator' })
  })
}

const waitersOf = async (driver: Driver, lockName: string): Promise<string[]> =>
  idsOf(await waitersOn(driver, lockName))

const idsOf = (claims: readonly Pick<Claim, 'claimId'>[]): string[] => claims.map(({ claimId }) => claimId)

/** A fencing token that no lease has passed. */
const ANY = Number.MAX_SAFE_INTEGER
