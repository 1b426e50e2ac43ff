import assert from 'node:assert/strict'
import { assertUntouched, leaseOn, leasesOn } from '../asking.ts'
import { fails, holdRequest, losesReply } from '../interfering-driver.ts'
import type { Group } from '../runner.ts'
import { BRIEF_SECONDS, deferred, KEPT_SECONDS, sleep, until, within } from '../timing.ts'

const STORE_UNAVAILABLE = { name: 'StoreError', code: 'STORE_UNAVAILABLE' }

/** `lease.serialize` and `lock.restore`: a lease goes from one process to another. */
export const handOver: Group = (test) => {
  test('a lease that is handed over goes on in another process with the same token', async (scene) => {
    const [a, b, c] = [await scene.lock(), await scene.lock(), await scene.lock()]
    const told: string[] = []
    a.lock.on('handedOver', ({ fencingToken }) => told.push(`handed over ${fencingToken}`))
    b.lock.on('restored', ({ fencingToken }) => told.push(`restored ${fencingToken}`))
    const first = await a.lock.hold(scene.lockName, { metadata: { step: 1 } })
    const second = await b.lock.restore(await first.serialize())
    const { fencingToken, holderId, acquiredAt, metadata } = first
    assert.deepEqual(
      [second.fencingToken, second.holderId, second.acquiredAt, second.metadata, second.held],
      [fencingToken, holderId, acquiredAt, metadata, true],
    )
    assert.ok(second.expiresAt > second.acquiredAt)
    assert.deepEqual(told, [`handed over ${fencingToken}`, `restored ${fencingToken}`])
    assert.equal((await c.lock.acquire(scene.lockName, { blocking: false })).acquired, false)
    assert.equal(await second.extend(45), true)
    assert.equal(await b.lock.extend(scene.lockName, 45), true)
    assert.equal(await second.release(), true)
    const next = await c.lock.acquire(scene.lockName, { blocking: false })
    assert.ok(next.acquired && next.lock.fencingToken > fencingToken)
  })

  test('the first process holds it no more from the call on, and ends nothing by release, dispose or close', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const first = await a.lock.hold(scene.lockName)
    const { signal } = first
    const text = first.serialize()
    assert.equal(first.held, false)
    assert.equal(first.remainingSeconds, 0)
    assert.throws(() => first.assertHeld(), { code: 'NOT_HELD', message: /it was handed over/ })
    const second = await b.lock.restore(await text)
    const before = await leaseOn(b.realDriver, scene.lockName)
    assert.deepEqual(
      [await first.release(), await first.extend(10), await a.lock.release(scene.lockName)],
      [false, false, false],
    )
    await first[Symbol.asyncDispose]()
    await a.lock.releaseAll()
    await assert.rejects(first.serialize(), { code: 'NOT_HELD' })
    await a.lock.close()
    await assertUntouched(b.realDriver, before)
    assert.equal(signal.aborted, false)
    assert.equal(second.held, true)
    assert.equal(await b.lock.release(scene.lockName), true)
  })

  test('the first process renews it no more, and the second one does if it is asked to', async (scene) => {
    const [a, b, c] = [await scene.lock(), await scene.lock(), await scene.lock()]
    const first = await a.lock.hold(scene.lockName, { timeoutSeconds: KEPT_SECONDS })
    const text = await first.serialize()
    const renewals = a.wire.counts.renew.calls
    const second = await b.lock.restore(text, { heartbeat: true })
    await until('a heartbeat of the second', () => b.wire.counts.renew.answered >= 2)
    assert.equal(a.wire.counts.renew.calls, renewals)
    assert.equal((await c.lock.acquire(scene.lockName, { blocking: false })).acquired, false)
    await second.release()
    assert.deepEqual(await leasesOn(c.realDriver, scene.lockName), [])
  })

  test('a text that nobody restores leaves the lock to its time to live', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const first = await a.lock.hold(scene.lockName, { timeoutSeconds: BRIEF_SECONDS })
    const text = await first.serialize()
    const next = await b.lock.hold(scene.lockName)
    assert.ok(next.fencingToken > first.fencingToken)
    await assert.rejects(a.lock.restore(text), { code: 'LEASE_LOST', fencingToken: first.fencingToken })
    assert.equal(next.held, true)
    assert.equal((await leaseOn(b.realDriver, scene.lockName)).fencingToken, next.fencingToken)
  })

  test('a text of a lease that was restored and released is of no use any more', async (scene) => {
    const [a, b, c] = [await scene.lock(), await scene.lock(), await scene.lock()]
    const text = await (await a.lock.hold(scene.lockName)).serialize()
    await (await b.lock.restore(text)).release()
    await assert.rejects(c.lock.restore(text), { code: 'LEASE_LOST' })
    const next = await c.lock.hold(scene.lockName)
    await assert.rejects(b.lock.restore(text), { code: 'LEASE_LOST' })
    assert.equal(next.held, true)
  })

  test('an instance restores a text once', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const text = await (await a.lock.hold(scene.lockName)).serialize()
    const second = await b.lock.restore(text)
    await assert.rejects(b.lock.restore(text), { code: 'INVALID_ARGUMENT', argument: 'text' })
    assert.equal(second.held, true)
    assert.equal(await second.release(), true)
  })

  test('restoring a text that this instance holds, or is just restoring, sends nothing and changes nothing', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const text = await (await a.lock.hold(scene.lockName)).serialize()
    const renewal = holdRequest()
    b.wire.once('renew', renewal.fault)
    const restored = b.lock.restore(text, { timeoutSeconds: 40 })
    await renewal.reached
    await assert.rejects(b.lock.restore(text, { timeoutSeconds: 1 }), { code: 'INVALID_ARGUMENT', argument: 'text' })
    renewal.letGo()
    const second = await restored
    const before = await leaseOn(b.realDriver, scene.lockName)
    await assert.rejects(b.lock.restore(text, { timeoutSeconds: 1 }), { code: 'INVALID_ARGUMENT', argument: 'text' })
    await assertUntouched(b.realDriver, before)
    assert.equal(b.wire.counts.renew.calls, 1)
    assert.ok(second.remainingSeconds > 30, `${second.remainingSeconds}`)
  })

  test('a restore that was never answered bounds what the same instance relies on when it restores again', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock({ callTimeoutSeconds: 0.7 })]
    const text = await (await a.lock.hold(scene.lockName)).serialize()
    const renewal = holdRequest()
    b.wire.once('renew', renewal.fault)
    // It may arrive at any later moment, and then the lease ends after five seconds.
    await assert.rejects(b.lock.restore(text, { timeoutSeconds: 5 }), STORE_UNAVAILABLE)
    const second = await b.lock.restore(text, { timeoutSeconds: 40 })
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
    renewal.letGo()
    await renewal.answer
    assert.equal(await second.extend(40), true)
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
  })

  test('a restore whose answer is lost is an error, and the text can be restored again', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const text = await (await a.lock.hold(scene.lockName)).serialize()
    b.wire.once('renew', losesReply)
    await assert.rejects(b.lock.restore(text), STORE_UNAVAILABLE)
    b.wire.once('renew', fails)
    await assert.rejects(b.lock.restore(text), STORE_UNAVAILABLE)
    assert.equal((await b.lock.restore(text)).held, true)
  })

  test('a hand-over waits for a renewal under way, which could set another end than the next process relies on', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const first = await a.lock.hold(scene.lockName)
    const renewal = holdRequest()
    a.wire.once('renew', renewal.fault)
    const extended = first.extend(10)
    await renewal.reached
    let isWritten = false
    const text = first.serialize().then((written) => {
      isWritten = true
      return written
    })
    await sleep(20) // a hand-over that does not wait would be done
    assert.equal(isWritten, false)
    renewal.letGo()
    const second = await b.lock.restore(await text, { timeoutSeconds: 40 })
    assert.equal(await extended, false)
    assert.ok(second.remainingSeconds > 30, `${second.remainingSeconds}`)
  })

  test('a renewal that was never answered bounds what the next process relies on', async (scene) => {
    const [a, b] = [await scene.lock({ callTimeoutSeconds: 0.1 }), await scene.lock()]
    const first = await a.lock.hold(scene.lockName)
    const renewal = holdRequest()
    a.wire.once('renew', renewal.fault)
    // It may arrive at any later moment, and then the lease ends after five seconds.
    await assert.rejects(first.extend(5), STORE_UNAVAILABLE)
    const second = await b.lock.restore(await first.serialize(), { timeoutSeconds: 40 })
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
    renewal.letGo()
    await renewal.answer
    assert.equal(await second.extend(40), true)
    assert.ok(second.remainingSeconds <= 5, `${second.remainingSeconds}`)
  })

  test('what is left of minHoldSeconds is kept by the next process', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const first = await a.lock.hold(scene.lockName, { minHoldSeconds: 60 })
    const second = await b.lock.restore(await first.serialize())
    assert.equal(await second.release(), true)
    assert.equal((await leasesOn(b.realDriver, scene.lockName)).length, 1)
  })

  test('inside withLock a lease is not handed over, nor is one that was entered again', async (scene) => {
    const { lock } = await scene.lock()
    await lock.withLock(scene.lockName, async (lease) => {
      await assert.rejects(lease.serialize(), { code: 'UNSUPPORTED', message: /whose end gives the lock back/ })
      const inner = await lock.hold(scene.lockName)
      await assert.rejects(inner.serialize(), { code: 'UNSUPPORTED', message: /one of several uses/ })
      assert.deepEqual([lease.held, inner.held], [true, true])
    })
  })

  test('a hand-over that waits for its store ends no later than the call to it', async (scene) => {
    const [a, b] = [await scene.lock({ callTimeoutSeconds: 0.1 }), await scene.lock()]
    const first = await a.lock.hold(scene.lockName)
    a.wire.always('renew', a.wire.hangs)
    const extended = first.extend(30).catch(() => undefined)
    const text = await within('the text', first.serialize())
    await extended
    assert.equal((await b.lock.restore(text)).held, true)
  })
}

/** The same everywhere, sessions included. */
export const answerSignals: Group = (test) => {
  test('an abort ends the waiting for a release’s answer, and the release arrives all the same', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const lease = await a.lock.hold(scene.lockName)
    const release = holdRequest()
    a.wire.once('release', release.fault)
    const abort = new AbortController()
    const released = lease.release({ signal: abort.signal })
    await release.reached
    abort.abort(new Error('enough'))
    await assert.rejects(released, { code: 'ABORTED' })
    assert.equal(lease.held, false)
    release.letGo()
    await within('the lock to be free', b.lock.hold(scene.lockName))
  })

  test('rule 6: a signal that is aborted already does not keep a release from being sent', async (scene) => {
    const [a, b] = [await scene.lock(), await scene.lock()]
    const aborted = AbortSignal.abort()
    await a.lock.hold(scene.lockName)
    await assert.rejects(a.lock.release(scene.lockName, { signal: aborted }), { code: 'ABORTED' })
    const next = await within('the lock to be free', b.lock.hold(scene.lockName))
    await assert.rejects(next.release({ signal: aborted }), { code: 'ABORTED' })
    await within('the lock to be free', a.lock.hold(scene.lockName))
  })

  test('an abort ends the waiting for an extension’s answer, and the lease goes on', async (scene) => {
    const { lock, wire } = await scene.lock()
    const lease = await lock.hold(scene.lockName)
    const gate = deferred()
    wire.once('renew', async (forward) => {
      await gate.promise
      return forward()
    })
    const abort = new AbortController()
    const extended = lock.extend(scene.lockName, 40, { signal: abort.signal })
    abort.abort()
    await assert.rejects(extended, { code: 'ABORTED' })
    gate.resolve()
    assert.equal(lease.held, true)
    assert.equal(await lease.extend(40, { signal: new AbortController().signal }), true)
    const { calls } = wire.counts.renew
    await assert.rejects(lease.extend(40, { signal: abort.signal }), { code: 'ABORTED' })
    assert.equal(wire.counts.renew.calls, calls, 'nothing is sent for a signal that is aborted already')
    await assert.rejects(lease.extend(40, { signal: 7 as never }), { code: 'INVALID_ARGUMENT', argument: 'signal' })
    await assert.rejects(lease.release({ sginal: 7 } as never), { code: 'INVALID_ARGUMENT' })
    assert.equal(lease.held, true)
  })

  test(
    'where a lease lasts as long as its session it cannot be handed over, and stays held',
    ['session'],
    async (scene) => {
      const { lock } = await scene.lock()
      const lease = await lock.hold(scene.lockName)
      await assert.rejects(lease.serialize(), { code: 'UNSUPPORTED', message: /as long as the connection/ })
      assert.equal(lease.held, true)
    },
  )
}
