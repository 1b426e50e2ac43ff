import assert from 'node:assert/strict'
import { leaseOn } from '../driver-calls.ts'
import type { MutexSubject } from '../mutex.ts'
import type { Group } from '../runner.ts'
import type { MutexProcess } from '../test-context.ts'
import { AT_ONCE, mustTake, mustWait, WAITING } from './taking.ts'

/** At most one holder, among processes and among the tasks of one process. */
export const mutexExclusion =
  (subject: MutexSubject): Group =>
  (test) => {
    test('tasks of three processes never hold it together, all get a turn, and tokens rise', async (context) => {
      const processes = await Promise.all([context.mutex(subject), context.mutex(subject), context.mutex(subject)])
      let inside = 0
      const tokens: number[] = []
      const work = async (process: MutexProcess): Promise<void> => {
        for (let round = 0; round < 5; round += 1) {
          const handle = await mustTake(process, context.lockName, WAITING)
          inside += 1
          assert.equal(inside, 1, 'another task was inside')
          tokens.push(handle.fencingToken)
          await new Promise(setImmediate) // lets another holder run, if there is one
          inside -= 1
          assert.equal(await handle.release(), true)
        }
      }
      await Promise.all(processes.flatMap((process) => [work(process), work(process)]))
      assert.equal(tokens.length, 30)
      if (context.capabilities.fencing)
        assert.deepEqual(
          tokens,
          [...new Set(tokens)].sort((x, y) => x - y),
        )
    })

    test('contention is a value that names the holder', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const handle = await mustTake(a, context.lockName)
      const { holder } = await mustWait(b, context.lockName, AT_ONCE)
      assert.equal(holder?.lockName, context.lockName)
      assert.equal(holder.holderId, a.holderId)
      assert.equal(holder.fencingToken, handle.fencingToken)
      assert.ok(holder.acquiredAt instanceof Date && holder.expiresAt instanceof Date)
    })

    test('a holder sees that it holds, with the store’s own token', async (context) => {
      const process = await context.mutex(subject)
      const handle = await mustTake(process, context.lockName)
      assert.equal(handle.held, true)
      assert.equal(handle.signal.aborted, false)
      assert.equal(handle.fencingToken, (await leaseOn(process.realDriver, context.lockName)).fencingToken)
    })

    test('two tasks of one process exclude each other', async (context) => {
      const process = await context.mutex(subject)
      const first = await mustTake(process, context.lockName)
      assert.equal((await mustWait(process, context.lockName, AT_ONCE)).holder?.holderId, process.holderId)
      const second = process.take(context.lockName, WAITING)
      assert.equal(await first.release(), true)
      const taken = await second
      assert.ok(taken.acquired && taken.handle.held)
    })

    test('a released lock can be acquired at once by another process', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const handle = await mustTake(a, context.lockName)
      assert.equal(await handle.release(), true)
      assert.equal(handle.held, false)
      assert.equal((await mustTake(b, context.lockName, AT_ONCE)).held, true)
    })

    test('rule 7: a second release answers no and leaves the successor’s lease', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const first = await mustTake(a, context.lockName)
      await first.release()
      const second = await mustTake(b, context.lockName, AT_ONCE)
      assert.equal(await first.release(), false)
      assert.equal(second.held, true)
      assert.equal((await mustWait(a, context.lockName, AT_ONCE)).holder?.holderId, b.holderId)
    })

    test('a release by the holder is no loss, and does not abort the signal', async (context) => {
      const process = await context.mutex(subject)
      const handle = await mustTake(process, context.lockName)
      const { signal } = handle
      await handle.release()
      assert.equal(signal.aborted, false)
    })

    test('closing an instance releases what it holds', async (context) => {
      const [a, b] = [await context.mutex(subject), await context.mutex(subject)]
      const handle = await mustTake(a, context.lockName)
      await a.close()
      assert.equal(handle.held, false)
      assert.equal((await mustTake(b, context.lockName, AT_ONCE)).held, true)
    })
  }
