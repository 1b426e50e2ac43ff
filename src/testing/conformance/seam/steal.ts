import assert from 'node:assert/strict'
import type { Claim, Driver } from '../../../core/driver.ts'
import { leaseOn, leasesOn, mustGrant, mustRefuse, releaseOne, renewOne, unwrap, waitersOn } from '../asking.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, until } from '../timing.ts'
import { listenOn } from './wake-ups.ts'

/** A claim with `steal` ends every lease on its name and is granted before all who wait, in one step. */
export const steal: Group = (test) => {
  test('a lock that is held is granted to the thief at once, with a higher token', async (scene) => {
    const [a, b] = [await scene.driver(), await scene.driver()]
    const [holder, thief] = [scene.claim(), scene.claim({ steal: true })]
    const held = await mustGrant(a, holder)
    const stolen = await mustGrant(b, thief)
    if (scene.capabilities.fencing) assert.ok(stolen.fencingToken > held.fencingToken)
    const lease = await leaseOn(a, scene.lockName)
    assert.equal(lease.claimId, thief.claimId)
    assert.equal(lease.holderId, thief.holderId)
    assert.equal(lease.fencingToken, stolen.fencingToken)
  })

  test(
    'a thief that names the newest lease that it may end is refused where there is a newer one',
    ['fencing'],
    async (scene) => {
      const [a, b] = [await scene.driver(), await scene.driver()]
      const [older, newer] = [scene.claim(), scene.claim()]
      const { fencingToken: stealUpTo } = await mustGrant(a, older)
      await releaseOne(a, older, stealUpTo)
      const { fencingToken } = await mustGrant(a, newer)
      await mustRefuse(b, scene.claim({ steal: true, stealUpTo, waitMs: LONG_MS }))
      assert.equal(await renewOne(a, newer, fencingToken, LONG_MS), 'renewed')
      if (scene.capabilities.queue) assert.deepEqual(await waitersOf(b, scene.lockName), [])
      const thief = scene.claim({ steal: true, stealUpTo: fencingToken })
      await mustGrant(b, thief)
      assert.equal(await renewOne(a, newer, fencingToken, LONG_MS), 'lost')
    },
  )

  test('one newer lease among several that are shared keeps all of them', ['fencing', 'shared'], async (scene) => {
    const [a, b] = [await scene.driver(), await scene.driver()]
    const readers = [scene.claim({ mode: 'shared' }), scene.claim({ mode: 'shared' })]
    const tokens: number[] = []
    for (const reader of readers) tokens.push((await mustGrant(a, reader)).fencingToken)
    const [first = 0, second = 0] = tokens
    await mustRefuse(b, scene.claim({ steal: true, stealUpTo: first }))
    assert.equal((await leasesOn(b, scene.lockName)).length, 2)
    const { fencingToken } = await mustGrant(b, scene.claim({ steal: true, stealUpTo: second }))
    assert.deepEqual(
      (await leasesOn(b, scene.lockName)).map((lease) => lease.fencingToken),
      [fencingToken],
    )
  })

  test('a lock that is free is granted as to anybody', async (scene) => {
    const driver = await scene.driver()
    const thief = scene.claim({ steal: true, waitMs: LONG_MS })
    const { fencingToken } = await mustGrant(driver, thief)
    assert.equal(await releaseOne(driver, thief, fencingToken), true)
    assert.deepEqual(await leasesOn(driver, scene.lockName), [])
  })

  test('rule 7: the old holder’s renewal and release answer no, and leave the thief’s lease', async (scene) => {
    const [a, b] = [await scene.driver(), await scene.driver()]
    const [holder, thief] = [scene.claim(), scene.claim({ steal: true })]
    const held = await mustGrant(a, holder)
    const stolen = await mustGrant(b, thief)
    assert.equal(await renewOne(a, holder, held.fencingToken, LONG_MS), 'lost')
    assert.equal(await releaseOne(a, holder, held.fencingToken), false)
    assert.equal(await releaseOne(a, holder), false)
    assert.equal(await renewOne(b, thief, stolen.fencingToken, LONG_MS), 'renewed')
    assert.equal(await releaseOne(b, thief, stolen.fencingToken), true)
  })

  test('rule 10: waiters keep their places, and are served in turn after the thief', ['queue'], async (scene) => {
    const [a, b] = [await scene.driver(), await scene.driver()]
    const thief = scene.claim({ steal: true, waitMs: LONG_MS })
    const line = [scene.claim({ waitMs: LONG_MS }), scene.claim({ waitMs: LONG_MS })]
    await mustGrant(a, scene.claim())
    for (const waiter of line) await mustRefuse(b, waiter)
    const stolen = await mustGrant(a, thief)
    assert.deepEqual(await waitersOf(a, scene.lockName), idsOf(line))
    for (const waiter of line) await mustRefuse(b, waiter)
    let last = { driver: a, claim: thief, token: stolen.fencingToken }
    for (const waiter of line) {
      await releaseOne(last.driver, last.claim, last.token)
      last = { driver: b, claim: waiter, token: (await mustGrant(b, waiter)).fencingToken }
    }
  })

  test('a lock whose first waiter has not come for it yet is stolen from under it', ['queue'], async (scene) => {
    const [a, b] = [await scene.driver(), await scene.driver()]
    const [holder, waiter] = [scene.claim(), scene.claim({ waitMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, waiter)
    await releaseOne(a, holder, fencingToken)
    const thief = scene.claim({ steal: true })
    await mustGrant(a, thief)
    assert.equal((await leaseOn(a, scene.lockName)).claimId, thief.claimId)
  })

  for (const mode of ['exclusive', 'shared'] as const) {
    test(
      `rule 10: the first waiter of ${mode} leases is woken by a theft, because the thief’s lease may end sooner`,
      ['queue', 'wake', 'shared', 'ttl'],
      async (scene) => {
        const [a, b] = [await scene.driver(), await scene.driver()]
        const waiter = scene.claim({ waitMs: LONG_MS })
        await mustGrant(a, scene.claim({ mode }))
        const heard = await listenOn(b)
        const before = await mustRefuse(b, waiter)
        await mustGrant(a, scene.claim({ steal: true, ttlMs: LONG_MS / 2 }))
        await until('a wake-up', () => heard.tellsOf(waiter))
        const after = await mustRefuse(b, waiter)
        assert.ok((after.askAgainMs ?? LONG_MS) < (before.askAgainMs ?? 0), JSON.stringify([before, after]))
      },
    )
  }

  test('every shared lease is ended', ['shared'], async (scene) => {
    const [a, b] = [await scene.driver(), await scene.driver()]
    const readers = [scene.claim({ mode: 'shared' }), scene.claim({ mode: 'shared' })]
    const tokens: number[] = []
    for (const reader of readers) tokens.push((await mustGrant(a, reader)).fencingToken)
    const thief = scene.claim({ steal: true })
    const stolen = await mustGrant(b, thief)
    assert.equal((await leaseOn(a, scene.lockName)).claimId, thief.claimId)
    for (const [index, reader] of readers.entries()) {
      assert.equal(await renewOne(a, reader, tokens[index] as number, LONG_MS), 'lost')
      assert.equal(await releaseOne(a, reader, tokens[index]), false)
    }
    await mustRefuse(a, scene.claim({ mode: 'shared' }))
    await releaseOne(b, thief, stolen.fencingToken)
    await mustGrant(a, scene.claim({ mode: 'shared' }))
    await mustGrant(b, scene.claim({ mode: 'shared' }))
  })

  test('rule 5: asking again is told "already yours", and steals nothing a second time', async (scene) => {
    const driver = await scene.driver()
    const thief = scene.claim({ steal: true })
    await mustGrant(driver, scene.claim())
    const first = await mustGrant(driver, thief)
    assert.equal((await mustGrant(driver, thief)).fencingToken, first.fencingToken)
    assert.equal(await releaseOne(driver, thief), true)
    assert.deepEqual(await leasesOn(driver, scene.lockName), [])
  })

  test('of two thieves the last one has it', async (scene) => {
    const [a, b] = [await scene.driver(), await scene.driver()]
    const [first, second] = [scene.claim({ steal: true }), scene.claim({ steal: true })]
    const lost = await mustGrant(a, first)
    const won = await mustGrant(b, second)
    if (scene.capabilities.fencing) assert.ok(won.fencingToken > lost.fencingToken)
    assert.equal(await renewOne(a, first, lost.fencingToken, LONG_MS), 'lost')
    assert.equal((await leaseOn(a, scene.lockName)).claimId, second.claimId)
  })

  test('a list of a holder, a waiter and a thief is taken in its order', async (scene) => {
    const driver = await scene.driver()
    const waitMs = scene.capabilities.queue ? LONG_MS : 0
    const [holder, waiter] = [scene.claim({ waitMs }), scene.claim({ waitMs })]
    const [thief, other] = [scene.claim({ steal: true, waitMs }), scene.claim({ lockName: scene.name('other') })]
    const answers = (await driver.acquire([holder, waiter, thief, other])).map(unwrap)
    assert.deepEqual(
      answers.map(({ granted }) => granted),
      [true, false, true, true],
    )
    const [held] = answers
    assert.ok(held?.granted)
    assert.equal(await renewOne(driver, holder, held.fencingToken, LONG_MS), 'lost')
    assert.equal((await leaseOn(driver, scene.lockName)).claimId, thief.claimId)
    if (scene.capabilities.queue) assert.deepEqual(await waitersOf(driver, scene.lockName), [waiter.claimId])
  })

  test('the thief’s metadata is on record', ['metadata'], async (scene) => {
    const driver = await scene.driver()
    await mustGrant(driver, scene.claim({ metadata: { of: 'the holder' } }))
    await mustGrant(driver, scene.claim({ steal: true, metadata: { by: 'an operator' } }))
    assert.deepEqual((await leaseOn(driver, scene.lockName)).metadata, { by: 'an operator' })
  })
}

const waitersOf = async (driver: Driver, lockName: string): Promise<string[]> =>
  idsOf(await waitersOn(driver, lockName))

const idsOf = (claims: readonly Pick<Claim, 'claimId'>[]): string[] => claims.map(({ claimId }) => claimId)
