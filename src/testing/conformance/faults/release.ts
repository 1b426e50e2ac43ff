import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../core/errors.ts'
import { leasesOn } from '../driver-calls.ts'
import { fails, holdRequest, losesReply } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import { BRIEF_SECONDS, until, within } from '../timing.ts'

const STORE_UNAVAILABLE = { name: 'StoreError', code: 'STORE_UNAVAILABLE' }

/** What can go wrong while a lease is released. */
export const releaseFaults: Group = (test) => {
  test('rule 7, failure 14: a renewal in flight while releasing cannot resurrect the lease', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const lease = await a.lock.hold(context.lockName)
    const renewal = holdRequest()
    a.network.once('renew', renewal.fault)
    const extended = lease.extend(60)
    await renewal.reached
    assert.equal(await lease.release(), true)
    renewal.resume()
    assert.deepEqual(await renewal.answer, ['lost'])
    assert.equal(await extended, false)
    assert.deepEqual(await leasesOn(a.realDriver, context.lockName), [])
    assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('a release whose reply was lost is an error, and neither lock nor lease is held', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const lease = await a.lock.hold(context.lockName)
    a.network.once('release', losesReply)
    await assert.rejects(lease.release(), STORE_UNAVAILABLE)
    assert.equal(lease.held, false)
    assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, true)
    // The release that is sent again finds the successor's lease, and must leave it.
    await until('the release to be sent again', () => a.network.counts.release.answered >= 2)
    assert.equal((await leasesOn(b.realDriver, context.lockName)).length, 1)
  })

  test('a release that failed is sent again in the background', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const lease = await a.lock.hold(context.lockName)
    a.network.once('release', fails)
    a.network.once('release', fails)
    await assert.rejects(lease.release(), STORE_UNAVAILABLE)
    assert.equal(lease.held, false)
    await until('the lock to be free', async () => {
      return (await b.lock.acquire(context.lockName, { blocking: false })).acquired
    })
  })

  test('failure 26: a release on a store that hangs is an error in time', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 0.1 })
    const lease = await lock.hold(context.lockName)
    network.once('release', network.hangs)
    await assert.rejects(within('an error', lease.release()), STORE_UNAVAILABLE)
  })

  test('fault: a lease that ended during the job does not hide the job’s own error', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 0.1 })
    const error = new Error('the job failed')
    const run = lock.withLock(
      context.lockName,
      async ({ signal }) => {
        network.cut()
        await until('the loss', () => signal.aborted)
        throw error
      },
      { timeoutSeconds: BRIEF_SECONDS },
    )
    await assert.rejects(within('withLock to end', run), error)
  })

  test(
    'fault: a lease that ended during the job is reported as a loss, not as a failed release',
    ['ttl'],
    async (context) => {
      const { lock } = await context.lock()
      const run = lock.withLock(context.lockName, ({ signal }) => until('the loss', () => signal.aborted), {
        timeoutSeconds: BRIEF_SECONDS,
        heartbeat: false,
      })
      await assert.rejects(run, LeaseLostError)
    },
  )

  test('a lease that the job itself released is no loss', async (context) => {
    const { lock } = await context.lock()
    const run = lock.withLock(context.lockName, async ({ signal }) => {
      assert.equal(await lock.release(context.lockName), true)
      assert.equal(signal.aborted, false)
      return 'done'
    })
    assert.equal(await run, 'done')
  })

  test('fault: a release that fails hides neither the job’s result nor its error', async (context) => {
    const { lock, network } = await context.lock()
    network.once('release', fails)
    assert.equal(await lock.withLock(context.lockName, () => 'the result'), 'the result')
    const error = new Error('the job failed')
    network.once('release', fails)
    await assert.rejects(
      lock.withLock(context.lockName, () => Promise.reject(error)),
      error,
    )
  })

  test('await using does not hide the block’s own error when the release fails', async (context) => {
    const { lock, network } = await context.lock()
    const error = new Error('the block failed')
    await assert.rejects(async () => {
      await using lease = await lock.hold(context.lockName)
      network.once('release', fails)
      assert.equal(lease.held, true)
      throw error
    }, error)
  })

  test('rule 13: close ends although the store hangs', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 0.05 })
    await lock.hold(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
    network.cut()
    await within('close', lock.close())
  })
}
