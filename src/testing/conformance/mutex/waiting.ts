import assert from 'node:assert/strict'
import { waitersOn } from '../driver-calls.ts'
import type { MutexSubject } from '../mutex.ts'
import type { Group } from '../runner.ts'
import { atLeast, BRIEF_SECONDS, monotonicMs, until, VAIN_SECONDS, within } from '../timing.ts'
import { AT_ONCE, beginToWait, mustTake, mustWait, WAITING } from './taking.ts'

/**
 * A place in the queue, and the slow poll behind the wake-ups (20 s), last longer than this suite waits. So what a test
 * sees was caused by a wake-up or a withdrawal.
 */
const LASTING = { waiterTtlSeconds: 60 }

export const mutexWaiting =
  (subject: MutexSubject): Group =>
  (test) => {
    test('a waiter gets the lock when it is released', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const first = await mustTake(a, context.lockName)
      const { taken } = await beginToWait(b, context.lockName)
      await first.release()
      const second = await within('the waiter to get it', taken)
      assert.ok(second.acquired && second.handle.held)
      if (context.capabilities.fencing) assert.ok(second.handle.fencingToken > first.fencingToken)
    })

    test('rule 10: a waiter is woken by the release, long before it would poll', ['wake'], async (context) => {
      // The slow poll behind the wake-ups comes every 20 s, later than this test waits.
      const [a, b] = [await context.mutex(subject), await context.mutex(subject, LASTING)]
      const first = await mustTake(a, context.lockName)
      const { taken } = await beginToWait(b, context.lockName)
      await until('the waiter to listen and look again', () => b.network.counts.acquire.answered >= 2)
      await first.release()
      assert.equal((await within('the waiter to be woken', taken)).acquired, true)
    })

    test(
      'rule 10: waiters of three processes are served in the order in which they came',
      ['queue'],
      async (context) => {
        const [a, b, c] = [await context.mutex(subject), await context.mutex(subject), await context.mutex(subject)]
        const first = await mustTake(a, context.lockName)
        const served: number[] = []
        const turns: Promise<void>[] = []
        for (const [index, process] of [b, c, a, b, c].entries()) {
          const { taken } = await beginToWait(process, context.lockName)
          // The answer may have been for an earlier waiter of the same process that asked again.
          await until('its place', async () => (await waitersOn(a.realDriver, context.lockName)).length === index + 1)
          turns.push(
            taken.then(async (result) => {
              assert.ok(result.acquired)
              served.push(index)
              await result.handle.release()
            }),
          )
        }
        await first.release()
        await within('all to be served', Promise.all(turns))
        assert.deepEqual(served, [0, 1, 2, 3, 4])
      },
    )

    test('waiting ends with a value when its time is up, not before, and leaves nothing behind', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject, LASTING)]
      await mustTake(a, context.lockName)
      const startedMs = monotonicMs()
      const { holder } = await mustWait(b, context.lockName, { blockingTimeoutSeconds: VAIN_SECONDS })
      assert.ok(monotonicMs() - startedMs >= atLeast(VAIN_SECONDS * 1_000))
      assert.equal(holder?.holderId, a.holderId)
      await until('the place in the queue to be given up', async () => {
        return (await waitersOn(a.realDriver, context.lockName)).length === 0
      })
    })

    test('rule 6: an abort while waiting rejects at once, and leaves nothing behind', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject, LASTING)]
      const first = await mustTake(a, context.lockName)
      const abort = new AbortController()
      const { taken } = await beginToWait(b, context.lockName, { ...WAITING, signal: abort.signal })
      const reason = new Error('the caller has changed its mind')
      abort.abort(reason)
      await assert.rejects(within('the abort to be heard', taken), {
        name: 'AbortError',
        code: 'ABORTED',
        cause: reason,
      })
      await until('the place in the queue to be given up', async () => {
        return (await waitersOn(a.realDriver, context.lockName)).length === 0
      })
      await first.release()
      assert.equal((await mustTake(a, context.lockName, AT_ONCE)).held, true)
    })

    test('with a signal that is already aborted nothing is sent', async (context) => {
      const process = await context.mutex(subject)
      await assert.rejects(process.take(context.lockName, { ...WAITING, signal: AbortSignal.abort() }), {
        code: 'ABORTED',
      })
      assert.equal(process.network.counts.acquire.calls, 0)
    })

    test('an abort after the lock was acquired does not end the lease', async (context) => {
      const process = await context.mutex(subject)
      const abort = new AbortController()
      const handle = await mustTake(process, context.lockName, { ...AT_ONCE, signal: abort.signal })
      abort.abort()
      assert.equal(handle.held, true)
      assert.equal(await handle.release(), true)
    })

    test('closing an instance ends its waiting with an error, and leaves nothing behind', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      await mustTake(a, context.lockName)
      const { taken } = await beginToWait(b, context.lockName)
      await b.close()
      await assert.rejects(taken, { code: 'CLOSED' })
      assert.deepEqual(await waitersOn(a.realDriver, context.lockName), [])
    })

    test('a waiter gets the lock when the holder’s lease has expired', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      await mustTake(a, context.lockName, { timeoutSeconds: BRIEF_SECONDS })
      const { taken } = await beginToWait(b, context.lockName)
      await context.cutOff(a)
      assert.equal((await within('the waiter to take over', taken)).acquired, true)
    })
  }
