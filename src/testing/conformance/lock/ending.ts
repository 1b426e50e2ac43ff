import assert from 'node:assert/strict'
import { LeaseLostError, NotAcquiredError } from '../../../core/errors.ts'
import type { Lease } from '../../../core/lease/lease.ts'
import type { DistributedLock } from '../../../primitives/lock/distributed-lock.ts'
import { leasesOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { deferred, until, within } from '../timing.ts'

/** Which calls wait, how a lost lock is reported, and how an instance is closed. */
export const lockEnding: Group = (test) => {
  test('nothing waits unless asked to: of two instances one does the job, the other skips it', async (context) => {
    const [{ lock: a, realDriver }, { lock: b }] = [
      await context.lock({ defaults: {} }),
      await context.lock({ defaults: {} }),
    ]
    const first = await a.acquire(context.lockName)
    const second = await b.acquire(context.lockName)
    assert.deepEqual([first.acquired, second.acquired], [true, false])
    assert.equal(await a.release(context.lockName), true)

    const ended = deferred()
    const report = a.withLock(context.lockName, () => ended.promise, { timeoutSeconds: 30 })
    await until('the first to hold it', async () => (await leasesOn(realDriver, context.lockName)).length === 1)
    await assert.rejects(
      b.withLock(context.lockName, () => assert.fail('it ran twice'), { timeoutSeconds: 30 }),
      NotAcquiredError,
    )
    await assert.rejects(b.hold(context.lockName), NotAcquiredError)
    await assert.rejects(
      b.withLocks([context.lockName, context.name('2')], () => assert.fail('it ran twice')),
      NotAcquiredError,
    )
    ended.resolve()
    await report
  })

  /** The most frequent uses of a distributed lock. Each returns whether it has done the job. */
  const uses: Record<string, Use> = {
    'a payment, with acquire and release': async (lock, lockName, job) => {
      const result = await lock.acquire(lockName)
      if (!result.acquired) return false
      try {
        await job()
        return true
      } finally {
        await lock.release(lockName)
      }
    },
    'a daily report, with withLock': (lock, lockName, job) =>
      lock.withLock(lockName, job, { timeoutSeconds: 300 }).then(
        () => true,
        (error: unknown) => {
          if (error instanceof NotAcquiredError) return false
          throw error
        },
      ),
    'a long job that extends its lease every half lease': async (lock, lockName, job) => {
      const result = await lock.acquire(lockName, { timeoutSeconds: 6 })
      if (!result.acquired) return false
      const extending = setInterval(() => void lock.extend(lockName, 6).catch(() => false), 3_000)
      try {
        await job()
        return result.lock.held
      } finally {
        clearInterval(extending)
        await lock.release(lockName)
      }
    },
    'a scheduled task, with a lease of an hour': async (lock, lockName, job, longestSeconds) => {
      const result = await lock.acquire(lockName, { timeoutSeconds: Math.min(3_600, longestSeconds) })
      if (result.acquired) await job()
      return result.acquired
    },
  }
  for (const [what, use] of Object.entries(uses)) {
    test(`of two instances one does the job, and the other is refused at once: ${what}`, async (context) => {
      const [a, b] = [await context.lock({ defaults: {} }), await context.lock({ defaults: {} })]
      const longestSeconds = (a.realDriver.extensions?.longestTtlMs ?? Number.POSITIVE_INFINITY) / 1_000
      const goOn = deferred()
      let times = 0
      const job = async (): Promise<void> => {
        times += 1
        await goOn.promise
      }
      const first = use(a.lock, context.lockName, job, longestSeconds)
      await until('the first to begin', () => times === 1)
      // A call that waited would not answer before the other instance is done.
      assert.equal(await use(b.lock, context.lockName, job, longestSeconds), false)
      goOn.resolve()
      assert.equal(await first, true)
      assert.equal(times, 1)
    })
  }

  test('a blockingTimeoutSeconds above 0 implies blocking', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock({ defaults: {} }), await context.lock({ defaults: {} })]
    const first = await a.hold(context.lockName)
    const second = b.withLock(context.lockName, () => 'second', { blockingTimeoutSeconds: 30 })
    const third = a.withLock(context.lockName, () => 'third', { blocking: true })
    await first.release()
    assert.deepEqual(await Promise.all([second, third]), ['second', 'third'])
  })

  test('a lease without heartbeat ends with its TTL, although its process lives', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const result = await a.acquire(context.lockName, { timeoutSeconds: 1 })
    assert.ok(result.acquired)
    const next = await b.hold(context.lockName, { blockingTimeoutSeconds: 30 })
    assert.equal(result.lock.held, false)
    assert.ok(next.fencingToken > result.lock.fencingToken)
  })

  const enders: Record<string, (lock: DistributedLock, lockName: string) => Promise<unknown>> = {
    'release(name)': (lock, lockName) => lock.release(lockName),
    'releaseAll()': (lock) => lock.releaseAll(),
    'close()': (lock) => lock.close(),
  }
  for (const [what, end] of Object.entries(enders)) {
    test(`failure 49: ${what} by another task is a loss for the function that runs under the lock`, async (context) => {
      const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
      const taken = deferred<Lease>()
      const settled = deferred()
      const job = a.withLock(context.lockName, async (lease) => {
        taken.resolve(lease)
        await settled.promise
        return 'done'
      })
      const { signal } = await taken.promise
      const ending = end(a, context.lockName)
      await until('the function to be told', () => signal.aborted)
      assert.ok(signal.reason instanceof LeaseLostError, String(signal.reason))
      settled.resolve()
      await assert.rejects(job, LeaseLostError)
      await ending
      assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
    })
  }

  test('a function that releases its own lock has lost nothing', async (context) => {
    const { lock } = await context.lock()
    assert.equal(await lock.withLock(context.lockName, () => lock.release(context.lockName)), true)
    await lock.withLock(context.lockName, () => lock.releaseAll())
  })

  test('close lets a function settle before it releases its lock', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const taken = deferred<Lease>()
    const job = a.withLock(context.lockName, async (lease) => {
      taken.resolve(lease)
      await until('the function to be told', () => lease.signal.aborted)
      assert.equal(
        (await b.acquire(context.lockName, { blocking: false })).acquired,
        false,
        'given back beside the function',
      )
      assert.equal(lease.held, true)
    })
    await taken.promise
    await Promise.all([a.close(), assert.rejects(job, LeaseLostError)])
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('close with drainSeconds accepts nothing new, and lets running functions finish', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const inner = context.name('inner')
    const taken = deferred<Lease>()
    const goOn = deferred()
    const job = a.withLock(context.lockName, async (lease) => {
      taken.resolve(lease)
      await goOn.promise
      await a.withLock(inner, (second) => assert.equal(second.held, true))
      assert.equal(lease.signal.aborted, false)
      return 'done'
    })
    await taken.promise
    const waiting = assert.rejects(a.hold(context.lockName, { blocking: true }), { code: 'CLOSED' })
    const closed = a.close({ drainSeconds: 30 })
    await waiting
    await assert.rejects(a.acquire(context.name('new')), { code: 'CLOSED' })
    goOn.resolve()
    assert.equal(await job, 'done')
    await closed
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('close ends in time, even if the store and the functions hang', async (context) => {
    const { lock, network } = await context.lock()
    const taken = deferred<Lease>()
    const never = deferred()
    const job = lock.withLock(context.lockName, async (lease) => {
      taken.resolve(lease)
      await never.promise
    })
    const { signal } = await taken.promise
    network.cut()
    await within('close to settle', lock.close({ drainSeconds: 0.1, deadlineSeconds: 0.5 }))
    assert.equal(signal.aborted, true)
    network.heal()
    never.resolve()
    await assert.rejects(job, LeaseLostError)
  })
}

/** Returns whether it has done the job. `longestSeconds` is the longest TTL that the driver accepts. */
type Use = (
  lock: DistributedLock,
  lockName: string,
  job: () => Promise<void>,
  longestSeconds: number,
) => Promise<boolean>
