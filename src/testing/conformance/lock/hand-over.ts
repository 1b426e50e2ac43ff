import assert from 'node:assert/strict'
import { assertUntouched, leaseOn, leasesOn } from '../driver-calls.ts'
import { fails, holdRequest, losesReply } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import { BRIEF_SECONDS, deferred, KEPT_SECONDS, sleep, until, within } from '../timing.ts'

const STORE_UNAVAILABLE = { name: 'StoreError', code: 'STORE_UNAVAILABLE' }

/** `lease.serialize` and `lock.restore` move a lease from one process to another. */
export const handOver: Group = (test) => {
  test('a lease that is handed over continues in another process with the same token', async (context) => {
    const [a, b, c] = [await context.lock(), await context.lock(), await context.lock()]
    const told: string[] = []
    a.lock.on('handedOver', ({ fencingToken }) => told.push(`handed over ${fencingToken}`))
    b.lock.on('restored', ({ fencingToken }) => told.push(`restored ${fencingToken}`))
    const first = await a.lock.hold(context.lockName, { metadata: { step: 1 } })
    const second = await b.lock.restore(await first.serialize())
    const { fencingToken, holderId, acquiredAt, metadata } = first
    assert.deepEqual(
      [second.fencingToken, second.holderId, second.acquiredAt, second.metadata, second.held],
      [fencingToken, holderId, acquiredAt, metadata, true],
    )
    assert.ok(second.expiresAt > second.acquiredAt)
    assert.deepEqual(told, [`handed over ${fencingToken}`, `restored ${fencingToken}`])
    assert.equal((await c.lock.acquire(context.lockName, { blocking: false })).acquired, false)
    assert.equal(await second.extend(45), true)
    assert.equal(await b.lock.extend(context.lockName, 45), true)
    assert.equal(await second.release(), true)
    const next = await c.lock.acquire(context.lockName, { blocking: false })
    assert.ok(next.acquired && next.lock.fencingToken > fencingToken)
  })

  test('the first process loses it with the call; its release, dispose and close end nothing', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const first = await a.lock.hold(context.lockName)
    const { signal } = first
    const text = first.serialize()
    assert.equal(first.held, false)
    assert.equal(first.remainingSeconds, 0)
    assert.throws(() => first.assertHeld(), { code: 'NOT_HELD', message: /it was handed over/ })
    const second = await b.lock.restore(await text)
    const before = await leaseOn(b.realDriver, context.lockName)
    assert.deepEqual(
      [await first.release(), await first.extend(10), await a.lock.release(context.lockName)],
      [false, false, false],
    )
    await first[Symbol.asyncDispose]()
    await a.lock.releaseAll()
    await assert.rejects(first.serialize(), { code: 'NOT_HELD' })
    await a.lock.close()
    await assertUntouched(b.realDriver, before)
    assert.equal(signal.aborted, false)
    assert.equal(second.held, true)
    assert.equal(await b.lock.release(context.lockName), true)
  })

  test('the first process stops renewing it, and the second one renews it if asked to', async (context) => {
    const [a, b, c] = [await context.lock(), await context.lock(), await context.lock()]
    const first = await a.lock.hold(context.lockName, { timeoutSeconds: KEPT_SECONDS })
    const text = await first.serialize()
    const renewals = a.network.counts.renew.calls
    const second = await b.lock.restore(text, { heartbeat: true })
    await until('a heartbeat of the second', () => b.network.counts.renew.answered >= 2)
    assert.equal(a.network.counts.renew.calls, renewals)
    assert.equal((await c.lock.acquire(context.lockName, { blocking: false })).acquired, false)
    await second.release()
    assert.deepEqual(await leasesOn(c.realDriver, context.lockName), [])
  })

  test('a serialized lease that is never restored ends with its TTL', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const first = await a.lock.hold(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
    const text = await first.serialize()
    const next = await b.lock.hold(context.lockName)
    assert.ok(next.fencingToken > first.fencingToken)
    await assert.rejects(a.lock.restore(text), { code: 'LEASE_LOST', fencingToken: first.fencingToken })
    assert.equal(next.held, true)
    assert.equal((await leaseOn(b.realDriver, context.lockName)).fencingToken, next.fencingToken)
  })

  test('the text of a lease that was restored and released cannot be restored again', async (context) => {
    const [a, b, c] = [await context.lock(), await context.lock(), await context.lock()]
    const text = await (await a.lock.hold(context.lockName)).serialize()
    await (await b.lock.restore(text)).release()
    await assert.rejects(c.lock.restore(text), { code: 'LEASE_LOST' })
    const next = await c.lock.hold(context.lockName)
    await assert.rejects(b.lock.restore(text), { code: 'LEASE_LOST' })
    assert.equal(next.held, true)
  })

  test('an instance restores a text once', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const text = await (await a.lock.hold(context.lockName)).serialize()
    const second = await b.lock.restore(text)
    await assert.rejects(b.lock.restore(text), { code: 'INVALID_ARGUMENT', argument: 'text' })
    assert.equal(second.held, true)
    assert.equal(await second.release(), true)
  })

  test('restoring a text that this instance holds or is restoring sends and changes nothing', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const text = await (await a.lock.hold(context.lockName)).serialize()
    const renewal = holdRequest()
    b.network.once('renew', renewal.fault)
    const restored = b.lock.restore(text, { timeoutSeconds: 40 })
    await renewal.reached
    await assert.rejects(b.lock.restore(text, { timeoutSeconds: 1 }), { code: 'INVALID_ARGUMENT', argument: 'text' })
    renewal.resume()
    const second = await restored
    const before = await leaseOn(b.realDriver, context.lockName)
    await assert.rejects(b.lock.restore(text, { timeoutSeconds: 1 }), { code: 'INVALID_ARGUMENT', argument: 'text' })
    await assertUntouched(b.realDriver, before)
    assert.equal(b.network.counts.renew.calls, 1)
    assert.ok(second.remainingSeconds > 30, `${second.remainingSeconds}`)
  })

  test('an unanswered restore bounds what the same instance trusts after the next one', async (context) => {
    const [a, b] = [await context.lock(), await context.lock({ callTimeoutSeconds: 0.7 })]
    const text = await (await a.lock.hold(context.lockName)).serialize()
    const renewal = holdRequest()
    b.network.once('renew', renewal.fault)
    // It may arrive at any later moment, and then the lease ends after five seconds.
    await assert.rejects(b.lock.restore(text, { timeoutSeconds: 5 }), STORE_UNAVAILABLE)
    const second = await b.lock.restore(text, { timeoutSeconds: 40 })
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
    renewal.resume()
    await renewal.answer
    assert.equal(await second.extend(40), true)
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
  })

  test('a restore whose answer is lost is an error, and the text can be restored again', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const text = await (await a.lock.hold(context.lockName)).serialize()
    b.network.once('renew', losesReply)
    await assert.rejects(b.lock.restore(text), STORE_UNAVAILABLE)
    b.network.once('renew', fails)
    await assert.rejects(b.lock.restore(text), STORE_UNAVAILABLE)
    assert.equal((await b.lock.restore(text)).held, true)
  })

  test('a hand-over waits for a renewal in flight, which could set an earlier end', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const first = await a.lock.hold(context.lockName)
    const renewal = holdRequest()
    a.network.once('renew', renewal.fault)
    const extended = first.extend(10)
    await renewal.reached
    let isWritten = false
    const text = first.serialize().then((written) => {
      isWritten = true
      return written
    })
    await sleep(20) // a hand-over that does not wait would be over by now
    assert.equal(isWritten, false)
    renewal.resume()
    const second = await b.lock.restore(await text, { timeoutSeconds: 40 })
    assert.equal(await extended, false)
    assert.ok(second.remainingSeconds > 30, `${second.remainingSeconds}`)
  })

  test('an unanswered renewal bounds what the next process trusts', async (context) => {
    const [a, b] = [await context.lock({ callTimeoutSeconds: 0.1 }), await context.lock()]
    const first = await a.lock.hold(context.lockName)
    const renewal = holdRequest()
    a.network.once('renew', renewal.fault)
    // It may arrive at any later moment, and then the lease ends after five seconds.
    await assert.rejects(first.extend(5), STORE_UNAVAILABLE)
    const second = await b.lock.restore(await first.serialize(), { timeoutSeconds: 40 })
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
    renewal.resume()
    await renewal.answer
    assert.equal(await second.extend(40), true)
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
  })

  test('the next process keeps the rest of minHoldSeconds', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const first = await a.lock.hold(context.lockName, { minHoldSeconds: 60 })
    const second = await b.lock.restore(await first.serialize())
    assert.equal(await second.release(), true)
    assert.equal((await leasesOn(b.realDriver, context.lockName)).length, 1)
  })

  test('a lease inside withLock is not handed over, nor is a re-entered one', async (context) => {
    const { lock } = await context.lock()
    await lock.withLock(context.lockName, async (lease) => {
      await assert.rejects(lease.serialize(), { code: 'UNSUPPORTED', message: /a function runs under it/ })
      const inner = await lock.hold(context.lockName)
      await assert.rejects(inner.serialize(), { code: 'UNSUPPORTED', message: /several uses/ })
      assert.deepEqual([lease.held, inner.held], [true, true])
    })
  })

  test('a hand-over that waits for the store ends no later than the call’s deadline', async (context) => {
    const [a, b] = [await context.lock({ callTimeoutSeconds: 0.1 }), await context.lock()]
    const first = await a.lock.hold(context.lockName)
    a.network.always('renew', a.network.hangs)
    const extended = first.extend(30).catch(() => undefined)
    const text = await within('the text', first.serialize())
    await extended
    assert.equal((await b.lock.restore(text)).held, true)
  })
}

/** The same for every driver, also where a lease lasts as long as its session. */
export const answerSignals: Group = (test) => {
  test('an abort stops waiting for the answer to a release, and the release still arrives', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const lease = await a.lock.hold(context.lockName)
    const release = holdRequest()
    a.network.once('release', release.fault)
    const abort = new AbortController()
    const released = lease.release({ signal: abort.signal })
    await release.reached
    abort.abort(new Error('enough'))
    await assert.rejects(released, { code: 'ABORTED' })
    assert.equal(lease.held, false)
    release.resume()
    await within('the lock to be free', b.lock.hold(context.lockName))
  })

  test('rule 6: a signal that is already aborted does not prevent a release', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const aborted = AbortSignal.abort()
    await a.lock.hold(context.lockName)
    await assert.rejects(a.lock.release(context.lockName, { signal: aborted }), { code: 'ABORTED' })
    const next = await within('the lock to be free', b.lock.hold(context.lockName))
    await assert.rejects(next.release({ signal: aborted }), { code: 'ABORTED' })
    await within('the lock to be free', a.lock.hold(context.lockName))
  })

  test('an abort stops waiting for the answer to an extension, and the lease goes on', async (context) => {
    const { lock, network } = await context.lock()
    const lease = await lock.hold(context.lockName)
    const gate = deferred()
    network.once('renew', async (forward) => {
      await gate.promise
      return forward()
    })
    const abort = new AbortController()
    const extended = lock.extend(context.lockName, 40, { signal: abort.signal })
    abort.abort()
    await assert.rejects(extended, { code: 'ABORTED' })
    gate.resolve()
    assert.equal(lease.held, true)
    assert.equal(await lease.extend(40, { signal: new AbortController().signal }), true)
    const { calls } = network.counts.renew
    await assert.rejects(lease.extend(40, { signal: abort.signal }), { code: 'ABORTED' })
    assert.equal(network.counts.renew.calls, calls, 'nothing is sent for a signal that is already aborted')
    await assert.rejects(lease.extend(40, { signal: 7 as never }), { code: 'INVALID_ARGUMENT', argument: 'signal' })
    await assert.rejects(lease.release({ sginal: 7 } as never), { code: 'INVALID_ARGUMENT' })
    assert.equal(lease.held, true)
  })

  test(
    'a lease that lasts as long as its session cannot be handed over, and stays held',
    ['session'],
    async (context) => {
      const { lock } = await context.lock()
      const lease = await lock.hold(context.lockName)
      await assert.rejects(lease.serialize(), { code: 'UNSUPPORTED', message: /ends with its connection/ })
      assert.equal(lease.held, true)
    },
  )
}
