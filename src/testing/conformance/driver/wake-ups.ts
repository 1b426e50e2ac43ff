import assert from 'node:assert/strict'
import type { Claim, Driver, DriverListener, Grant } from '../../../core/driver.ts'
import { mustGrant, mustRefuse, newCall, releaseOne, renewOne } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, SHORT_MS, until } from '../timing.ts'

/** Rule 10: waiters are woken. A hint is for one claim or for every claim on a name, or it is the grant itself. */
export const wakeUps: Group = (test) => {
  test('rule 10: a waiter is notified of a release by another process', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    const heard = await listenOn(b)
    await mustRefuse(b, waiter)
    await releaseOne(a, holder, fencingToken)
    await until('a wake-up', () => heard.tellsOf(waiter))
    await mustGrant(b, waiter)
  })

  test('a waiter is notified of a release by its own process', async (context) => {
    const driver = await context.driver()
    const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(driver, holder)
    const heard = await listenOn(driver)
    await mustRefuse(driver, waiter)
    await releaseOne(driver, holder, fencingToken)
    await until('a wake-up', () => heard.tellsOf(waiter))
  })

  test('failure 30: nothing that is released after listen has resolved is missed', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    for (let round = 0; round < 5; round += 1) {
      const lockName = context.name(`${round}`)
      const [holder, waiter] = [context.claim({ lockName }), context.claim({ lockName, waiterTtlMs: LONG_MS })]
      const { fencingToken } = await mustGrant(a, holder)
      await mustRefuse(b, waiter)
      const heard = await listenOn(b)
      await releaseOne(a, holder, fencingToken)
      await until('a wake-up', () => heard.tellsOf(waiter))
      await heard.stop()
    }
  })

  test('the next waiter is notified when the first one gives up', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const holder = context.claim()
    const [quitter, next] = [context.claim({ waiterTtlMs: LONG_MS }), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(a, quitter)
    await mustRefuse(b, next)
    await releaseOne(a, holder, fencingToken)
    const heard = await listenOn(b)
    await releaseOne(a, quitter)
    await until('a wake-up', () => heard.tellsOf(next))
    await mustGrant(b, next)
  })

  test('every reader that can be admitted is notified', ['queue', 'shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const writer = context.claim()
    const readers = [1, 2, 3].map(() => context.claim({ mode: 'shared', waiterTtlMs: LONG_MS }))
    const { fencingToken } = await mustGrant(a, writer)
    const heard = await listenOn(b)
    for (const reader of readers) await mustRefuse(b, reader)
    await releaseOne(a, writer, fencingToken)
    // A store may notify the next reader only after the one before it was granted.
    for (const reader of readers) {
      await until('a wake-up', () => heard.tellsOf(reader))
      await mustGrant(b, reader)
    }
  })

  test('a grant in a notification is the one that asking again returns', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    const heard = await listenOn(b)
    await mustRefuse(b, waiter)
    await releaseOne(a, holder, fencingToken)
    await until('a wake-up', () => heard.tellsOf(waiter))
    const asked = await mustGrant(b, waiter)
    const told = heard.grants.get(waiter.claimId)
    if (told !== undefined) assert.equal(told.fencingToken, asked.fencingToken)
  })

  test(
    'rule 15: a grant in a notification is proved by the newest call, and by no other',
    ['queue'],
    async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
      const [before, newest] = [newCall(), newCall()]
      const { fencingToken } = await mustGrant(a, holder)
      const heard = await listenOn(b)
      for (const call of [before, newest]) await mustRefuse(b, waiter, call)
      await releaseOne(a, holder, fencingToken)
      await until('a wake-up', () => heard.tellsOf(waiter))
      const isProvedBy = heard.proofs.get(waiter.claimId)
      if (isProvedBy === undefined) return
      assert.deepEqual(
        [before, newest, newCall()].map(({ secret }) => isProvedBy(secret)),
        [false, true, false],
      )
    },
  )

  test('a listener that has stopped gets nothing more', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    const stopped = await listenOn(b)
    await stopped.stop()
    const witness = await listenOn(b)
    await mustRefuse(b, waiter)
    await releaseOne(a, holder, fencingToken)
    await until('a wake-up of the one that still listens', () => witness.tellsOf(waiter))
    assert.equal(stopped.tellsOf(waiter), false)
  })

  for (const mode of ['exclusive', 'shared'] as const) {
    for (const [how, shorten] of [
      ['a renewal', async (...args) => (await renewOne(...args, LONG_MS / 2)) === 'renewed'],
      ['asking again', (driver, claim) => mustGrant(driver, { ...claim, ttlMs: LONG_MS / 2 })],
    ] satisfies [string, (driver: Driver, claim: Claim, token: number) => Promise<unknown>][]) {
      test(
        `rule 10: the first waiter is woken when ${how} lets the ${mode} lease that it waits for end sooner`,
        ['queue', 'shared', 'ttl'],
        async (context) => {
          const [a, b] = [await context.driver(), await context.driver()]
          const [holder, waiter] = [context.claim({ mode }), context.claim({ waiterTtlMs: LONG_MS })]
          const { fencingToken } = await mustGrant(a, holder)
          const heard = await listenOn(b)
          const before = await mustRefuse(b, waiter)
          assert.ok(await shorten(a, holder, fencingToken))
          await until('a wake-up', () => heard.tellsOf(waiter))
          const after = await mustRefuse(b, waiter)
          assert.ok((after.askAgainMs ?? LONG_MS) < (before.askAgainMs ?? 0), JSON.stringify([before, after]))
        },
      )
    }
  }

  test('rule 12: the end of a session is reported at once, for each of its leases', ['session'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claims = [context.claim(), context.claim({ lockName: context.name('other') })]
    const heard = await listenOn(a)
    for (const claim of claims) await mustGrant(a, claim)
    await context.leaseEnds(a, SHORT_MS)
    for (const { claimId } of claims) await until('the loss to be told', () => heard.losses.has(claimId))
    for (const { lockName } of claims) await mustGrant(b, context.claim({ lockName }))
  })
}

/** What a driver has reported. */
export interface Heard {
  readonly grants: ReadonlyMap<string, Grant>
  /** What proves them, if other clients could send such a message. */
  readonly proofs: ReadonlyMap<string, (secret: string) => boolean>
  readonly losses: ReadonlySet<string>
  tellsOf(claim: { readonly lockName: string; readonly claimId: string }): boolean
  stop(): Promise<void>
}

export async function listenOn(driver: Driver): Promise<Heard> {
  assert.ok(driver.listen, 'a driver whose capabilities say `wake` has `listen`')
  const names = new Set<string>()
  const claims = new Set<string>()
  const grants = new Map<string, Grant>()
  const proofs = new Map<string, (secret: string) => boolean>()
  const losses = new Set<string>()
  const listener: DriverListener = {
    wake(target) {
      if ('claimId' in target) claims.add(target.claimId)
      else names.add(target.lockName)
    },
    granted(claimId, grant, isProvedBy) {
      grants.set(claimId, grant)
      if (isProvedBy !== undefined) proofs.set(claimId, isProvedBy)
    },
    lost: (claimId) => losses.add(claimId),
    disconnected: () => {},
  }
  const stop = await driver.listen(listener)
  return {
    grants,
    proofs,
    losses,
    tellsOf: ({ lockName, claimId }) => names.has(lockName) || claims.has(claimId) || grants.has(claimId),
    stop,
  }
}
