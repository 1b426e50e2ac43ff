import assert from 'node:assert/strict'
import type { AcquireAnswer, Claim } from '../../../core/driver.ts'
import { MAX_LIST } from '../../../core/limits.ts'
import { leasesOn, mustGrant, newCall, refOf, unwrap } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS } from '../timing.ts'

/** Every call takes a list and returns one of the same length and order. */
export const lists: Group = (test) => {
  test('an empty list is answered by an empty list', async (context) => {
    const driver = await context.driver()
    assert.deepEqual(await driver.acquire([], newCall()), [])
    assert.deepEqual(await driver.renew([]), [])
    assert.deepEqual(await driver.release([]), [])
    if (driver.consume) assert.deepEqual(await driver.consume([]), [])
  })

  test('answers are in the order of their requests', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const names = ['c', 'a', 'd', 'b'].map((suffix) => context.name(suffix))
    for (const lockName of names.slice(0, 2)) await mustGrant(a, context.claim({ lockName }))
    const answers = (
      await b.acquire(
        names.map((lockName) => context.claim({ lockName })),
        newCall(),
      )
    ).map(unwrap)
    assert.deepEqual(
      answers.map((answer) => answer.granted),
      [false, false, true, true],
    )
  })

  test('several claims on one name in one list are taken in their order', async (context) => {
    const driver = await context.driver()
    const claims = [context.claim(), context.claim(), context.claim()]
    const answers = (await driver.acquire(claims, newCall())).map(unwrap)
    assert.deepEqual(
      answers.map((answer) => answer.granted),
      [true, false, false],
    )
  })

  test('several claims on one name in one list wait in their order', ['queue'], async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim())
    const claims = [1, 2, 3].map(() => context.claim({ waiterTtlMs: LONG_MS }))
    const answers = (await driver.acquire(claims, newCall())).map(unwrap)
    assert.deepEqual(
      answers.map((answer) => (answer.granted ? undefined : answer.ahead)),
      [0, 1, 2],
    )
  })

  test('one list may hold the same claim twice: both get the same lease', async (context) => {
    const driver = await context.driver()
    const claim = context.claim()
    const [first, second] = (await driver.acquire([claim, claim], newCall())).map(unwrap)
    assert.ok(first?.granted && second?.granted)
    assert.equal(second.fencingToken, first.fencingToken)
  })

  test('a list of releases says for each whether it ended a lease', async (context) => {
    const driver = await context.driver()
    const [x, y, stranger] = [context.claim({ lockName: context.name('x') }), context.claim(), context.claim()]
    const grants = await grantAll(driver.acquire([x, y], newCall()))
    const refs = [refOf(y, grants[1]), refOf(stranger), refOf(x, grants[0]), refOf(y, grants[1])]
    assert.deepEqual(await driver.release(refs), [true, false, true, false])
  })

  test('a list of renewals says for each whether it still had a lease', async (context) => {
    const driver = await context.driver()
    const [x, y, stranger] = [context.claim({ lockName: context.name('x') }), context.claim(), context.claim()]
    const grants = await grantAll(driver.acquire([x, y], newCall()))
    const [ofX, ofY] = grants as [number, number]
    const renewals = [refOf(stranger, ofY), refOf(x, ofX), refOf(y, ofY)]
    const answers = await driver.renew(renewals.map((ref) => ({ ...ref, ttlMs: LONG_MS })))
    const renewed = context.capabilities.expiry === 'session' ? 'held' : 'renewed'
    assert.deepEqual(answers, ['lost', renewed, renewed])
  })

  test('a list of 1,000 names, the most that the core sends, is granted, renewed and released', async (context) => {
    const driver = await context.driver()
    const claims = Array.from({ length: MAX_LIST }, (_, index) => context.claim({ lockName: context.name(`${index}`) }))
    const grants = await grantAll(driver.acquire(claims, newCall()))
    const refs = claims.map((claim, index) => refOf(claim, grants[index] as number))
    const answers = await driver.renew(refs.map((ref) => ({ ...ref, ttlMs: LONG_MS })))
    assert.ok(answers.every((answer) => answer === 'renewed' || answer === 'held'))
    assert.ok((await driver.release(refs)).every((answer) => answer === true))
  })

  test('lists over the same names in opposing orders neither deadlock nor grant a name twice', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const names = Array.from({ length: 20 }, (_, index) => context.name(`${index}`))
    for (let round = 0; round < 10; round += 1) {
      const forth = names.map((lockName) => context.claim({ lockName }))
      const back = names.toReversed().map((lockName) => context.claim({ lockName }))
      const [ofA, ofB] = await Promise.all([a.acquire(forth, newCall()), b.acquire(back, newCall())])
      const winners = [...grantedOf(forth, ofA), ...grantedOf(back, ofB)]
      const wonNames = winners.map(({ lockName }) => lockName)
      assert.equal(new Set(wonNames).size, wonNames.length, 'a name was granted to both')
      await Promise.all([a.release(forth), b.release(back)])
    }
    for (const lockName of names) assert.deepEqual(await leasesOn(a, lockName), [])
  })
}

const grantAll = async (answers: Promise<readonly (AcquireAnswer | Error)[]>): Promise<number[]> =>
  (await answers).map((answer) => {
    const grant = unwrap(answer)
    assert.ok(grant.granted)
    return grant.fencingToken
  })

const grantedOf = (claims: readonly Claim[], answers: readonly (AcquireAnswer | Error)[]): Claim[] =>
  claims.filter((_, index) => unwrap(answers[index] as AcquireAnswer | Error).granted)
