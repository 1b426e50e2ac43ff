import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../core/errors.ts'
import type { Lease } from '../../../core/lease/lease.ts'
import { leaseOn, leasesOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import type { LockProcess } from '../test-context.ts'
import { LONG_MS, until, within } from '../timing.ts'

/** `forceRelease` ends the lock of another holder, and an event says who did it. */
export const forcedReleases: Group = (test) => {
  test('failure 5: a lease of hours is ended, and the next waiter is granted the lock', async (context) => {
    const [a, b, c] = [await context.lock(), await context.lock(), await context.lock()]
    const { longestTtlMs = Number.POSITIVE_INFINITY } = a.realDriver
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
    lock.on('stolen', ({ lockName, metadata }) => told.push([lockName, metadata?.['forcedBy']]))
    const held = await lock.hold(context.lockName)
    const lost = new Promise((resolve) => held.signal.addEventListener('abort', resolve))
    assert.equal((await lock.forceRelease(context.lockName, { by: 'ada' })).length, 1)
    await within('this process’s own holder to be told', lost)
    assert.deepEqual(told, [[context.lockName, 'ada']])
    assert.deepEqual(await leasesOn(realDriver, context.lockName), [])
  })

  test('a forced release reaches a holder that does not renew its lease', async (context) => {
    const [holder, operator] = [await context.lock(), await context.lock()]
    const held = await holder.lock.hold(context.lockName, { timeoutSeconds: LONG_MS / 1_000, heartbeat: false })
    const lost = lossOf(held)
    await watching(holder)
    assert.equal((await operator.lock.forceRelease(context.lockName, { by: 'ada' })).length, 1)
    await within('the holder to be told', lost)
    assert.ok(held.signal.reason instanceof LeaseLostError)
    assert.equal(held.held, false)
  })

  test('a forced release of one lock leaves the other locks of its holder', async (context) => {
    const [holder, operator] = [await context.lock(), await context.lock()]
    const other = await holder.lock.hold(context.name('other'))
    const held = await holder.lock.hold(context.lockName)
    const lost = lossOf(held)
    await watching(holder)
    await operator.lock.forceRelease(context.lockName, { by: 'ada' })
    await within('the holder to be told', lost)
    assert.equal(other.held, true)
    assert.equal(await other.extend(10), true)
    assert.equal(await other.release(), true)
  })

  test('rule 15: false, doubled and late hints of a forced release end nothing', ['ttl'], async (context) => {
    const { lock, network } = await context.lock()
    const held = await lock.hold(context.lockName, { timeoutSeconds: LONG_MS / 1_000 })
    await watching({ network })
    const { claimId } = await leaseOn(network.driver, context.lockName)
    const renewals = (): number => network.counts.renew.answered
    const before = renewals()
    const send = (): void => network.deliver((listener) => listener.lost(claimId, new Error('it was stolen')))
    send()
    send()
    await until('the store to be asked', () => renewals() > before + 1)
    network.deliver((listener) => listener.lost('of no claim', new Error('it was stolen')))
    assert.equal(held.held, true)
    assert.equal(await held.release(), true)
    const next = await lock.hold(context.lockName)
    // About the lease before, which has ended.
    send()
    assert.equal(await next.extend(10), true)
    assert.equal(next.held, true)
    assert.equal(renewals(), before + 3)
  })

  test('a newer lease of the same holder is left alone by a forced release of the one before', async (context) => {
    const [holder, operator] = [await context.lock(), await context.lock()]
    const first = await holder.lock.hold(context.lockName)
    const { driver } = operator.network
    const [seen] = await leasesOn(driver, context.lockName)
    assert.ok(seen)
    await first.release()
    const second = await holder.lock.hold(context.lockName)
    if (driver.forceRelease !== undefined) {
      assert.deepEqual(await driver.forceRelease([seen], { by: 'ada', endSession: false }), [false])
    } else {
      const thief = context.claim({ steal: true, stealUpTo: seen.fencingToken })
      const [answer] = await driver.acquire([thief])
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

/** A process begins to listen when its oldest lease is a second old. */
const watching = ({ network }: Pick<LockProcess, 'network'>): Promise<boolean> =>
  until('the process to listen for forced releases', () => network.counts.watch.answered > 0)
