import assert from 'node:assert/strict'
import { mustGrant, waitersOn } from '../driver-calls.ts'
import { fails, holdRequest } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import type { LockProcess } from '../test-context.ts'
import { monotonicMs, SHORT_MS, until, VAIN_SECONDS, within } from '../timing.ts'

/** The slow poll behind the wake-ups comes every 20 s: a waiter that is served sooner was woken. */
const WOKEN_OR_NOTHING = { waiterTtlSeconds: 60 }
const PATIENT = { blockingTimeoutSeconds: 60, timeoutSeconds: 60 }

/** What can go wrong while a claim waits. */
export const waitingFaults: Group = (test) => {
  test('rule 10: when wake-ups are lost, the slow poll still finds the lock free', async (context) => {
    const [a, b] = [await context.lock(), await context.lock({ waiterTtlSeconds: 0.6 })]
    const lease = await a.lock.hold(context.lockName, PATIENT)
    b.network.mute()
    const next = b.lock.hold(context.lockName, PATIENT)
    await untilAsked(b, 1)
    await lease.release()
    await within('the poll', next)
  })

  test(
    'failure 29: after a broken subscription, a missed release is found when listening again',
    ['wake'],
    async (context) => {
      const [a, b] = [await context.lock(), await context.lock(WOKEN_OR_NOTHING)]
      const lease = await a.lock.hold(context.lockName, PATIENT)
      const next = b.lock.hold(context.lockName, PATIENT)
      await untilAsked(b, 2)
      b.network.breakSubscription()
      await lease.release()
      await within('the waiter to listen again and look', next)
    },
  )

  test('failure 30: a release between the refusal and the subscription is not missed', ['wake'], async (context) => {
    const [a, b] = [await context.lock(), await context.lock(WOKEN_OR_NOTHING)]
    const lease = await a.lock.hold(context.lockName, PATIENT)
    const subscribing = holdRequest()
    b.network.once('listen', subscribing.fault)
    const next = b.lock.hold(context.lockName, PATIENT)
    await subscribing.reached
    await lease.release()
    subscribing.resume()
    await within('the waiter to look again', next)
  })

  test('a store without a working subscription is polled', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const lease = await a.lock.hold(context.lockName, PATIENT)
    b.network.always('listen', fails)
    const next = b.lock.hold(context.lockName, PATIENT)
    await untilAsked(b, 1)
    await lease.release()
    await within('the poll', next)
  })

  test('while the subscription hangs, the store is polled', async (context) => {
    // The deadline of a call is later than the end of the test, so only a poll can find the lock free.
    const [a, b] = [await context.lock(), await context.lock({ callTimeoutSeconds: 60 })]
    const lease = await a.lock.hold(context.lockName, PATIENT)
    b.network.always('listen', b.network.hangs)
    const next = b.lock.hold(context.lockName, PATIENT)
    await untilAsked(b, 1)
    await lease.release()
    await within('the poll', next)
  })

  test('an outage is never reported as contention, not even behind another local waiter', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 60 })
    network.always('acquire', network.hangs)
    const longer = lock.acquire(context.lockName, PATIENT)
    longer.catch(() => {})
    const shorter = lock.acquire(context.lockName, { blockingTimeoutSeconds: 0.1 })
    await assert.rejects(shorter, { code: 'STORE_UNAVAILABLE' })
    network.heal()
  })

  test('a waiter behind another one of its process also learns who holds the lock', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const lease = await a.lock.hold(context.lockName, PATIENT)
    const longer = b.lock.acquire(context.lockName, PATIENT)
    await untilAsked(b, 1)
    const shorter = await b.lock.acquire(context.lockName, { blockingTimeoutSeconds: VAIN_SECONDS })
    assert.equal(shorter.acquired, false)
    assert.equal(shorter.holder?.holderId, lease.holderId)
    await lease.release()
    assert.equal((await longer).acquired, true)
  })

  test('a waiter outlives an outage of the store', async (context) => {
    const [a, b] = [await context.lock(), await context.lock({ waiterTtlSeconds: 0.6 })]
    const lease = await a.lock.hold(context.lockName, PATIENT)
    const next = b.lock.hold(context.lockName, PATIENT)
    await untilAsked(b, 1)
    b.network.always('acquire', fails)
    b.network.mute()
    await until('a question that failed', () => b.network.counts.acquire.calls > b.network.counts.acquire.answered)
    await lease.release()
    b.network.heal()
    await within('the waiter to ask again', next)
  })

  test(
    'a waiter whose process has died delays the others no longer than its place lasts',
    ['queue'],
    async (context) => {
      const [a, dying, b] = [await context.lock(), await context.lock({ waiterTtlSeconds: 0.3 }), await context.lock()]
      const lease = await a.lock.hold(context.lockName, PATIENT)
      const never = dying.lock.hold(context.lockName, PATIENT)
      never.catch(() => {})
      await untilAsked(dying, 1)
      await context.cutOff(dying)
      const next = b.lock.hold(context.lockName, PATIENT)
      await untilAsked(b, 1)
      await lease.release()
      await within('the one behind the dead waiter', next)
    },
  )

  test(
    'a waiter is notified when a lease taken by force ends sooner than the one it waited for',
    ['queue', 'wake', 'forceUpTo'],
    async (context) => {
      const [a, b] = [await context.lock(), await context.lock(WOKEN_OR_NOTHING)]
      await a.lock.hold(context.lockName, PATIENT)
      const next = b.lock.hold(context.lockName, PATIENT)
      await untilAsked(b, 2)
      // It is not released, so the waiter can rely on its end only.
      await mustGrant(a.realDriver, context.claim({ forceUpTo: Number.MAX_SAFE_INTEGER, ttlMs: SHORT_MS }))
      await within('the waiter to ask at the end of that lease', next)
    },
  )

  test('fault: waiting does not become a hot loop', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    await a.lock.hold(context.lockName, PATIENT)
    const startedMs = monotonicMs()
    const result = await b.lock.acquire(context.lockName, { blockingTimeoutSeconds: VAIN_SECONDS })
    assert.equal(result.acquired, false)
    const most = 4 + (monotonicMs() - startedMs) / 10
    assert.ok(b.network.counts.acquire.calls <= most, `${b.network.counts.acquire.calls} requests, at most ${most}`)
  })

  test(
    'rule 10, failure 35: the cost of a hand-off does not grow with the number of waiters',
    ['queue', 'wake'],
    async (context) => {
      const [a, b] = [await context.lock(), await context.lock(WOKEN_OR_NOTHING)]
      const lease = await a.lock.hold(context.lockName, PATIENT)
      const waiters = 40
      const turns = Array.from({ length: waiters }, () => b.lock.withLock(context.lockName, () => {}, PATIENT))
      await until('all to be in the queue', async () => {
        return (await waitersOn(a.realDriver, context.lockName)).length === waiters
      })
      await lease.release()
      await within('all to be served', Promise.all(turns))
      // Each waiter asks once to join the queue, once after it has subscribed, and then a fixed number of times. If
      // every release woke all of them, it would be hundreds of requests.
      const { requests } = b.network.counts.acquire
      assert.ok(requests <= waiters * 5, `${requests} requests for ${waiters} hand-offs`)
    },
  )
}

/** The store has answered this many requests: the claim is in the queue, or subscribed. */
const untilAsked = ({ network }: LockProcess, answers: number): Promise<boolean> =>
  until('the claim to be answered', () => network.counts.acquire.answered >= answers)
