import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../core/errors.ts'
import { leasesOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS, until, within } from '../timing.ts'

/** `forceRelease` ends the lock of another holder, and an event says who did it. */
export const forcedReleases: Group = (test) => {
  test('failure 5: a lease of hours is ended, and the next waiter is granted the lock', async (context) => {
    const [a, b, c] = [await context.lock(), await context.lock(), await context.lock()]
    const held = await a.lock.hold(context.lockName, { timeoutSeconds: 100_000 })
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

  test('forcing a free lock does nothing, and the caller must name itself', async (context) => {
    const { lock, network } = await context.lock()
    assert.deepEqual(await lock.forceRelease(context.lockName, { by: 'ada' }), [])
    const before = network.counts.inspect.calls
    await assert.rejects(lock.forceRelease(context.lockName, { by: '' }), { code: 'INVALID_ARGUMENT', argument: 'by' })
    assert.equal(network.counts.inspect.calls, before)
  })
}
