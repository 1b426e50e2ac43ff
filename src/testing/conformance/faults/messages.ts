import assert from 'node:assert/strict'
import { WebLocks } from '../../../primitives/web-locks/web-locks.ts'
import { leaseOn, mustGrant } from '../driver-calls.ts'
import { fails } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import type { TestContext } from '../test-context.ts'
import { deferred, until, within } from '../timing.ts'

/** Rule 15: a message is not proof. It may be old, or come from a client that has no rights on the lock. */
export const messageFaults: Group = (test) => {
  test('rule 15: a holder that gets a false report of a forced release asks, and goes on', async (context) => {
    const { lock, network, claimId, end, request } = await listeningHolder(context)
    const [before, endsAtMs] = [
      network.counts.renew.answered,
      (await leaseOn(network.driver, context.lockName)).expiresAtMs,
    ]
    network.deliver((listener) => listener.lost(claimId, new Error('it was force-released')))
    assert.equal(lock.signal.aborted, false, 'it believed the message')
    await until('the store to be asked', () => network.counts.renew.answered > before)
    // When the next answer comes, the first one has been dealt with.
    await until('the store to be asked again', () => {
      network.deliver((listener) => listener.lost(claimId, new Error('it was force-released')))
      return network.counts.renew.answered > before + 1
    })
    assert.equal(lock.signal.aborted, false)
    const leaseNow = await leaseOn(network.driver, context.lockName)
    assert.equal(leaseNow.claimId, claimId)
    assert.ok((leaseNow.expiresAtMs ?? 0) >= (endsAtMs ?? 0) - 2, 'the lease ends sooner')
    end()
    assert.equal(await within('the request', request), 'done')
  })

  test('a holder that gets a report of a forced release loses the lock when the store confirms it', async (context) => {
    const { lock, network, claimId, end, request } = await listeningHolder(context)
    const lost = deferred()
    lock.signal.addEventListener('abort', () => lost.resolve())
    // If the store sends a message of its own, it is lost.
    network.mute()
    await mustGrant(await context.driver(), context.claim({ forceUpTo: Number.MAX_SAFE_INTEGER }))
    assert.equal(lock.signal.aborted, false)
    network.deliver((listener) => listener.lost(claimId, new Error('it was force-released')))
    await within('the loss', lost.promise)
    assert.match(String(lock.signal.reason), /it was force-released/)
    end()
    await assert.rejects(request, { name: 'AbortError' })
  })

  test('rule 3: a reported forced release is no loss while the store cannot be asked', async (context) => {
    const { lock, network, claimId, end, request } = await listeningHolder(context)
    const before = network.counts.renew.calls
    network.once('renew', fails)
    network.deliver((listener) => listener.lost(claimId, new Error('it was force-released')))
    await until('the store to be asked', () => network.counts.renew.calls > before)
    await until('the store to be asked again', () => {
      network.deliver((listener) => listener.lost(claimId, new Error('it was force-released')))
      return network.counts.renew.answered > 0
    })
    assert.equal(lock.signal.aborted, false)
    end()
    assert.equal(await within('the request', request), 'done')
  })

  test('rule 13: a thousand messages about one lease cost at most two requests at a time', async (context) => {
    const { network, claimId, end, request } = await listeningHolder(context)
    const before = network.counts.renew.calls
    for (let turn = 0; turn < 1_000; turn += 1) {
      network.deliver((listener) => listener.lost(claimId, new Error('it was force-released')))
    }
    await until('the store to be asked', () => network.counts.renew.answered > before)
    assert.ok(network.counts.renew.calls <= before + 2, `${network.counts.renew.calls - before} renewals`)
    end()
    assert.equal(await within('the request', request), 'done')
  })
}

/** A lock whose holder waits for another lock. So it has a subscription. */
async function listeningHolder(context: TestContext) {
  const options = { prefix: '', timeoutSeconds: 60 }
  const { primitive, network } = await context.open((driver) => new WebLocks({ driver, ...options }))
  const [taken, ended] = [deferred<{ readonly signal: AbortSignal }>(), deferred()]
  const request = primitive.locks.request(context.lockName, async (lock) => {
    assert.ok(lock)
    taken.resolve(lock)
    await ended.promise
    return 'done'
  })
  const lock = await taken.promise
  const other = context.name('other')
  await mustGrant(await context.driver(), context.claim({ lockName: other }))
  const stop = new AbortController()
  const waiting = primitive.locks.request(other, { signal: stop.signal }, () => {})
  // The test that awaits one of them reports a rejection.
  for (const each of [request, waiting]) each.catch(() => {})
  await until('the subscription', () => network.counts.listen.answered > 0)
  const { claimId } = await leaseOn(network.driver, context.lockName)
  const end = (): void => {
    stop.abort()
    ended.resolve()
  }
  return { lock, network, claimId, request, end }
}
