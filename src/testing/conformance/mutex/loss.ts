import assert from 'node:assert/strict'
import type { Driver } from '../../../core/driver.ts'
import { LeaseLostError } from '../../../core/errors.ts'
import { leaseOn, releaseOne } from '../driver-calls.ts'
import type { MutexSubject } from '../mutex.ts'
import type { Group } from '../runner.ts'
import type { MutexProcess, TestContext } from '../test-context.ts'
import { BRIEF_SECONDS, KEPT_SECONDS, LONG_MS, monotonicMs, timersRun, until, within } from '../timing.ts'
import { AT_ONCE, beginToWait, mustTake, mustWait } from './taking.ts'

/** A lease that ends before its holder gives it back. */
export const mutexLoss =
  (subject: MutexSubject): Group =>
  (test) => {
    test('rule 3: a holder that is cut off knows of its loss before its successor begins', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const stale = await mustTake(a, context.lockName, { timeoutSeconds: BRIEF_SECONDS, heartbeat: true })
      const { signal } = stale
      const { taken } = await beginToWait(b, context.lockName)
      await context.cutOff(a)
      const successor = await within('the successor', taken)
      await timersRun()
      if (context.capabilities.expiry === 'ttl') assert.equal(signal.aborted, true, 'the holder was not told in time')
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
      // What the stale holder sends in the background has arrived when it is closed.
      await a.close()
      assert.ok(successor.acquired && successor.handle.held)
      assert.equal((await leaseOn(b.realDriver, context.lockName)).holderId, b.holderId)
    })

    test('a lease without heartbeat ends when its time is over: held says so, and the signal', async (context) => {
      const process = await context.mutex(subject)
      const handle = await mustTake(process, context.lockName, { timeoutSeconds: BRIEF_SECONDS, heartbeat: false })
      const { signal } = handle
      // A session has no end by time; there the heartbeat runs always, and only a silent store ends it.
      if (context.capabilities.expiry === 'session') process.network.cut()
      await until('the signal', () => signal.aborted)
      assert.ok(signal.reason instanceof LeaseLostError)
      assert.equal(handle.held, false)
      process.network.heal()
      assert.equal(await handle.release(), false)
    })

    test('the heartbeat keeps a lease beyond its time to live', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const startedMs = monotonicMs()
      const handle = await mustTake(a, context.lockName, { timeoutSeconds: KEPT_SECONDS, heartbeat: true })
      await until('more than the time to live', () => monotonicMs() - startedMs > KEPT_SECONDS * 1_100)
      assert.equal(handle.held, true)
      assert.equal((await mustWait(b, context.lockName, AT_ONCE)).holder?.fencingToken, handle.fencingToken)
      assert.equal(await handle.release(), true)
    })

    test('fault: a holder whose lease the store has lost is told by the next heartbeat', async (context) => {
      const process = await context.mutex(subject)
      const other = await context.driver() // Opened first: a lease that runs out meanwhile cannot be taken away.
      const handle = await mustTake(process, context.lockName, { timeoutSeconds: 1.2, heartbeat: true })
      const { signal } = handle
      await takeAway(context, process, other)
      await until('the signal', () => signal.aborted)
      assert.ok(signal.reason instanceof LeaseLostError)
      assert.equal(handle.held, false)
      assert.equal(await handle.release(), false)
    })

    test('fault: a lease that the store ended between two heartbeats is a loss when it is released', async (context) => {
      const process = await context.mutex(subject)
      const other = await context.driver()
      const handle = await mustTake(process, context.lockName, { timeoutSeconds: LONG_MS / 1_000, heartbeat: true })
      await takeAway(context, process, other)
      assert.equal(await handle.release(), false, 'the release says that it was still held')
    })
  }

/** The store forgets the lease, and says nothing: a forced release, data that was lost, a session that was ended. */
async function takeAway(context: TestContext, process: MutexProcess, other: Driver): Promise<void> {
  if (context.capabilities.expiry === 'session') {
    await context.leaseEnds(process.realDriver, 0)
    return
  }
  const { lockName, claimId } = await leaseOn(other, context.lockName)
  assert.equal(await releaseOne(other, context.claim({ lockName, claimId })), true)
}
