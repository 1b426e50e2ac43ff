import assert from 'node:assert/strict'
import { leaseOn, leasesOn } from '../driver-calls.ts'
import { type Fault, fails, holdReply, holdRequest, losesReply } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import type { LockProcess } from '../test-context.ts'
import { outlast, SHORT_MS, until, within } from '../timing.ts'

const STORE_UNAVAILABLE = { name: 'StoreError', code: 'STORE_UNAVAILABLE' }

/** What can go wrong between a claim and its answer. */
export const acquireFaults: Group = (test) => {
  test('rule 5, failure 11: a lost reply does not lock the client out of its own lock', async (context) => {
    const { lock, network } = await context.lock()
    network.once('acquire', losesReply)
    await assert.rejects(lock.acquire(context.lockName, { blocking: false }), STORE_UNAVAILABLE)
    const again = await within('the client itself to get it', lock.acquire(context.lockName))
    assert.equal(again.acquired, true)
  })

  test('rule 5, failure 11: a waiter whose reply was lost gets its lease when it asks again', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    let firstToken: number | undefined
    const losesReplyButLooks: Fault = async (forward) => {
      await forward()
      firstToken = (await leaseOn(a.realDriver, context.lockName)).fencingToken
      throw new Error('the connection broke before the reply came')
    }
    a.network.once('acquire', losesReplyButLooks)
    const result = await within('the answer to the second question', a.lock.acquire(context.lockName))
    assert.ok(result.acquired && result.lock.held)
    assert.equal(result.lock.fencingToken, firstToken)
    assert.equal((await b.lock.acquire(context.lockName, { blocking: false })).acquired, false)
  })

  test('fault: a grant whose reply arrives after its lease has ended is not acquired', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const reply = holdReply()
    a.network.once('acquire', reply.fault)
    const answer = a.lock.acquire(context.lockName, { blocking: false, timeoutSeconds: SHORT_MS / 1_000 })
    answer.catch(() => {})
    await reply.reached
    await outlast(SHORT_MS)
    reply.resume()
    await assert.rejects(answer, STORE_UNAVAILABLE)
    await untilFree(b, context.lockName)
  })

  test(
    'failure 15: a waiter whose grant came too late asks again, and gets a lease of full length',
    ['ttl'],
    async (context) => {
      const { lock, network, realDriver } = await context.lock()
      const reply = holdReply()
      network.once('acquire', reply.fault)
      const answer = lock.acquire(context.lockName, { timeoutSeconds: 1 })
      await reply.reached
      const { acquiredAtMs } = await leaseOn(realDriver, context.lockName)
      await outlast(1_000)
      reply.resume()
      const result = await within('the answer to the second question', answer)
      assert.ok(result.acquired)
      assert.ok(result.lock.acquiredAt.getTime() >= acquiredAtMs + 1_000)
    },
  )

  test('rule 6, failure 10: an aborted acquire that is granted late is released', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const request = holdRequest()
    a.network.once('acquire', request.fault)
    const abort = new AbortController()
    const answer = a.lock.acquire(context.lockName, { signal: abort.signal })
    answer.catch(() => {})
    await request.reached
    abort.abort()
    await assert.rejects(within('the abort to be heard', answer), { code: 'ABORTED' })
    request.resume()
    await request.answer
    await untilFree(b, context.lockName)
  })

  test('rule 6, failure 10: an acquire that timed out and is granted late is released', async (context) => {
    const [a, b] = [await context.lock({ callTimeoutSeconds: 0.1 }), await context.lock()]
    const request = holdRequest()
    a.network.once('acquire', request.fault)
    await assert.rejects(a.lock.acquire(context.lockName, { blocking: false }), STORE_UNAVAILABLE)
    // The claim is withdrawn before the late request reaches the store.
    await until('the claim to be withdrawn', () => a.network.counts.release.answered > 0)
    request.resume()
    await request.answer
    await untilFree(b, context.lockName)
  })

  test('rule 6: an acquire whose wait ended while its answer was in flight is released', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const reply = holdReply()
    a.network.once('acquire', reply.fault)
    const answer = a.lock.acquire(context.lockName, { blockingTimeoutSeconds: 0.1 })
    // No answer came at all, so it is not known who holds the lock.
    await assert.rejects(within('the waiting to end', answer), STORE_UNAVAILABLE)
    reply.resume()
    await untilFree(b, context.lockName)
  })

  test('rule 6: an acquire that is in flight while the instance closes is released', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const reply = holdReply()
    a.network.once('acquire', reply.fault)
    const answer = a.lock.acquire(context.lockName)
    answer.catch(() => {})
    await reply.reached
    const closed = a.lock.close()
    await assert.rejects(answer, { code: 'CLOSED' })
    reply.resume()
    await closed
    await untilFree(b, context.lockName)
  })

  test('rule 6: a withdrawal that fails is sent again', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    a.network.once('acquire', losesReply)
    a.network.once('release', fails)
    a.network.once('release', fails)
    await assert.rejects(a.lock.acquire(context.lockName, { blocking: false }), STORE_UNAVAILABLE)
    await untilFree(b, context.lockName)
    assert.ok(a.network.counts.release.calls >= 3)
  })

  test('fault: a store that is down is an error, never contention and never a lock', async (context) => {
    const { lock, network } = await context.lock()
    network.always('acquire', fails)
    await assert.rejects(lock.acquire(context.lockName, { blocking: false }), STORE_UNAVAILABLE)
    await assert.rejects(lock.acquire(context.lockName, { blockingTimeoutSeconds: 0.1 }), STORE_UNAVAILABLE)
    await assert.rejects(lock.hold(context.lockName, { blocking: false }), STORE_UNAVAILABLE)
    await assert.rejects(
      lock.withLock(context.lockName, () => assert.fail('the job ran without the lock'), { blocking: false }),
      STORE_UNAVAILABLE,
    )
  })

  test('failure 26: a store that hangs is an error in time, waiting or not', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 0.1 })
    network.always('acquire', network.hangs)
    const answers = [
      lock.acquire(context.lockName, { blocking: false }),
      lock.acquire(context.lockName, { blockingTimeoutSeconds: 0.3 }),
    ]
    for (const answer of answers) answer.catch(() => {})
    for (const answer of answers) await assert.rejects(within('an error', answer), STORE_UNAVAILABLE)
  })

  test('fault: blockingTimeoutSeconds: 0 never says acquired without the lock', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const atOnce = { blockingTimeoutSeconds: 0 }
    const first = await a.lock.acquire(context.lockName, atOnce)
    assert.ok(first.acquired)
    assert.equal((await leaseOn(b.realDriver, context.lockName)).fencingToken, first.lock.fencingToken)
    assert.equal((await b.lock.acquire(context.lockName, atOnce)).acquired, false)
    b.network.always('acquire', fails)
    await assert.rejects(b.lock.acquire(context.lockName, atOnce), STORE_UNAVAILABLE)
  })

  test('an error in one entry fails that claim alone, and the claim is withdrawn', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const firstEntryUnknown: Fault = async <Answer>(forward: () => Promise<Answer>) => {
      const [, ...others] = (await forward()) as readonly unknown[]
      return [new Error('this entry alone is not known'), ...others] as Answer
    }
    a.network.once('acquire', firstEntryUnknown)
    const other = context.name('other')
    const [unknown, known] = await Promise.allSettled([
      a.lock.acquire(context.lockName, { blocking: false }),
      a.lock.acquire(other, { blocking: false }),
    ])
    assert.equal(unknown.status, 'rejected')
    assert.ok(known.status === 'fulfilled' && known.value.acquired)
    await untilFree(b, context.lockName)
    assert.equal((await leasesOn(b.realDriver, other)).length, 1)
  })
}

/** A rival that asks at once gets the lock, long before any lease here would expire. */
async function untilFree({ lock }: LockProcess, lockName: string): Promise<void> {
  await until('the lock to be free', async () => (await lock.acquire(lockName, { blocking: false })).acquired)
}
