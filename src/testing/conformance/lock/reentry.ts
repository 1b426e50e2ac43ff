import assert from 'node:assert/strict'
import { leaseOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { deferred, LONG_MS, timersRun, within } from '../timing.ts'

/** Inside the callback of `withLock` the same name is re-entered instead of waiting for itself. */
export const reentry: Group = (test) => {
  test('nested withLock of one name does not deadlock, and is the same lease', async (context) => {
    const { lock } = await context.lock()
    const tokens = lock.withLock(context.lockName, (outer) =>
      lock.withLock(context.lockName, (inner) => [outer.fencingToken, inner.fencingToken]),
    )
    const [outer, inner] = await within('the nested job', tokens)
    assert.equal(inner, outer)
  })

  test('the end of an inner entry does not end the outer lease', async (context) => {
    const [{ lock: a }, { lock: b, realDriver }] = [await context.lock(), await context.lock()]
    await a.withLock(context.lockName, async (outer) => {
      await a.withLock(context.lockName, () => {})
      const inner = await a.acquire(context.lockName)
      assert.ok(inner.acquired)
      assert.equal(await a.release(context.lockName), true, 'by name it ends the innermost')
      assert.equal(inner.lock.held, false)
      assert.equal(outer.held, true)
      assert.equal((await leaseOn(realDriver, context.lockName)).fencingToken, outer.fencingToken)
      assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, false)
    })
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('another task of the same instance does not enter', async (context) => {
    const { lock } = await context.lock()
    const [entered, leave] = [deferred(), deferred()]
    const job = lock.withLock(context.lockName, async () => {
      entered.resolve()
      await leave.promise
    })
    await entered.promise
    assert.equal((await lock.acquire(context.lockName, { blocking: false })).acquired, false)
    leave.resolve()
    await job
  })

  test('an inner entry that is not awaited keeps the lock until it has ended', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const [entered, leave] = [deferred(), deferred()]
    let inner: Promise<boolean> | undefined
    const outer = a.withLock(context.lockName, async () => {
      inner = a.withLock(context.lockName, async (lease) => {
        entered.resolve()
        await leave.promise
        return lease.held
      })
      await entered.promise
    })
    await entered.promise
    await timersRun()
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, false, 'two were inside')
    leave.resolve()
    assert.equal(await inner, true)
    await outer
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('an inner entry keeps the lock from the moment of the call', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const { lockName } = context
    const outers: ((start: () => void) => Promise<void>)[] = [
      (start) => a.withLock(lockName, () => start()),
      (start) => a.withLock(lockName, async () => start()),
      (start) => a.withLock(lockName, () => a.withLock(lockName, () => start())),
      (start) => a.withLocks([lockName], () => start()),
    ]
    const inners: ((job: () => Promise<boolean>) => Promise<boolean>)[] = [
      (job) => a.withLock(lockName, job),
      (job) => a.withLocks([lockName], job),
    ]
    for (const outer of outers) {
      for (const inner of inners) {
        const [entered, leave] = [deferred(), deferred()]
        let running: Promise<boolean> | undefined
        const whole = outer(() => {
          running = inner(async () => {
            entered.resolve()
            await leave.promise
            return (await b.acquire(lockName, { blocking: false })).acquired
          })
        })
        await within('the entry', entered.promise)
        await timersRun()
        leave.resolve()
        assert.equal(await running, false, 'another holder was let in beside the entry')
        await whole
        const next = await b.acquire(lockName, { blocking: false })
        assert.ok(next.acquired, 'the outer call ended before it released the lock')
        await next.lock.release()
      }
    }
  })

  test('an entry that is refused does not delay the outer call', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const other = context.name('other')
    await b.hold(other)
    const refused: Promise<unknown>[] = []
    await within(
      'the outer call',
      a.withLock(context.lockName, () => {
        const signal = AbortSignal.abort(new Error('not wanted'))
        refused.push(a.withLock(context.lockName, () => assert.fail('it ran'), { signal }))
        refused.push(a.withLocks([context.lockName, other], () => assert.fail('it ran'), { blocking: false }))
        for (const each of refused) each.catch(() => undefined)
      }),
    )
    await assert.rejects(refused[0] as Promise<unknown>, { code: 'ABORTED' })
    await assert.rejects(refused[1] as Promise<unknown>, { code: 'NOT_ACQUIRED' })
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('an inner entry never shortens the outer lease', async (context) => {
    const { lock } = await context.lock()
    await lock.withLock(
      context.lockName,
      async (outer) => {
        const inner = await lock.hold(context.lockName)
        assert.equal(await inner.extend(0.1), true)
        assert.equal(await lock.extend(context.lockName, 0.1), true)
        assert.ok(outer.remainingSeconds > 1, `only ${outer.remainingSeconds} s are left`)
        await inner.release()
        assert.equal(await inner.extend(60), false)
      },
      { timeoutSeconds: LONG_MS / 1_000 },
    )
  })

  test('a task that was started inside and outlives the callback does not enter', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const over = deferred()
    let straggler: Promise<boolean> | undefined
    await a.withLock(context.lockName, () => {
      straggler = over.promise.then(async () => (await a.acquire(context.lockName, { blocking: false })).acquired)
    })
    await b.hold(context.lockName, { blocking: false })
    over.resolve()
    assert.equal(await straggler, false)
  })

  test('after the callback, a task’s release by name refers to what the instance holds then', async (context) => {
    const { lock } = await context.lock()
    const over = deferred()
    let straggler: Promise<boolean> | undefined
    await lock.withLock(context.lockName, () => {
      straggler = over.promise.then(() => lock.release(context.lockName))
    })
    const next = await lock.acquire(context.lockName)
    over.resolve()
    assert.equal(await straggler, true)
    assert.ok(next.acquired && !next.lock.held)
  })
}
