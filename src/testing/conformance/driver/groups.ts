import assert from 'node:assert/strict'
import type { AcquireAnswer, Claim, Driver, Grant } from '../../../core/driver.ts'
import { MAX_LOCKS_AT_ONCE } from '../../../core/limits.ts'
import {
  acquireOne,
  assertUntouched,
  leaseOn,
  leasesOn,
  mustGrant,
  mustRefuse,
  newCall,
  refOf,
  releaseOne,
} from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import type { TestContext } from '../test-context.ts'
import { LONG_MS, outlast, SHORT_MS } from '../timing.ts'

/** Claims of one group are granted in one step, or none of them is. */
export const groups: Group = (test) => {
  test('a group of free names is granted, each with a higher token than before', async (context) => {
    const driver = await context.driver()
    const before = await acquireAll(driver, groupOf(context, ['b', 'a', 'c']))
    await driver.release(before.map(({ claim, grant }) => refOf(claim, grant.fencingToken)))
    const after = await acquireAll(driver, groupOf(context, ['c', 'a', 'b']))
    for (const { claim, grant } of after) {
      const { claimId, fencingToken } = await leaseOn(driver, claim.lockName)
      assert.deepEqual({ claimId, fencingToken }, { claimId: claim.claimId, fencingToken: grant.fencingToken })
      const earlier = before.find(({ claim: { lockName } }) => lockName === claim.lockName)
      assert.ok(grant.fencingToken > (earlier?.grant.fencingToken ?? Number.POSITIVE_INFINITY))
    }
  })

  test('a group with one held name is refused, and the refusal says which', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const held = context.claim({ lockName: context.name('b') })
    await mustGrant(a, held)
    const before = await leaseOn(a, held.lockName)
    const answers = await b.acquire(groupOf(context, ['a', 'b', 'c']), newCall())
    assert.deepEqual(answers.map(outcome), ['free', held.claimId, 'free'])
    for (const name of ['a', 'c']) assert.deepEqual(await leasesOn(a, context.name(name)), [])
    await assertUntouched(a, before)
  })

  test('while one name of a group is held, no other client ever finds the others taken', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim({ lockName: context.name('held') }))
    let isOver = false
    const asking = async (): Promise<void> => {
      for (let round = 0; round < 25; round += 1) {
        const answers = await b.acquire(groupOf(context, ['a', 'held', 'z']), newCall())
        assert.ok(!answers.some(isGranted))
      }
      isOver = true
    }
    const watching = async (name: string): Promise<void> => {
      while (!isOver) {
        const claim = context.claim({ lockName: context.name(name) })
        const { fencingToken } = await mustGrant(a, claim)
        assert.equal(await releaseOne(a, claim, fencingToken), true)
      }
    }
    await Promise.all([asking(), watching('a'), watching('z')])
  })

  test('a name whose lease has expired is free, and one with readers is not', ['ttl', 'shared'], async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim({ lockName: context.name('a'), ttlMs: SHORT_MS }))
    await mustGrant(driver, context.claim({ lockName: context.name('b'), ttlMs: SHORT_MS, mode: 'shared' }))
    const reader = context.claim({ lockName: context.name('c'), mode: 'shared' })
    const { fencingToken } = await mustGrant(driver, reader)
    await outlast(SHORT_MS)
    const names = ['a', 'b', 'c']
    assert.deepEqual((await driver.acquire(groupOf(context, names), newCall())).map(outcome), [
      'free',
      'free',
      reader.claimId,
    ])
    assert.equal(await releaseOne(driver, reader, fencingToken), true)
    await acquireAll(driver, groupOf(context, names))
  })

  test('a group does not overtake the waiters for one of its names', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const lockName = context.name('waited for')
    const [holder, waiter] = [context.claim({ lockName }), context.claim({ lockName, waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(a, waiter)
    await releaseOne(a, holder, fencingToken)
    const answers = (await b.acquire(groupOf(context, ['waited for', 'free']), newCall())).map(outcome)
    // The store may have handed the lock over already.
    assert.ok(answers[0] === 'held' || answers[0] === waiter.claimId, answers[0])
    assert.equal(answers[1], 'free')
    await mustGrant(a, waiter)
  })

  test('rule 5, failure 11: a group that asks again gets the same leases, with the same tokens', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const members = groupOf(context, ['a', 'b', 'c'])
    const first = await acquireAll(a, members)
    const again = await acquireAll(a, members)
    assert.deepEqual(tokensOf(again), tokensOf(first))
    assert.ok(!(await b.acquire(groupOf(context, ['c', 'd']), newCall())).some(isGranted))
  })

  test('rule 5: a group that asks again gets a new lease for the one that has ended', async (context) => {
    const driver = await context.driver()
    const members = groupOf(context, ['a', 'b']) as [Claim, Claim]
    const [one, two] = tokensOf(await acquireAll(driver, members)) as [number, number]
    assert.equal(await releaseOne(driver, members[0], one), true)
    const [oneAgain, twoAgain] = tokensOf(await acquireAll(driver, members)) as [number, number]
    assert.ok(oneAgain > one)
    assert.equal(twoAgain, two)
  })

  test('rule 5: a group that lost a name is refused when it asks again; the rest are errors', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const members = groupOf(context, ['a', 'b', 'c']) as [Claim, Claim, Claim]
    const [first, , third] = tokensOf(await acquireAll(a, members)) as [number, number, number]
    for (const [member, token] of [[members[0], first] as const, [members[2], third] as const]) {
      assert.equal(await releaseOne(a, member, token), true)
    }
    const rival = context.claim({ lockName: members[0].lockName })
    await mustGrant(b, rival)
    const before = await leaseOn(b, members[0].lockName)
    assert.deepEqual((await a.acquire(members, newCall())).map(outcome), [rival.claimId, 'error', 'free'])
    await assertUntouched(b, before)
    assert.deepEqual(await leasesOn(b, members[2].lockName), [])
    for (const member of members) await releaseOne(a, member)
    assert.deepEqual(await leasesOn(b, members[1].lockName), [])
    await assertUntouched(b, before)
  })

  test('rule 7: members are renewed and released one by one, like any lease', ['ttl'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const held = await acquireAll(a, groupOf(context, ['a', 'b']))
    const refs = held.map(({ claim, grant }) => refOf(claim, grant.fencingToken))
    assert.deepEqual(await a.renew(refs.map((ref) => ({ ...ref, ttlMs: LONG_MS }))), ['renewed', 'renewed'])
    assert.deepEqual(await a.release(refs.slice(0, 1)), [true])
    await mustGrant(b, context.claim({ lockName: context.name('a') }))
    await mustRefuse(b, context.claim({ lockName: context.name('b') }))
    assert.deepEqual(await a.release(refs), [false, true])
  })

  test('groups and single claims of one list are taken in their order', async (context) => {
    const driver = await context.driver()
    const single = (name: string): Claim => context.claim({ lockName: context.name(name) })
    const answers = await driver.acquire(
      [
        single('x'),
        ...groupOf(context, ['a', 'b']),
        ...groupOf(context, ['b', 'c']),
        single('c'),
        single('a'),
        ...groupOf(context, ['d', 'e']),
        ...groupOf(context, ['f', 'x']),
        single('f'),
      ],
      newCall(),
    )
    const granted = answers.map((answer) => (isGranted(answer) ? 1 : 0)).join('')
    assert.equal(granted, ['1', '11', '00', '1', '0', '11', '00', '1'].join(''))
  })

  test('a list of many groups, one of which is refused, grants the others', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim({ lockName: context.name('3b') }))
    const claims = Array.from({ length: 8 }, (_, at) => groupOf(context, [`${at}a`, `${at}b`])).flat()
    const answers = (await b.acquire(claims, newCall())).map(isGranted)
    assert.deepEqual(
      answers,
      claims.map(({ lockName }) => !lockName.startsWith(context.name('3'))),
    )
  })

  test(`a group of ${MAX_LOCKS_AT_ONCE} claims in a long list is not split`, async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const names = Array.from({ length: MAX_LOCKS_AT_ONCE }, (_, at) => `member ${at}`)
    const last = context.claim({ lockName: context.name(names.at(-1) as string) })
    const { fencingToken } = await mustGrant(a, last)
    const others = (kind: string): Claim[] =>
      Array.from({ length: 90 }, (_, at) => context.claim({ lockName: context.name(`${kind} ${at}`) }))
    const grants = async (...claims: Claim[][]): Promise<number> =>
      (await b.acquire(claims.flat(), newCall())).filter(isGranted).length
    assert.equal(await grants(others('before'), groupOf(context, names), others('behind')), 180)
    const { leases } = await a.inspect({ prefix: context.name('member'), pageSize: 1_000 })
    assert.equal(leases.length, 1)
    await releaseOne(a, last, fencingToken)
    assert.equal(await grants(others('then before'), groupOf(context, names), others('then behind')), 280)
  })

  test('of groups that race for the same names, at most one gets them all', async (context) => {
    const drivers = [await context.driver(), await context.driver(), await context.driver()]
    for (let round = 0; round < 8; round += 1) {
      const orders = [
        ['a', 'b', 'c'],
        ['c', 'b', 'a'],
        ['b', 'c'],
      ]
      const asked = await Promise.all(
        drivers.map(async (driver, at) => {
          const members = groupOf(context, orders[(at + round) % 3] as string[])
          return { driver, members, answers: await driver.acquire(members, newCall()) }
        }),
      )
      const winners = asked.filter(({ answers }) => answers.some(isGranted))
      for (const { answers } of winners) assert.ok(answers.every(isGranted), 'a part of a group was granted')
      assert.ok(winners.length <= 1, `${winners.length} groups hold the same names`)
      for (const { driver, members } of asked) await driver.release(members.map((claim) => refOf(claim)))
    }
    for (const name of ['a', 'b', 'c']) {
      assert.equal(
        (await acquireOne(drivers[0] as Driver, context.claim({ lockName: context.name(name) }))).granted,
        true,
      )
    }
  })
}

/** A new group, on these names. */
function groupOf(context: TestContext, names: readonly string[]): Claim[] {
  const claims = names.map((name) => context.claim({ lockName: context.name(name) }))
  return claims.map((claim) => ({ ...claim, group: `group of ${claims[0]?.claimId}` }))
}

interface Held {
  readonly claim: Claim
  readonly grant: Grant
}

async function acquireAll(driver: Driver, claims: readonly Claim[]): Promise<Held[]> {
  const answers = await driver.acquire(claims, newCall())
  return claims.map((claim, at) => {
    const answer = answers[at]
    assert.ok(answer !== undefined && isGranted(answer), `"${claim.lockName}": ${outcome(answer)}`)
    return { claim, grant: answer }
  })
}

const tokensOf = (held: readonly Held[]): number[] => held.map(({ grant }) => grant.fencingToken)

const isGranted = (answer: AcquireAnswer | Error): answer is Grant => !(answer instanceof Error) && answer.granted

/** `granted`, `free`, `error`, or the claim in the way. */
function outcome(answer: AcquireAnswer | Error | undefined): string {
  if (answer === undefined || answer instanceof Error) return 'error'
  if (answer.granted) return 'granted'
  return answer.free ? 'free' : (answer.holder?.claimId ?? 'held')
}
