import assert from 'node:assert/strict'
import { leaseOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { atLeast, BRIEF_SECONDS, KEPT_SECONDS, monotonicMs, outlast, until, within } from '../timing.ts'

/** `extend`, `minHoldSeconds`, `maxHoldSeconds`. */
export const holdTimes: Group = (test) => {
  test('extend sets a new end, later than before', ['ttl'], async (context) => {
    const { lock, realDriver } = await context.lock()
    const result = await lock.acquire(context.lockName, { timeoutSeconds: 10 })
    assert.ok(result.acquired)
    const before = { store: await leaseOn(realDriver, context.lockName), told: result.lock.expiresAt.getTime() }
    assert.equal(await lock.extend(context.lockName, 60), true)
    const after = await leaseOn(realDriver, context.lockName)
    assert.ok((after.expiresAtMs ?? 0) - (before.store.expiresAtMs ?? 0) >= atLeast(50_000))
    assert.ok(result.lock.expiresAt.getTime() - before.told >= atLeast(50_000), 'the lease itself has the new end')
    assert.ok(
      result.lock.expiresAt.getTime() <= (after.expiresAtMs ?? 0) + 2,
      'and never hopes for more than the store has',
    )
  })

  test('extend sets a new end, sooner than before', ['ttl'], async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const result = await a.acquire(context.lockName, { timeoutSeconds: 60 })
    assert.ok(result.acquired)
    assert.equal(await result.lock.extend(2), true)
    await outlast(2_000)
    assert.equal(result.lock.held, false)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('a lease that is extended repeatedly outlives its first TTL', ['ttl'], async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const startedMs = monotonicMs()
    const result = await a.acquire(context.lockName, { timeoutSeconds: KEPT_SECONDS })
    assert.ok(result.acquired)
    await until('more than the first time to live', async () => {
      assert.equal(await a.extend(context.lockName, KEPT_SECONDS), true)
      return monotonicMs() - startedMs > KEPT_SECONDS * 1_100
    })
    assert.equal(result.lock.held, true)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, false)
  })

  test('failure 13: extend after the lease has ended answers no, and acquires nothing', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const result = await a.lock.acquire(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
    assert.ok(result.acquired)
    await context.leaseEnds(a.realDriver, BRIEF_SECONDS * 1_000)
    await until('the holder to know', () => !result.lock.held)
    assert.equal(await a.lock.extend(context.lockName, 30), false)
    assert.equal(await result.lock.extend(30), false)
    assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('minHoldSeconds keeps others out after an early release, until it is over', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const startedMs = monotonicMs()
    const lease = await a.hold(context.lockName, { minHoldSeconds: 0.4 })
    assert.equal(await lease.release(), true)
    assert.equal(lease.held, false, 'the holder itself has released it')
    const next = await within('the next holder', b.hold(context.lockName, { blockingTimeoutSeconds: 30 }))
    assert.ok(monotonicMs() - startedMs >= atLeast(400), 'it was let in too early')
    assert.ok(next.held)
  })

  test('minHoldSeconds does not lengthen a hold that has lasted that long', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const lease = await a.hold(context.lockName, { minHoldSeconds: 0.05 })
    await outlast(50)
    assert.equal(await lease.release(), true)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('failure 34: after maxHoldSeconds the heartbeat stops, and a rival gets the lock', ['ttl'], async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const lease = await a.hold(context.lockName, { timeoutSeconds: BRIEF_SECONDS, maxHoldSeconds: 0.5 })
    const { signal } = lease
    const next = await within('the rival', b.hold(context.lockName, { blockingTimeoutSeconds: 30 }))
    assert.equal(lease.held, false)
    assert.equal(signal.aborted, true)
    assert.ok(next.fencingToken !== lease.fencingToken)
  })
}
