import assert from 'node:assert/strict'
import { mustGrant, mustRefuse, releaseOne, untilGranted, waitersOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, outlast, SHORT_MS } from '../timing.ts'

/**
 * Rule 10: first come, first served, across all processes. When the lock is released, a store may grant it to the first
 * waiter, or leave it free until that waiter asks. In both cases the first waiter is granted the lock, and no other.
 */
export const queue: Group = (test) => {
  test('rule 10: waiters are served in the order in which they came, across processes', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const holder = context.claim()
    const line = [
      { driver: b, claim: context.claim({ waiterTtlMs: LONG_MS }) },
      { driver: a, claim: context.claim({ waiterTtlMs: LONG_MS }) },
      { driver: b, claim: context.claim({ waiterTtlMs: LONG_MS }) },
    ]
    let last = { driver: a, claim: holder, token: (await mustGrant(a, holder)).fencingToken }
    for (const { driver, claim } of line) await mustRefuse(driver, claim)
    for (const [index, { driver, claim }] of line.entries()) {
      await releaseOne(last.driver, last.claim, last.token)
      for (const later of line.slice(index + 1).toReversed()) await mustRefuse(later.driver, later.claim)
      last = { driver, claim, token: (await mustGrant(driver, claim)).fencingToken }
    }
  })

  test('a waiter learns how many are ahead of it, and asking again keeps its place', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim())
    const [first, second] = [context.claim({ waiterTtlMs: LONG_MS }), context.claim({ waiterTtlMs: LONG_MS })]
    assert.equal((await mustRefuse(a, first)).ahead, 0)
    assert.equal((await mustRefuse(b, second)).ahead, 1)
    assert.equal((await mustRefuse(a, first)).ahead, 0)
    assert.equal((await mustRefuse(b, second)).ahead, 1)
  })

  test('a claim that does not wait takes no place in the queue', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim())
    assert.equal((await mustRefuse(driver, context.claim())).ahead, undefined)
    assert.deepEqual(await waitersOn(driver, context.lockName), [])
  })

  test('rule 10: a newcomer does not overtake a waiter, even while the lock is free', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, waiter)
    await releaseOne(a, holder, fencingToken)
    await mustRefuse(a, context.claim())
    await mustGrant(b, waiter)
  })

  test('rule 10: a claim is judged by the queue of its own name alone', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const lockName = `${context.lockName} other`
    const other = context.claim({ lockName })
    const line = [
      context.claim({ lockName, mode: 'shared', waiterTtlMs: LONG_MS }),
      context.claim({ lockName, waiterTtlMs: LONG_MS }),
    ] as const
    const { fencingToken: otherToken } = await mustGrant(a, other)
    for (const claim of line) await mustRefuse(a, claim)
    const [holder, waiter] = [context.claim(), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(a, waiter)
    for (const [claim, token] of [
      [holder, fencingToken],
      [other, otherToken],
    ] as const) {
      await releaseOne(a, claim, token)
    }
    // The last queue that the driver reads is long, and then another process empties it.
    await mustRefuse(a, line[1])
    for (const claim of line) await releaseOne(b, claim)
    await mustRefuse(a, context.claim())
    await mustGrant(a, waiter)
    assert.deepEqual(await waitersOn(a, context.lockName), [])
  })

  test('rule 6: a release without a token takes a waiter out of the queue', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const holder = context.claim()
    const [quitter, next] = [context.claim({ waiterTtlMs: LONG_MS }), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, quitter)
    await mustRefuse(b, next)
    assert.equal(await releaseOne(b, quitter), false, 'it had no lease to end')
    assert.deepEqual(
      (await waitersOn(a, context.lockName)).map(({ claimId }) => claimId),
      [next.claimId],
    )
    await releaseOne(a, holder, fencingToken)
    await mustGrant(b, next)
  })

  test('failure 31: a waiter that died is passed over when its time is up', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const holder = context.claim()
    const [dead, alive] = [context.claim({ waiterTtlMs: SHORT_MS }), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, dead)
    await mustRefuse(a, alive)
    await releaseOne(a, holder, fencingToken)
    await untilGranted(a, alive)
  })

  test('failure 31: a waiter whose time was up before the release is passed over at once', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const holder = context.claim()
    const [dead, alive] = [context.claim({ waiterTtlMs: SHORT_MS }), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, dead)
    await mustRefuse(a, alive)
    await outlast(SHORT_MS)
    assert.equal(await releaseOne(a, holder, fencingToken), true)
    await mustGrant(a, alive)
  })

  test('a waiter that died is no longer shown when its time is up', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim())
    await mustRefuse(driver, context.claim({ waiterTtlMs: SHORT_MS }))
    await outlast(SHORT_MS)
    assert.deepEqual(await waitersOn(driver, context.lockName), [])
  })

  test('asking again keeps a place for longer', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const holder = context.claim()
    const [first, second] = [context.claim({ waiterTtlMs: 2_000 }), context.claim({ waiterTtlMs: LONG_MS })]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, first)
    await mustRefuse(a, second)
    await mustRefuse(b, { ...first, waiterTtlMs: LONG_MS })
    await outlast(2_000)
    await releaseOne(a, holder, fencingToken)
    await mustRefuse(a, second)
    await mustGrant(b, first)
  })

  test(
    'the first waiter is asked to come back no later than when the lease in its way expires',
    ['ttl'],
    async (context) => {
      const driver = await context.driver()
      await mustGrant(driver, context.claim({ ttlMs: 10_000 }))
      const { askAgainMs } = await mustRefuse(driver, context.claim({ waiterTtlMs: LONG_MS }))
      assert.ok(askAgainMs !== undefined && askAgainMs >= 0 && askAgainMs <= 10_001, `${askAgainMs}`)
    },
  )

  test('rule 10: readers that keep coming do not starve a writer', ['shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const reader = context.claim({ mode: 'shared' })
    const writer = context.claim({ waiterTtlMs: LONG_MS })
    const late = context.claim({ mode: 'shared', waiterTtlMs: LONG_MS })
    const { fencingToken } = await mustGrant(a, reader)
    await mustRefuse(b, writer)
    await mustRefuse(a, context.claim({ mode: 'shared' }))
    await mustRefuse(a, late)
    await releaseOne(a, reader, fencingToken)
    await mustRefuse(a, late)
    const written = await mustGrant(b, writer)
    await mustRefuse(a, late)
    await releaseOne(b, writer, written.fencingToken)
    await mustGrant(a, late)
  })

  test('readers that wait behind a writer are admitted together', ['shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const writer = context.claim()
    const readers = [1, 2, 3].map(() => context.claim({ mode: 'shared', waiterTtlMs: LONG_MS }))
    const { fencingToken } = await mustGrant(a, writer)
    for (const reader of readers) await mustRefuse(b, reader)
    await releaseOne(a, writer, fencingToken)
    for (const reader of readers) await mustGrant(b, reader)
  })

  test('readers behind a writer that gives up are admitted beside the current reader', ['shared'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const [writer, reader] = [
      context.claim({ waiterTtlMs: LONG_MS }),
      context.claim({ mode: 'shared', waiterTtlMs: LONG_MS }),
    ]
    await mustGrant(a, context.claim({ mode: 'shared' }))
    await mustRefuse(b, writer)
    await mustRefuse(a, reader)
    await releaseOne(b, writer)
    await mustGrant(a, reader)
  })

  test('a claim for few permits does not overtake one for many', ['limit'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const permits = (count: number, waiterTtlMs = 0) =>
      context.claim({ mode: 'shared', limit: 3, permits: count, waiterTtlMs })
    const [holder, many] = [permits(2), permits(2, LONG_MS)]
    const { fencingToken } = await mustGrant(a, holder)
    await mustRefuse(b, many)
    await mustRefuse(a, permits(1))
    await releaseOne(a, holder, fencingToken)
    await mustGrant(b, many)
    await mustGrant(a, permits(1))
  })
}
