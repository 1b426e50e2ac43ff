import assert from 'node:assert/strict'
import type { Driver } from '../../../core/driver.ts'
import { DistributedLock } from '../../../primitives/lock/distributed-lock.ts'
import { assertUntouched, leaseOn, leasesOn, mustGrant } from '../driver-calls.ts'
import { fails, losesReply } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import type { LockProcess, TestContext } from '../test-context.ts'
import { until } from '../timing.ts'

const STORE_UNAVAILABLE = { name: 'StoreError', code: 'STORE_UNAVAILABLE' }

/** `inspect`, `isLocked` and `ping`. */
export const inspectAndPing: Group = (test) => {
  test('inspect shows the holder to every process, and nothing that could end the lease', async (context) => {
    const [{ lock: a, realDriver }, { lock: b }] = [await context.lock(), await context.lock()]
    const { lockName } = context
    assert.deepEqual(await b.inspect(lockName), { lockName, leases: [], waiters: [], complete: true })
    const lease = await a.hold(lockName)
    const inspection = await b.inspect(lockName)
    const [{ expiresAt, ...shown } = assert.fail('no lease is shown'), ...more] = inspection.leases
    const { holderId, acquiredAt, fencingToken } = lease
    assert.deepEqual(shown, { holderId, acquiredAt, fencingToken, mode: 'exclusive', permits: 1 })
    assert.deepEqual(more, [])
    const { claimId, expiresAtMs } = await leaseOn(realDriver, lockName)
    assert.ok(!JSON.stringify(inspection).includes(claimId))
    assert.equal(expiresAt !== undefined, expiresAtMs !== undefined)
    await lease.release()
    assert.deepEqual((await a.inspect(lockName)).leases, [])
  })

  test('inspect shows metadata', ['metadata'], async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    await a.hold(context.lockName, { metadata: { job: 'report' } })
    assert.deepEqual((await b.inspect(context.lockName)).leases[0]?.metadata, { job: 'report' })
  })

  test('inspect shows the waiters in the order in which they will be served', ['queue'], async (context) => {
    const { lock: a } = await context.lock()
    await a.hold(context.lockName)
    const waiters: LockProcess[] = []
    for (const holderId of ['first', 'second']) {
      const waiter = await context.lock({ holderId })
      waiters.push(waiter)
      void waiter.lock.acquire(context.lockName, { blockingTimeoutSeconds: 60 }).catch(() => undefined)
      await until('its place in the queue', () => waiter.network.counts.acquire.answered > 0)
    }
    const shown = (await a.inspect(context.lockName)).waiters
    assert.deepEqual(
      shown.map(({ waitingSince, ...each }) => ({ ...each, hasTime: waitingSince instanceof Date })),
      ['first', 'second'].map((holderId) => ({ holderId, mode: 'exclusive', permits: 1, hasTime: true })),
    )
  })

  test('inspect shows a lease after another claim of its process has stopped waiting', async (context) => {
    const [{ lock: a, network }, { lock: b }] = [await context.lock(), await context.lock()]
    const [held, wanted] = [context.lockName, context.name('wanted')]
    // No heartbeat may repair what others see of it.
    const { fencingToken } = await a.hold(held, { heartbeat: false })
    await b.hold(wanted)
    const abort = new AbortController()
    const waiting = a.acquire(wanted, { blockingTimeoutSeconds: 60, signal: abort.signal })
    await until('its place in the queue', () => network.counts.acquire.answered > 1)
    abort.abort()
    await assert.rejects(waiting, { code: 'ABORTED' })
    await until('the end of its wait', async () => (await b.inspect(wanted)).waiters.length === 0)
    const shown = (await b.inspect(held)).leases.map((lease) => lease.fencingToken)
    assert.deepEqual(shown, [fencingToken])
  })

  test('isLocked is true for every holder, and false for a free lock', async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const both = () => Promise.all([a.isLocked(context.lockName), b.isLocked(context.lockName)])
    assert.deepEqual(await both(), [false, false])
    const lease = await a.hold(context.lockName)
    assert.deepEqual(await both(), [true, true])
    assert.equal(await b.isLocked(context.name('another')), false)
    await lease.release()
    assert.deepEqual(await both(), [false, false])
  })

  test('isLocked is true for a shared lease too', ['shared'], async (context) => {
    const [{ lock }, driver] = [await context.lock(), await context.driver()]
    await mustGrant(driver, context.claim({ mode: 'shared' }))
    assert.equal(await lock.isLocked(context.lockName), true)
  })

  test('isLocked and inspect write nothing', async (context) => {
    const [{ lock, network }, driver] = [await context.lock(), await context.driver()]
    await mustGrant(driver, context.claim())
    const before = await leaseOn(driver, context.lockName)
    await lock.isLocked(context.lockName)
    await lock.inspect(context.lockName)
    await assertUntouched(driver, before)
    const { acquire, renew, release } = network.counts
    assert.deepEqual([acquire.calls, renew.calls, release.calls], [0, 0, 0])
  })

  test('fault: isLocked and inspect of a store that is down are errors, never "free"', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 0.1 })
    network.once('inspect', fails)
    await assert.rejects(lock.isLocked(context.lockName), STORE_UNAVAILABLE)
    network.once('inspect', fails)
    await assert.rejects(lock.inspect(context.lockName), STORE_UNAVAILABLE)
    network.once('inspect', network.hangs)
    await assert.rejects(lock.isLocked(context.lockName), STORE_UNAVAILABLE)
    await assert.rejects(lock.isLocked(''), { code: 'INVALID_ARGUMENT', argument: 'lockName' })
  })

  test('ping writes to the store, leaves nothing behind, and emits no event', async (context) => {
    const { lock, names, driver, told } = await pinging(context)
    await lock.ping()
    await lock.ping()
    assert.equal(new Set(names).size, 2)
    for (const name of names) assert.deepEqual(await leasesOn(driver, name), [])
    assert.deepEqual(told, [])
    await lock.close()
    await assert.rejects(lock.ping(), { code: 'CLOSED' })
  })

  test('a ping whose answer is lost is an error, and its lock is released', async (context) => {
    const { lock, names, driver, network } = await pinging(context)
    network.once('acquire', losesReply)
    await assert.rejects(lock.ping(), STORE_UNAVAILABLE)
    await until('its lock to be free', async () => (await leasesOn(driver, names[0] as string)).length === 0)
    network.once('acquire', fails)
    await assert.rejects(lock.ping(), STORE_UNAVAILABLE)
    await lock.ping()
  })

  test('a ping whose release fails is an error, and its lock is released', async (context) => {
    const { lock, names, driver, network } = await pinging(context)
    network.once('release', fails)
    await assert.rejects(lock.ping(), STORE_UNAVAILABLE)
    await until('its lock to be free', async () => (await leasesOn(driver, names[0] as string)).length === 0)
  })

  test('failure 26: a ping on a store that hangs is an error in time', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 0.1 })
    network.once('acquire', network.hangs)
    await assert.rejects(lock.ping(), STORE_UNAVAILABLE)
  })
}

/** A lock, the names that it asks for, and the events that it emits. */
async function pinging(context: TestContext) {
  const names: string[] = []
  const watched = (driver: Driver): Driver => ({
    ...driver,
    acquire(claims, call) {
      names.push(...claims.map(({ lockName }) => lockName))
      return driver.acquire(claims, call)
    },
  })
  const {
    primitive: lock,
    network,
    realDriver: driver,
  } = await context.open((to) => new DistributedLock({ driver: watched(to) }))
  const told: string[] = []
  for (const event of ['acquired', 'released', 'releaseFailed', 'refused', 'lost'] as const) {
    lock.on(event, () => told.push(event))
  }
  return { lock, names, driver, network, told }
}
