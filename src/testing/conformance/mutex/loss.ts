import assert from 'node:assert/strict'
import type { Driver } from '../../../core/driver.ts'
import { LeaseLostError } from '../../../core/errors.ts'
import { leaseOn, releaseOne } from '../driver-calls.ts'
import type { MutexSubject } from '../mutex.ts'
import type { Group } from '../runner.ts'
import type { MutexProcess, TestContext } from '../test-context.ts'
import { BRIEF_SECONDS, KEPT_SECONDS, LONG_MS, monotonicMs, timersRun, until, within } from '../timing.ts'
import { AT_ONCE, beginToWait, mustTake, mustWait } from './taking.ts'

/** A lease that ends before its holder releases it. */
export const mutexLoss =
  (subject: MutexSubject): Group =>
  (test) => {
    test('rule 3: a holder that is cut off is notified of the loss before its successor begins', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const stale = await mustTake(a, context.lockName, { timeoutSeconds: BRIEF_SECONDS, heartbeat: true })
      const { signal } = stale
      const { taken } = await beginToWait(b, context.lockName)
      await context.cutOff(a)
      const successor = await within('the successor', taken)
      await timersRun()
      if (context.capabilities.expiry === 'ttl')
        assert.equal(signal.aborted, true, 'the holder was not notified in time')
      await until('the signal', () => signal.aborted)
      assert.ok(signal.reason instanceof LeaseLostError)
      assert.ok(successor.acquired)
      if (context.capabilities.fencing) assert.ok(successor.handle.fencingToken > stale.fencingToken)
    })

    test('rule 7: a stale holder that comes back cannot release its successor’s lease', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const stale = await mustTake(a, context.lockName, { timeoutSeconds: BRIEF_SECONDS, heartbeat: true })
      const { taken } = await beginToWait(b, context.lockName)
      await context.cutOff(a)
      const successor = await within('the successor', taken)
      if (context.capabilities.expiry === 'ttl') assert.equal(stale.held, false, 'two held it at once')
      await until('the holder to know of its loss', () => !stale.held)
      a.network.heal()
      assert.equal(await stale.release(), false)
      // When it is closed, what the stale holder sent in the background has arrived.
      await a.close()
      assert.ok(successor.acquired && successor.handle.held)
      assert.equal((await leaseOn(b.realDriver, context.lockName)).holderId, b.holderId)
    })

    test('a lease without heartbeat ends with its TTL: held is false and the signal aborts', async (context) => {
      const process = await context.mutex(subject)
      const handle = await mustTake(process, context.lockName, { timeoutSeconds: BRIEF_SECONDS, heartbeat: false })
      const { signal } = handle
      // A session does not end by time. There the heartbeat always runs, and only a silent store ends the lease.
      if (context.capabilities.expiry === 'session') process.network.cut()
      await until('the signal', () => signal.aborted)
      assert.ok(signal.reason instanceof LeaseLostError)
      assert.equal(handle.held, false)
      process.network.heal()
      assert.equal(await handle.release(), false)
    })

    test('the heartbeat keeps a lease beyond its TTL', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const startedMs = monotonicMs()
      const handle = await mustTake(a, context.lockName, { timeoutSeconds: KEPT_SECONDS, heartbeat: true })
      await until('more than the time to live', () => monotonicMs() - startedMs > KEPT_SECONDS * 1_100)
      assert.equal(handle.held, true)
      assert.equal((await mustWait(b, context.lockName, AT_ONCE)).holder?.fencingToken, handle.fencingToken)
      assert.equal(await handle.release(), true)
    })

    test('fault: a holder learns from the next heartbeat that the store has lost its lease', async (context) => {
      const process = await context.mutex(subject)
      const other = await context.driver() // opened first: a lease that expires meanwhile cannot be ended
      const handle = await mustTake(process, context.lockName, { timeoutSeconds: 1.2, heartbeat: true })
      const { signal } = handle
      await takeAway(context, process, other)
      await until('the signal', () => signal.aborted)
      assert.ok(signal.reason instanceof LeaseLostError)
      assert.equal(handle.held, false)
      assert.equal(await handle.release(), false)
    })

    test('fault: the release of a lease that the store ended between two heartbeats is a loss', async (context) => {
      const process = await context.mutex(subject)
      const other = await context.driver()
      const handle = await mustTake(process, context.lockName, { timeoutSeconds: LONG_MS / 1_000, heartbeat: true })
      await takeAway(context, process, other)
      assert.equal(await handle.release(), false, 'the release says that it was still held')
    })
  }

/** The store loses the lease without a message: a forced release, lost data, a session that was ended. */
async function takeAway(context: TestContext, process: MutexProcess, other: Driver): Promise<void> {
  if (context.capabilities.expiry === 'session') {
    await context.leaseEnds(process.realDriver, 0)
    return
  }
  const { lockName, claimId } = await leaseOn(other, context.lockName)
  assert.equal(await releaseOne(other, context.claim({ lockName, claimId })), true)
}
