import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../core/errors.ts'
import type { Lease } from '../../../core/lease/lease.ts'
import type { Group } from '../runner.ts'
import type { LockProcess, TestContext } from '../test-context.ts'
import { deferred, LONG_MS, timersRun, until, VAIN_SECONDS, within } from '../timing.ts'

/** The last use of a lease releases it. If it ends under several uses, each of them is notified. */
export const uses: Group = (test) => {
  const sharers: [string, (process: LockProcess, context: TestContext) => Promise<void>][] = [
    ['withLocks', async ({ lock }, { lockName, name }) => lock.withLocks([lockName, name('other')], () => {})],
    ['hold', async ({ lock }, { lockName }) => void (await (await lock.hold(lockName)).release())],
    ['acquire, and dispose,', async ({ lock }, { lockName }) => dispose(await lock.hold(lockName))],
  ]
  for (const [what, share] of sharers) {
    test(`failure 58: the end of ${what} releases nothing that another task shares`, async (context) => {
      const [a, b] = [await context.lock({ reacquire: 'extend', defaults: {} }), await context.lock()]
      const [entered, leave] = [deferred(), deferred()]
      const job = a.lock.withLock(context.lockName, async (lease) => {
        entered.resolve()
        await leave.promise
        return lease.held
      })
      await entered.promise
      // `withLocks` does not extend: it is refused beside the lease of its own instance.
      await share(a, context).catch((error: unknown) => assert.equal((error as { code: string }).code, 'NOT_ACQUIRED'))
      assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, false, 'two were inside')
      leave.resolve()
      assert.equal(await job, true)
      assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, true)
    })
  }

  test('failure 58: the end of withLocks leaves the lock to a task that has extended its lease', async (context) => {
    const [a, b] = [await context.lock({ reacquire: 'extend' }), await context.lock()]
    const [taken, entered, leave] = [deferred(), deferred(), deferred()]
    const several = a.lock.withLocks([context.lockName], async () => {
      taken.resolve()
      await entered.promise
    })
    await taken.promise
    const sharing = a.lock.withLock(context.lockName, async (lease) => {
      entered.resolve()
      await several
      await leave.promise
      return lease.held
    })
    await several
    assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, false, 'two were inside')
    leave.resolve()
    assert.equal(await sharing, true)
  })

  test(
    'failure 58: the release of a restored lease leaves the lock to a task that shares it',
    ['ttl'],
    async (context) => {
      const [a, b, c] = [await context.lock(), await context.lock({ reacquire: 'extend' }), await context.lock()]
      const restored = await b.lock.restore(await (await a.lock.hold(context.lockName)).serialize())
      const [entered, leave] = [deferred(), deferred()]
      const sharing = b.lock.withLock(context.lockName, async (lease) => {
        entered.resolve()
        await leave.promise
        return lease.held
      })
      await entered.promise
      assert.equal(await restored.release(), true)
      assert.equal((await c.lock.acquire(context.lockName, { blocking: false })).acquired, false, 'two were inside')
      leave.resolve()
      assert.equal(await sharing, true)
    },
  )

  const ends: [string, (lease: Lease) => Promise<unknown>][] = [
    ['release', (lease) => lease.release()],
    ['dispose', dispose],
  ]
  for (const [what, end] of ends) {
    test(`failure 58: ${what} by an outer function ends what entered the lock again inside it`, async (context) => {
      const [a, b] = [await context.lock(), await context.lock()]
      const [entered, leave] = [deferred<Lease>(), deferred()]
      let inner: Promise<unknown> | undefined
      await a.lock.withLock(context.lockName, async (outer) => {
        inner = a.lock.withLock(context.lockName, async (lease) => {
          entered.resolve(lease)
          await leave.promise
        })
        inner.catch(() => undefined)
        const lease = await entered.promise
        const { signal } = lease
        await end(outer)
        assert.equal(lease.held, false)
        assert.ok(signal.reason instanceof LeaseLostError)
        assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, true)
        leave.resolve()
      })
      await assert.rejects(inner as Promise<unknown>, { code: 'LEASE_LOST' })
    })
  }

  test('failure 58: no use shortens a lease that others share', async (context) => {
    const { lock } = await context.lock({ reacquire: 'extend' })
    const first = await lock.hold(context.lockName, { timeoutSeconds: LONG_MS / 1_000, heartbeat: false })
    const second = await lock.hold(context.lockName, { timeoutSeconds: LONG_MS / 1_000, heartbeat: false })
    for (const extend of [() => first.extend(1), () => second.extend(1), () => lock.extend(context.lockName, 1)]) {
      assert.equal(await extend(), true)
      assert.ok(second.remainingSeconds > LONG_MS / 2_000, `${second.remainingSeconds} s are left`)
    }
    await second.release()
    assert.equal(await first.extend(LONG_MS / 1_000), true)
  })

  test(
    'failure 58: each use of a lease that was ended by force and taken is notified at its end',
    ['force'],
    async (context) => {
      const [a, b] = [await context.lock({ reacquire: 'extend' }), await context.lock()]
      const [leaveFirst, leaveSecond] = [deferred(), deferred()]
      const entered = [deferred(), deferred()]
      const jobs = [leaveFirst, leaveSecond].map((leave, at) =>
        a.lock.withLock(context.lockName, async () => {
          entered[at]?.resolve()
          await leave.promise
        }),
      )
      for (const job of jobs) job.catch(() => undefined)
      await Promise.all(entered.map(({ promise }) => promise))
      await b.lock.forceRelease(context.lockName, { by: 'ada' })
      const taken = await b.lock.hold(context.lockName)
      leaveFirst.resolve()
      await assert.rejects(within('the first use to be told', jobs[0] as Promise<unknown>), { code: 'LEASE_LOST' })
      leaveSecond.resolve()
      await assert.rejects(within('the second use to be told', jobs[1] as Promise<unknown>), { code: 'LEASE_LOST' })
      assert.equal(taken.held, true)
    },
  )

  test('failure 58: each use of a lease is notified when another task ends the lease', async (context) => {
    for (const end of ['release', 'releaseAll', 'close'] as const) {
      const a = await context.lock({ reacquire: 'extend' })
      const lockName = context.name(end)
      const signals: AbortSignal[] = []
      const jobs = [1, 2].map(() =>
        a.lock.withLock(lockName, async ({ signal }) => {
          signals.push(signal)
          await new Promise((resolve) => signal.addEventListener('abort', resolve))
        }),
      )
      for (const job of jobs) job.catch(() => undefined)
      await until('both functions to begin', () => signals.length === 2)
      await (end === 'release' ? a.lock.release(lockName) : a.lock[end]())
      await timersRun()
      for (const job of jobs) await assert.rejects(within('the end of a use', job), { code: 'LEASE_LOST' })
    }
  })

  test('rule 10: a claim that has given up is not in the way of the next one', async (context) => {
    const [a, b, c] = [await context.lock(), await context.lock(), await context.lock()]
    await b.lock.ping()
    for (let round = 0; round < 10; round += 1) {
      const lockName = context.name(`${round}`)
      const held = await a.lock.hold(lockName)
      // Its first answer must come sooner, or it is an error.
      const waited = await b.lock.acquire(lockName, { blockingTimeoutSeconds: VAIN_SECONDS / 2 + round / 1_000 })
      assert.equal(waited.acquired, false)
      await held.release()
      const next = await c.lock.acquire(lockName, { blocking: false })
      assert.equal(next.acquired, true, 'it was refused in favour of a claim that had given up')
    }
  })
}

const dispose = async (lease: Lease): Promise<void> => lease[Symbol.asyncDispose]()
