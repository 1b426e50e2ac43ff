import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../core/errors.ts'
import type { Lease } from '../../../core/lease/lease.ts'
import type { DistributedLock } from '../../../primitives/lock/distributed-lock.ts'
import { leaseOn, leasesOn, mustGrant, newCall } from '../driver-calls.ts'
import type { FaultyNetwork } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import type { TestContext } from '../test-context.ts'
import { LONG_MS, monotonicMs, until, within } from '../timing.ts'

/** `forceRelease` ends the lock of another holder, and an event says who did it. */
export const forcedReleases: Group = (test) => {
  test('failure 5: a lease of hours is ended, and the next waiter is granted the lock', async (context) => {
    const [a, b, c] = [await context.lock(), await context.lock(), await context.lock()]
    const { longestTtlMs = Number.POSITIVE_INFINITY } = a.realDriver.extensions ?? {}
    const held = await a.lock.hold(context.lockName, { timeoutSeconds: Math.min(100_000, longestTtlMs / 1_000) })
    const next = b.lock.hold(context.lockName, { blockingTimeoutSeconds: LONG_MS / 1_000 })
    await until('the waiter', () => b.network.counts.acquire.answered > 0)
    const [ended] = await c.lock.forceRelease(context.lockName, { by: 'ada: the clock was wrong' })
    assert.equal(ended?.holderId, a.lock.holderId)
    assert.equal(ended?.fencingToken, held.fencingToken)
    const lease = await within('the waiter to have it', next)
    assert.ok(lease.fencingToken > held.fencingToken)
    assert.equal(await held.extend(10), false)
    assert.equal(held.held, false)
    assert.ok(held.signal.reason instanceof LeaseLostError)
    assert.equal(await held.release(), false)
    assert.equal(lease.held, true)
  })

  test('an event says who forced the release, and nothing is left behind', async (context) => {
    const { lock, realDriver } = await context.lock()
    const told: unknown[] = []
    lock.on('forceReleased', ({ lockName, metadata }) => told.push([lockName, metadata?.['forcedBy']]))
    const held = await lock.hold(context.lockName)
    const lost = new Promise((resolve) => held.signal.addEventListener('abort', resolve))
    assert.equal((await lock.forceRelease(context.lockName, { by: 'ada' })).length, 1)
    await within('this process’s own holder to be told', lost)
    assert.deepEqual(told, [[context.lockName, 'ada']])
    assert.deepEqual(await leasesOn(realDriver, context.lockName), [])
  })

  test('rule 17: a forced release reaches a holder with a long lease with its next heartbeat', async (context) => {
    const [holder, operator] = [await context.lock(), await context.lock()]
    const held = await holder.lock.hold(context.lockName, { timeoutSeconds: LONG_MS / 1_000 })
    const lost = lossOf(held)
    const startedMs = monotonicMs()
    assert.equal((await operator.lock.forceRelease(context.lockName, { by: 'ada' })).length, 1)
    await within('the holder to be told', lost)
    assert.ok(monotonicMs() - startedMs < 15_000, 'it was told with a renewal after a third of its time to live')
    assert.ok(held.signal.reason instanceof LeaseLostError)
    assert.equal(held.held, false)
  })

  test('a forced release of one lock leaves the other locks of its holder', async (context) => {
    const [holder, operator] = [await context.lock(), await context.lock()]
    const other = await holder.lock.hold(context.name('other'))
    const held = await holder.lock.hold(context.lockName)
    const lost = lossOf(held)
    await operator.lock.forceRelease(context.lockName, { by: 'ada' })
    await within('the holder to be told', lost)
    assert.equal(other.held, true)
    assert.equal(await other.extend(10), true)
    assert.equal(await other.release(), true)
  })

  test('rule 15: false, doubled and late hints of a forced release end nothing', ['ttl'], async (context) => {
    const { lock, network } = await context.lock()
    const held = await lock.hold(context.lockName, { timeoutSeconds: LONG_MS / 1_000, heartbeat: false })
    const waiting = await listening(context, lock, network)
    const { claimId } = await leaseOn(network.driver, context.lockName)
    const renewals = (): number => network.counts.renew.answered
    const before = renewals()
    const send = (): void => network.deliver((listener) => listener.lost(claimId, new Error('it was force-released')))
    send()
    send()
    await until('the store to be asked', () => renewals() > before)
    network.deliver((listener) => listener.lost('of no claim', new Error('it was force-released')))
    assert.equal(held.held, true)
    assert.equal(await held.release(), true)
    const next = await lock.hold(context.lockName)
    // About the lease before, which has ended.
    send()
    assert.equal(await next.extend(10), true)
    assert.equal(next.held, true)
    assert.equal(renewals(), before + 2)
    await waiting.stop()
  })

  test('a newer lease of the same holder is left alone by a forced release of the one before', async (context) => {
    const [holder, operator] = [await context.lock(), await context.lock()]
    const first = await holder.lock.hold(context.lockName)
    const { driver } = operator.network
    const { forceRelease } = driver.extensions ?? {}
    const [seen] = await leasesOn(driver, context.lockName)
    assert.ok(seen)
    await first.release()
    const second = await holder.lock.hold(context.lockName)
    if (forceRelease !== undefined) {
      assert.deepEqual(await forceRelease([seen], { by: 'ada', endSession: false }), [false])
    } else {
      const taker = context.claim({ forceUpTo: seen.fencingToken })
      const [answer] = await driver.acquire([taker], newCall())
      assert.equal(answer && 'granted' in answer && answer.granted, false)
    }
    assert.equal(second.held, true)
    assert.equal(await second.extend(10), true)
  })

  test('forcing a free lock does nothing, and the caller must name itself', async (context) => {
    const { lock, network } = await context.lock()
    assert.deepEqual(await lock.forceRelease(context.lockName, { by: 'ada' }), [])
    const before = network.counts.inspect.calls
    await assert.rejects(lock.forceRelease(context.lockName, { by: '' }), { code: 'INVALID_ARGUMENT', argument: 'by' })
    assert.equal(network.counts.inspect.calls, before)
  })
}

const lossOf = ({ signal }: Lease): Promise<unknown> =>
  new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))

/** Lets a process wait for another lock, so that it has a subscription. */
async function listening(context: TestContext, lock: DistributedLock, network: FaultyNetwork) {
  const other = context.name('other')
  await mustGrant(await context.driver(), context.claim({ lockName: other }))
  const stop = new AbortController()
  const waiting = lock.acquire(other, { blockingTimeoutSeconds: LONG_MS / 1_000, signal: stop.signal }).catch(() => {})
  await until('the subscription', () => network.counts.listen.answered > 0)
  return {
    async stop() {
      stop.abort()
      await waiting
    },
  }
}
