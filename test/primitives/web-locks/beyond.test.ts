import assert from 'node:assert/strict'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, describe, it } from 'vitest'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import {
  AbortedError,
  ClosedError,
  DistributedLock,
  InvalidArgumentError,
  LeaseLostError,
  StoreError,
} from '../../../src/index.ts'
import { type LockManager, WebLocks, type WebLocksOptions } from '../../../src/primitives/web-locks/web-locks.ts'
import { type FaultyNetwork, faultyNetwork } from '../../../src/testing/conformance/faulty-network.ts'
import { makeFolder } from '../../harness/folders.ts'
import { startRedis } from '../../harness/servers.ts'
import { startWorker } from '../../harness/worker.ts'
import { hold, isFree, rejectsWithName } from './test-context.ts'

/** What is not in the specification: leases that end, stores that cannot be reached, processes that die. */

const opened: WebLocks[] = []
afterEach(async () => {
  for (const web of opened.splice(0)) await web.close()
})

const folder = makeFolder('web-locks-beyond')
afterAll(() => folder.remove())

function openWeb(options: WebLocksOptions = {}): WebLocks {
  const web = new WebLocks({ driver: memoryDriver(), ...options })
  opened.push(web)
  return web
}

function webAt(url: string): WebLocks {
  const web = new WebLocks({ url })
  opened.push(web)
  return web
}

const open = (options?: WebLocksOptions): LockManager => openWeb(options).locks

function openOverNetwork(options: WebLocksOptions = {}): { locks: LockManager; network: FaultyNetwork } {
  const network = faultyNetwork(memoryDriver())
  return { locks: open({ driver: network.driver, ...options }), network }
}

const causeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => assert.fail('it resolved'),
    (error: { cause: unknown }) => error.cause,
  )

it('query does not show the notes of waiting claims, even with an empty prefix', async () => {
  const driver = memoryDriver()
  const locks = open({ driver, prefix: '' })
  await using lock = new DistributedLock({ driver, deadlockAfterSeconds: 0.02, holderId: 'me' })
  const x = await lock.hold('x')
  const waiting = lock.withLock('own', () => lock.withLock('x', () => 'done', { blockingTimeoutSeconds: 60 }))
  const notes = async () => (await driver.inspect({ prefix: 'waits:' })).leases.length
  while ((await notes()) === 0) await sleep(5)
  const locked = hold(locks, 'waits:')
  await locked.granted
  const { held } = await locks.query()
  assert.deepEqual(held.map(({ name }) => name).sort(), ['own', 'waits:', 'x'])
  locked.end()
  await x.release()
  assert.equal(await waiting, 'done')
})

describe('a lock that is lost', () => {
  it('rejects with an AbortError whose cause is the LeaseLostError, and aborts its Lock’s signal', async () => {
    const driver = memoryDriver()
    const locks = open({ driver, prefix: '', timeoutSeconds: 0.3 })
    const holding = hold(locks, 'name')
    const { signal, fencingToken } = await holding.granted
    const [lease] = (await driver.inspect({ lockName: 'name' })).leases
    assert.ok(lease !== undefined)
    assert.equal(fencingToken, lease.fencingToken)
    await driver.release([{ lockName: 'name', claimId: lease.claimId }])
    await rejectsWithName(holding.done, 'AbortError')
    const cause = await causeOf(holding.done)
    assert.ok(cause instanceof LeaseLostError)
    assert.equal(signal.reason, cause)
  })

  for (const steal of [true, false]) {
    it(`rejects also if only the release notices it, on a store that ${steal ? 'can' : 'cannot'} steal`, async () => {
      const store = memoryDriver()
      const driver = { ...store, capabilities: { ...store.capabilities, steal } }
      const holding = hold(open({ driver, prefix: '' }), 'name')
      await holding.granted
      const [lease] = (await store.inspect({ lockName: 'name' })).leases
      assert.ok(lease !== undefined)
      await store.release([{ lockName: 'name', claimId: lease.claimId }])
      holding.end()
      await rejectsWithName(holding.done, 'AbortError')
      assert.ok((await causeOf(holding.done)) instanceof LeaseLostError)
    })
  }

  it('is lost when the store does not answer for the duration of its lease', async () => {
    const { locks, network } = openOverNetwork({ timeoutSeconds: 0.3 })
    const holding = hold(locks, 'name')
    await holding.granted
    network.cut()
    await rejectsWithName(holding.done, 'AbortError')
    network.heal()
  })

  it('rejects at once, before its callback ends', async () => {
    const store = createMemoryStore()
    const [locks, taker] = [open({ driver: memoryDriver({ store }) }), open({ driver: memoryDriver({ store }) })]
    const robbed = locks.request('name', async () => {
      await taker.request('name', { steal: true }, () => {})
      throw new Error('its own')
    })
    await rejectsWithName(robbed, 'AbortError')
  })
})

describe('locks that are closed', () => {
  it('releases its locks and ends its waits: both reject with an AbortError', async () => {
    const store = createMemoryStore()
    const [web, other] = [openWeb({ driver: memoryDriver({ store }) }), open({ driver: memoryDriver({ store }) })]
    const [holding, waiting] = [hold(web.locks, 'name'), hold(web.locks, 'name')]
    await holding.granted
    await web.locks.query()
    await web.close()
    for (const { done } of [holding, waiting]) {
      await rejectsWithName(done, 'AbortError')
      assert.ok((await causeOf(done)) instanceof ClosedError)
    }
    assert.equal(waiting.isGranted, false)
    assert.equal(await isFree(other, 'name'), true)
  })

  it('rejects later calls with an InvalidStateError', async () => {
    const web = openWeb()
    await web.close()
    assert.equal(web.closed, true)
    await rejectsWithName(
      web.locks.request('-', () => {}),
      'InvalidStateError',
    )
    await rejectsWithName(web.locks.query(), 'InvalidStateError')
  })

  it('lets held locks be released for drainSeconds, and ends the waits at once', async () => {
    const web = openWeb()
    const [holding, waiting] = [hold(web.locks, 'name'), hold(web.locks, 'name')]
    await holding.granted
    const closed = web.close({ drainSeconds: 60 })
    await rejectsWithName(waiting.done, 'AbortError')
    holding.end('done')
    assert.equal(await holding.done, 'done')
    await closed
  })
})

describe('a store that cannot be reached', () => {
  it('a request that is aborted for any reason while the store is being opened does not block its name', async () => {
    // The first use opens the store, which takes at least one turn of the event loop.
    const { locks } = webAt('memory:aborted-while-opening')
    const controller = new AbortController()
    const first = locks.request('name', { signal: controller.signal }, () => assert.fail('granted'))
    const reason = new AbortedError('something else', undefined)
    controller.abort(reason)
    await assert.rejects(first, (error) => error === reason)
    assert.equal(await locks.request('name', () => 'granted'), 'granted')
    assert.deepEqual(await locks.query(), { held: [], pending: [] })
  })

  const fails = async (): Promise<never> => {
    throw new StoreError('the store is down')
  }

  it('delays requests that wait, but not ifAvailable and query', async () => {
    const { locks, network } = openOverNetwork()
    network.always('acquire', fails)
    network.always('inspect', fails)
    const request = hold(locks, 'name')
    await assert.rejects(isFree(locks, 'other'), StoreError)
    await assert.rejects(locks.query(), StoreError)
    assert.equal(request.isGranted, false)
    network.heal()
    await request.granted
    request.end('result')
    assert.equal(await request.done, 'result')
  })

  it('does not let a later request overtake the failed ones', async () => {
    for (const failures of [1, 2, 3, 4, 5]) {
      const { locks, network } = openOverNetwork()
      const order: number[] = []
      const requests: Promise<unknown>[] = []
      for (let failure = 0; failure < failures; failure += 1) network.once('acquire', fails)
      for (let index = 0; index < 20; index += 1) {
        requests.push(locks.request('name', () => order.push(index)))
        if (index % 4 === 3) await new Promise(setImmediate)
      }
      await Promise.all(requests)
      assert.deepEqual(order, [...order.keys()])
    }
  })

  it('rejects the request if asking again cannot help', async () => {
    const { locks, network } = openOverNetwork()
    network.always('acquire', async () => {
      throw new StoreError('no database', { retryable: false })
    })
    await assert.rejects(
      locks.request('name', () => {}),
      { code: 'STORE_UNAVAILABLE', message: 'no database' },
    )
  })

  it('does not delay the abort of a request behind an unanswered one', async () => {
    const { locks, network } = openOverNetwork()
    network.once('acquire', network.hangs)
    const first = hold(locks, 'name')
    await new Promise(setImmediate)
    const controller = new AbortController()
    const second = hold(locks, 'name', { signal: controller.signal })
    controller.abort()
    await rejectsWithName(second.done, 'AbortError')
    assert.equal(first.isGranted, false)
    network.heal()
    await first.granted
    first.end()
    await first.done
    assert.equal(second.isGranted, false)
  })

  it('can be down at the first use, and come back', async () => {
    await using redis = await startRedis()
    await redis.kill()
    const { locks } = webAt(redis.url)
    const request = locks.request('name', () => 'granted')
    await redis.restart()
    assert.equal(await request, 'granted')
  })
})

describe('settings', () => {
  it('are checked before anything is opened', () => {
    const wrong: WebLocksOptions[] = [{ prefix: '\0' }, { prefix: 'x'.repeat(101) }, { timeoutSeconds: 0 }]
    for (const options of wrong) assert.throws(() => new WebLocks(options), InvalidArgumentError)
    assert.throws(() => new WebLocks({ prefix: 7 as unknown as string }), /prefix must be text/)
  })
})

describe('two processes on one file', { timeout: 60_000 }, () => {
  const source = `
    import { WebLocks } from 'holdfast/web-locks'
    const { locks, holderId } = new WebLocks({ url: process.env.STORE, timeoutSeconds: 1 })
    let ended
    expose({
      hold: (name, options) => new Promise((granted, failed) => {
        ended = locks.request(name, options, (lock) => {
          granted(holderId)
          return new Promise(() => {})
        }).then(() => 'resolved', (error) => error.name)
        ended.then(failed)
      }),
      ended: () => ended,
      query: () => locks.query(),
    })`
  const store = { STORE: `sqlite:${join(folder.path, 'locks.db')}` }

  it('exclude each other; a waiter follows a killed holder; a robbed holder is notified', async () => {
    await using first = await startWorker({ source }, { env: store })
    await using second = await startWorker({ source }, { env: store })
    await using third = await startWorker({ source }, { env: store })
    const firstId = await first.call('hold', 'name', {})
    const waiting = second.call('hold', 'name', {})
    let pending: unknown[] = []
    while (pending.length === 0) ({ pending } = (await third.call('query')) as { pending: unknown[] })
    const { held } = (await third.call('query')) as { held: unknown }
    assert.deepEqual(held, [{ name: 'name', mode: 'exclusive', clientId: firstId }])
    await first.kill()
    const secondId = await waiting
    assert.notEqual(secondId, firstId)
    await third.call('hold', 'name', { steal: true })
    assert.equal(await second.call('ended'), 'AbortError')
  })
})
