import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../core/errors.ts'
import type { Lease } from '../../../core/lease/lease.ts'
import { callsFor, leaseOn, leasesOn, mustGrant } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { BRIEF_SECONDS, deferred, sleep, until, VAIN_SECONDS } from '../timing.ts'

/** What `DistributedLock` itself adds: release by name, `withLock`'s outcome, `await using`, `releaseAll`, `close`. */
export const lockInstance: Group = (test) => {
  test('release by name ends the lease, and answers no for a name that is not held', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    assert.equal(await a.release(context.lockName), false)
    await a.acquire(context.lockName, { blocking: false })
    assert.equal(await b.release(context.lockName), false, 'another instance’s lease')
    assert.equal(await a.release(context.lockName), true)
    assert.equal(await a.release(context.lockName), false)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('rule 7: a stale instance cannot release or extend by name what its successor holds', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const first = await a.lock.acquire(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
    assert.ok(first.acquired)
    await context.cutOff(a)
    const second = await b.lock.hold(context.lockName)
    await until('the first to know of its loss', () => !first.lock.held)
    a.network.heal()
    assert.equal(await a.lock.extend(context.lockName, 30), false)
    assert.equal(await a.lock.release(context.lockName), false)
    assert.equal(await first.lock.extend(30), false)
    assert.equal(second.held, true)
    assert.equal((await leaseOn(b.realDriver, context.lockName)).fencingToken, second.fencingToken)
  })

  test('a refusal shows the holder’s metadata, times and token', ['metadata'], async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock({ holderId: 'worker ü' }), await context.lock()]
    const metadata = { job: 'daily-report', attempt: 3 }
    const lease = await a.hold(context.lockName, { metadata })
    const result = await b.acquire(context.lockName, { blocking: false })
    assert.ok(!result.acquired)
    assert.equal(result.holder?.holderId, 'worker ü')
    assert.deepEqual(result.holder.metadata, metadata)
    assert.deepEqual(result.holder.acquiredAt, lease.acquiredAt)
    assert.equal(result.holder.fencingToken, lease.fencingToken)
    assert.match(result.error, /worker ü/)
  })

  test('hold throws on contention, with the holder', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    await a.hold(context.lockName)
    await assert.rejects(
      b.hold(context.lockName, { blocking: false }),
      (error: Error & { holder?: { holderId: string } }) => {
        assert.equal(error.name, 'NotAcquiredError')
        assert.equal(error.holder?.holderId, a.holderId)
        return true
      },
    )
  })

  test('await using releases the lock at the end of the block', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    {
      await using lease = await a.hold(context.lockName)
      assert.equal(lease.held, true)
      assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, false)
    }
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('withLock passes the lease to the job, returns its result, and releases the lock', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const result = await a.withLock(context.lockName, async (lease) => {
      assert.equal(lease.held, true)
      return lease.lockName
    })
    assert.equal(result, context.lockName)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('withLock passes on the job’s own error, and releases the lock', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const error = new Error('the job failed')
    await assert.rejects(
      a.withLock(context.lockName, () => Promise.reject(error)),
      error,
    )
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('withLock rejects if the lease was lost before the job ended, even if the job succeeded', async (context) => {
    const { lock, network } = await context.lock()
    const job = async (lease: Lease): Promise<string> => {
      const { signal } = lease
      network.cut()
      await until('the job to be notified', () => signal.aborted)
      network.heal()
      return 'done'
    }
    await assert.rejects(lock.withLock(context.lockName, job, { timeoutSeconds: BRIEF_SECONDS }), LeaseLostError)
  })

  test('withLock does not run the job without the lock', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    await a.hold(context.lockName)
    let ran = false
    const job = () => {
      ran = true
    }
    await assert.rejects(b.withLock(context.lockName, job, { blockingTimeoutSeconds: VAIN_SECONDS }), {
      code: 'NOT_ACQUIRED',
    })
    assert.equal(ran, false)
  })

  test('releaseAll releases all leases of the instance and none of another', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const names = ['x', 'y', 'z'].map((suffix) => context.name(suffix))
    for (const name of names) await a.hold(name)
    const foreign = await b.hold(context.lockName)
    await a.releaseAll()
    for (const name of names) assert.equal((await b.acquire(name, { blocking: false })).acquired, true)
    assert.equal(foreign.held, true)
    assert.equal((await a.acquire(context.lockName, { blocking: false })).acquired, false)
  })

  test('all requests of one turn of the event loop go to each part of the store in one list', async (context) => {
    const { lock, network, realDriver } = await context.lock()
    await lock.ping()
    const before = { ...network.counts.acquire }
    const names = Array.from({ length: 50 }, (_, index) => context.name(`${index}`))
    const leases = await Promise.all(names.map((name) => lock.hold(name)))
    const { acquire, release } = network.counts
    const calls = callsFor(realDriver, names)
    assert.deepEqual([acquire.calls - before.calls, acquire.requests - before.requests], [calls, 50])
    const released = { ...release }
    await Promise.all(leases.map((lease) => lease.release()))
    assert.deepEqual([release.calls - released.calls, release.requests - released.requests], [calls, 50])
  })

  test('a closed instance throws, and leaves nothing in the store', async (context) => {
    const { lock, realDriver } = await context.lock()
    await lock.hold(context.lockName)
    await lock.close()
    await assert.rejects(lock.acquire(context.lockName), { code: 'CLOSED' })
    await assert.rejects(lock.extend(context.lockName, 1), { code: 'CLOSED' })
    assert.deepEqual(await leasesOn(realDriver, context.lockName), [])
  })

  test('a driver that was passed in stays open when the instance is closed', async (context) => {
    const { lock, realDriver } = await context.lock()
    await lock.close()
    await mustGrant(realDriver, context.claim())
  })

  test('reacquire: extend gives the same instance the same lease again, and no other instance', async (context) => {
    const [{ lock: a }, { lock: b }] = [
      await context.lock({ reacquire: 'extend' }),
      await context.lock({ reacquire: 'extend' }),
    ]
    const first = await a.acquire(context.lockName, { timeoutSeconds: 30 })
    const second = await a.acquire(context.lockName, { timeoutSeconds: 300, blocking: false })
    assert.ok(first.acquired && second.acquired)
    assert.equal(second.lock.fencingToken, first.lock.fencingToken)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, false)
    assert.equal(await a.release(context.lockName), true)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('reacquire: extend never returns a lease that its last user has just released', async (context) => {
    const { lock } = await context.lock({ reacquire: 'extend' })
    // The release happens after each number of steps of the second call.
    for (let steps = 0; steps < 16; steps += 1) {
      const first = await lock.hold(context.lockName, { timeoutSeconds: 60 })
      const again = lock.hold(context.lockName, { timeoutSeconds: 10 })
      for (let step = 0; step < steps; step += 1) await undefined
      const released = first.release()
      const lease = await again
      assert.equal(lease.held, true, `released after ${steps} steps`)
      assert.equal(await released, true)
      assert.equal(lease.held, true, `released after ${steps} steps`)
      assert.equal(await lease.release(), true)
    }
  })

  test('reacquire: extend answers even if the earlier lease ended as soon as it was granted', async (context) => {
    const [{ lock: a, network }, { lock: b }] = [await context.lock({ reacquire: 'extend' }), await context.lock()]
    const stop = a.on('acquired', () => void a.releaseAll())
    const first = await a.acquire(context.lockName)
    stop()
    assert.ok(first.acquired && !first.lock.held)
    await b.hold(context.lockName)
    const giveUp = new AbortController()
    let asked = 0
    network.always('acquire', (forward) => {
      asked += 1
      if (asked > 5) giveUp.abort(new Error('it asks again and again'))
      return forward()
    })
    const second = await a.acquire(context.lockName, { blocking: false, signal: giveUp.signal })
    assert.equal(second.acquired, false)
  })

  test('rule 6: an abort of the job does not abort the release', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const abort = new AbortController()
    const entered = deferred()
    const job = async (): Promise<never> => {
      entered.resolve()
      while (!abort.signal.aborted) await sleep(1) // until the job sees the abort
      throw abort.signal.reason
    }
    const run = a.withLock(context.lockName, job, { signal: abort.signal })
    run.catch(() => {})
    await entered.promise
    const reason = new Error('stop the job')
    abort.abort(reason)
    await assert.rejects(run, reason)
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, true)
  })
}
