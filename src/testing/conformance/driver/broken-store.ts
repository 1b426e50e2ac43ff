import assert from 'node:assert/strict'
import type { Claim, RateLimit } from '../../../core/driver.ts'
import {
  consumeOne,
  leaseOn,
  mustGrant,
  mustRefuse,
  releaseOne,
  renewOne,
  untilGranted,
  waitersOn,
} from '../driver-calls.ts'
import type { Need } from '../needs.ts'
import { type GroupContext, registerGroup } from '../runner.ts'
import type { ConformanceStore } from '../store.ts'
import { type TestContext, withTestContext } from '../test-context.ts'
import { LONG_MS, monotonicMs, outlast, SHORT_MS } from '../timing.ts'

/** A store that a test can damage on purpose, and the ways to do so. Each test opens its own. */
export interface BreakableStore<Store extends ConformanceStore> {
  open(): Promise<Store>
  /** FLUSHALL, TRUNCATE, failover to an empty replica: all stored data is gone. */
  loseData?(store: Store): Promise<void>
  /** Ends the store as a crash does and starts it again. Drivers that were open need not work afterwards. */
  restart?(store: Store): Promise<void>
  /** Sets the store's clock, forwards or back. */
  stepClock?(store: Store, ms: number): Promise<void>
}

export function registerBrokenStore<Store extends ConformanceStore>(
  context: GroupContext,
  breakable: BreakableStore<Store>,
): void {
  const { loseData, restart, stepClock } = breakable
  const { capabilities } = context
  registerGroup(context, 'driver interface: a damaged store', (test) => {
    const damageTest = (
      title: string,
      needs: readonly Need[],
      body: (context: TestContext, store: Store) => Promise<void>,
    ) =>
      test(title, needs, async () => {
        const store = await breakable.open()
        try {
          await withTestContext(store, capabilities, (context) => body(context, store))
        } finally {
          await store.close()
        }
      })

    if (loseData !== undefined) {
      damageTest(
        'rule 8, failure 18: the next token is higher after the store lost its data',
        ['fencing'],
        async (context, store) => {
          const before = await mustGrant(await context.driver(), context.claim())
          await loseData(store)
          const after = await untilGranted(await context.driver(), context.claim())
          assert.ok(after.fencingToken > before.fencingToken)
        },
      )

      damageTest(
        'a lease that the store has forgotten is lost, and cannot touch its successor',
        ['ttl'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          const claim = context.claim()
          const { fencingToken } = await mustGrant(a, claim)
          await loseData(store)
          assert.equal(await renewOne(a, claim, fencingToken, LONG_MS), 'lost')
          const rival = context.claim()
          await untilGranted(b, rival)
          assert.equal(await releaseOne(a, claim, fencingToken), false)
          assert.equal((await leaseOn(b, context.lockName)).claimId, rival.claimId)
        },
      )
    }

    if (restart !== undefined) {
      damageTest(
        'rule 8: the next token is higher after the store was restarted',
        ['fencing'],
        async (context, store) => {
          const driver = await context.driver()
          const claim = context.claim()
          const before = await mustGrant(driver, claim)
          await releaseOne(driver, claim, before.fencingToken)
          await restart(store)
          const after = await untilGranted(await context.driver(), context.claim())
          assert.ok(after.fencingToken > before.fencingToken)
        },
      )
    }

    if (stepClock !== undefined) {
      damageTest(
        'rule 8, failure 5: tokens rise from waiter to waiter although the store’s clock steps back',
        ['fencing', 'queue'],
        async (context, store) => {
          const driver = await context.driver()
          const holder = context.claim()
          const waiters = [1, 2, 3].map(() => context.claim({ waiterTtlMs: LONG_MS }))
          let last = await mustGrant(driver, holder)
          for (const waiter of waiters) await mustRefuse(driver, waiter)
          await stepClock(store, -3_600_000)
          for (const [at, waiter] of waiters.entries()) {
            await releaseOne(driver, at === 0 ? holder : (waiters[at - 1] as Claim), last.fencingToken)
            const next = await untilGranted(driver, waiter)
            assert.ok(next.fencingToken > last.fencingToken, `${next.fencingToken} after ${last.fencingToken}`)
            last = next
          }
        },
      )

      // A store may have a fast path for a lock that is not shared, waited for or taken by force.
      for (const [what, terms, needs] of [
        ['', {}, []],
        [' of shared leases', { mode: 'shared' }, ['shared']],
        [' of claims with force', { forceUpTo: Number.MAX_SAFE_INTEGER }, ['forceUpTo']],
      ] as const) {
        damageTest(
          `rule 8, failure 5: tokens${what} rise although the store’s clock steps back`,
          ['fencing', ...needs],
          async (context, store) => {
            const driver = await context.driver()
            let last = 0
            for (let round = 0; round < 3; round += 1) {
              const claim = context.claim(terms)
              const { fencingToken } = await mustGrant(driver, claim)
              assert.ok(fencingToken > last, `${fencingToken} after ${last}`)
              last = fencingToken
              await releaseOne(driver, claim, fencingToken)
              await stepClock(store, -3_600_000)
            }
          },
        )
      }

      damageTest(
        'failure 4: when the store’s clock jumps forward, the next holder fences the first one off',
        ['ttl'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          const [claim, rival] = [context.claim(), context.claim()]
          const first = await mustGrant(a, claim)
          await stepClock(store, 3_600_000)
          const second = await untilGranted(b, rival)
          if (capabilities.fencing) assert.ok(second.fencingToken > first.fencingToken)
          assert.equal(await renewOne(a, claim, first.fencingToken, LONG_MS), 'lost')
          assert.equal(await releaseOne(a, claim, first.fencingToken), false)
          assert.equal((await leaseOn(b, context.lockName)).claimId, rival.claimId)
        },
      )

      damageTest(
        'failure 43: a waiter that died while the store’s clock was ahead is passed over when its own time is up',
        ['queue'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          const [holder, dead] = [context.claim(), context.claim({ waiterTtlMs: SHORT_MS })]
          const alive = context.claim({ waiterTtlMs: LONG_MS })
          const { fencingToken } = await mustGrant(a, holder)
          await mustRefuse(b, dead)
          await mustRefuse(a, alive)
          await stepClock(store, -3_600_000)
          await releaseOne(a, holder, fencingToken)
          await untilGranted(a, alive)
        },
      )

      damageTest(
        'failure 43: a lease whose holder died while the store’s clock was ahead ends when its own time is up',
        ['ttl'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          await mustGrant(a, context.claim({ ttlMs: SHORT_MS }))
          await stepClock(store, -3_600_000)
          await untilGranted(b, context.claim())
        },
      )

      damageTest(
        'failure 43: a reader that died while the store’s clock was ahead blocks a writer no longer than its TTL',
        ['shared', 'ttl'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          for (const _ of [1, 2]) await mustGrant(a, context.claim({ mode: 'shared', ttlMs: SHORT_MS }))
          await stepClock(store, -3_600_000)
          await untilGranted(b, context.claim())
        },
      )

      // The place may have been taken before the clock was ahead.
      damageTest(
        'failure 43: a waiter that died after asking again while the store’s clock was ahead is passed over in time',
        ['queue'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          const [holder, dead] = [context.claim({ ttlMs: 7_200_000 }), context.claim({ waiterTtlMs: 7_200_000 })]
          const { fencingToken } = await mustGrant(a, holder)
          await mustRefuse(b, dead)
          await stepClock(store, 3_600_000)
          await mustRefuse(b, { ...dead, waiterTtlMs: SHORT_MS })
          await stepClock(store, -3_600_000)
          const alive = context.claim({ waiterTtlMs: LONG_MS })
          await mustRefuse(a, alive)
          await releaseOne(a, holder, fencingToken)
          await untilGranted(a, alive)
        },
      )

      for (const mode of ['exclusive', 'shared'] as const) {
        const kind = mode === 'shared' ? 'a shared' : 'an exclusive'
        damageTest(
          `failure 43: ${kind} lease that was renewed while the store’s clock was ahead ends when its TTL is over`,
          ['ttl', ...(mode === 'shared' ? ['shared' as const] : [])],
          async (context, store) => {
            const [a, b] = [await context.driver(), await context.driver()]
            const holder = context.claim({ mode, ttlMs: 7_200_000 })
            const { fencingToken } = await mustGrant(a, holder)
            await stepClock(store, 3_600_000)
            assert.equal(await renewOne(a, holder, fencingToken, SHORT_MS), 'renewed')
            await stepClock(store, -3_600_000)
            await untilGranted(b, context.claim())
          },
        )
      }

      damageTest(
        'failure 43: waiters that died while the store’s clock was ahead end together, not one after the other',
        ['queue'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          const holder = context.claim()
          const { fencingToken } = await mustGrant(a, holder)
          for (const _ of [1, 2, 3]) await mustRefuse(b, context.claim({ waiterTtlMs: SHORT_MS }))
          await stepClock(store, -3_600_000)
          await releaseOne(a, holder, fencingToken)
          await mustRefuse(a, context.claim())
          await outlast(SHORT_MS)
          // The first of them may have been granted the lock, for as long as its place lasted.
          await outlast(SHORT_MS)
          await mustGrant(a, context.claim())
        },
      )

      damageTest(
        'failure 43: a forced release is enough to end a waiter that died while the store’s clock was ahead',
        ['queue', 'forceUpTo'],
        async (context, store) => {
          const driver = await context.driver()
          await mustGrant(driver, context.claim())
          await mustRefuse(driver, context.claim({ waiterTtlMs: SHORT_MS }))
          await stepClock(store, -3_600_000)
          const forced = context.claim({ forceUpTo: Number.MAX_SAFE_INTEGER })
          const { fencingToken } = await mustGrant(driver, forced)
          await releaseOne(driver, forced, fencingToken)
          await outlast(SHORT_MS)
          assert.deepEqual(await waitersOn(driver, context.lockName), [])
        },
      )

      damageTest(
        'failure 43: a lease that is held while the store’s clock steps back is not ended early',
        ['ttl'],
        async (context, store) => {
          const [a, b] = [await context.driver(), await context.driver()]
          const claim = context.claim()
          const { fencingToken } = await mustGrant(a, claim)
          await stepClock(store, -3_600_000)
          await mustRefuse(b, context.claim())
          assert.equal(await renewOne(a, claim, fencingToken, LONG_MS), 'renewed')
          await mustRefuse(b, context.claim())
        },
      )

      damageTest(
        'failure 5: a rate limit is not blocked for as long as the store’s clock stepped back',
        ['rate'],
        async (context, store) => {
          const driver = await context.driver()
          const limits = [{ limit: 1, periodMs: 60_000, burst: 2 }]
          const request = { name: context.lockName, cost: 1, limits }
          assert.equal((await consumeOne(driver, request)).allowed, true)
          await stepClock(store, -3_600_000)
          const { allowed, retryAfterMs, resetAfterMs } = await consumeOne(driver, request)
          assert.equal(allowed, false, 'a step back gives nothing back')
          assert.ok(retryAfterMs <= 60_001 && resetAfterMs <= 120_001, `${retryAfterMs} ${resetAfterMs}`)
        },
      )

      damageTest(
        'failure 5: after the store’s clock stepped back, a refused call succeeds when retryAfter has passed',
        ['rate'],
        async (context, store) => {
          const driver = await context.driver()
          const narrow = { limit: 10, periodMs: 1_000, burst: 2 }
          // After the step its moment is still no further ahead than the burst reaches, so it must not be moved.
          const wide = { limit: 1, periodMs: 3_600_000, burst: 100 }
          /** Repeats a round in which the machine was so slow that a unit may have been given back. */
          const refusedAfterStep = async (limits: RateLimit[], attempt = 1) => {
            const name = context.name(`${limits.length} ${limits.indexOf(narrow)} ${attempt}`)
            const request = { name, cost: 1, limits }
            const startedMs = monotonicMs()
            assert.equal((await consumeOne(driver, { ...request, cost: 2 })).remaining, 0)
            await stepClock(store, -3_600_000)
            const looked = await consumeOne(driver, { ...request, cost: 0 })
            const refused = await consumeOne(driver, request)
            if (attempt < 20 && monotonicMs() - startedMs > 90) return refusedAfterStep(limits, attempt + 1)
            assert.equal(looked.remaining, 0)
            assert.equal(refused.allowed, false, 'a step back gives nothing back')
            return { request, refused }
          }
          for (const limits of [[narrow], [narrow, wide], [wide, narrow]]) {
            const { request, refused } = await refusedAfterStep(limits)
            assert.ok(refused.retryAfterMs <= 101, `${refused.retryAfterMs}`)
            await outlast(refused.retryAfterMs)
            assert.equal((await consumeOne(driver, request)).allowed, true)
            await outlast(200)
            assert.equal((await consumeOne(driver, request)).remaining, 1, 'a full burst after a rest')
          }
        },
      )
    }
  })
}
