import assert from 'node:assert/strict'
import { inspect } from 'node:util'
import { describe, inject, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, InvalidArgumentError, ReadWriteLock } from '../../../src/index.ts'
import { makeFolder } from '../../harness/folders.ts'
import { startWorker } from '../../harness/worker.ts'

const source = `
  import { DistributedLock } from 'holdfast'
  const lock = new DistributedLock({ url: process.env.LOCK_URL, holderId: 'the second' })
  let lease
  expose({
    async restore(text) {
      lease = await lock.restore(text, { heartbeat: true })
      return { ...lease.toJSON(), held: lease.held }
    },
    release: () => lease.release(),
    close: () => lock.close(),
  })`

describe('a lease that is handed over to another process', { timeout: 30_000 }, () => {
  const folder = makeFolder('hand-over')
  const stores: Record<string, () => string> = {
    sqlite: () => `sqlite:${folder.path}/locks.db`,
    postgres: () => String(inject('servers').postgres),
    redis: () => String(inject('servers').redis?.[0]),
    redlock() {
      const hosts = inject('servers').redis?.slice(0, 3) ?? []
      return `redlock://${hosts.map((url) => new URL(url).host).join()}?persistent=true`
    },
  }

  it.each(Object.entries(stores))('%s: the lease outlives the first process', async (_, urlOf) => {
    const url = urlOf()
    const name = `hand-over:${process.pid}:${performance.now()}`
    await using worker = await startWorker({ source }, { env: { LOCK_URL: url } })
    const lock = new DistributedLock({ url, holderId: 'the first' })
    await using rival = new DistributedLock({ url })
    const lease = await lock.hold(name, { timeoutSeconds: 10 })
    const restored = (await worker.call('restore', await lease.serialize())) as Record<string, unknown>
    assert.deepEqual(
      [restored['fencingToken'], restored['holderId'], restored['held']],
      [lease.fencingToken, 'the first', true],
    )
    await lock.close()
    assert.equal(await rival.isLocked(name), true)
    assert.equal((await rival.inspect(name)).leases[0]?.fencingToken, lease.fencingToken)
    assert.equal(await worker.call('release'), true)
    assert.equal(await rival.isLocked(name), false)
    await worker.call('close')
  })

  it('with a heartbeat thread, its renewals end first', async () => {
    const url = `sqlite:${folder.path}/thread.db`
    await using first = new DistributedLock({ url, heartbeatThread: true })
    await using second = new DistributedLock({ url, heartbeatThread: true })
    const lease = await first.hold('name', { timeoutSeconds: 5 })
    const restored = await second.restore(await lease.serialize(), { heartbeat: true })
    assert.equal(restored.fencingToken, lease.fencingToken)
    assert.equal(await restored.extend(5), true)
    assert.equal(await restored.release(), true)
    assert.equal(await first.isLocked('name'), false)
  })
})

describe('a text that is not from serialize()', () => {
  it.each([
    ['nothing', undefined],
    ['a number', 7],
    ['an empty text', ''],
    ['another text', 'hunter2'],
    ['another version', 'holdfast-lease-2.aHVudGVyMg'],
    ['no JSON', `holdfast-lease-1.${Buffer.from('hunter2').toString('base64url')}`],
    ['null', textOf(null)],
    ['a missing token', textOf({ ...good(), fencingToken: undefined })],
    ['a token that is no number', textOf({ ...good(), fencingToken: 'hunter2' })],
    ['an empty name', textOf({ ...good(), lockName: '' })],
    ['a time to live that is too short', textOf({ ...good(), ttlMs: 1 })],
    ['an unknown part', textOf({ ...good(), hunter2: 1 })],
    ['a negative time', textOf({ ...good(), minHoldMs: -1 })],
  ])('is refused and not shown: %s', async (_, text) => {
    await using lock = new DistributedLock({ driver: memoryDriver() })
    const error = await lock.restore(text as string).catch((reason: unknown) => reason)
    assert.ok(error instanceof InvalidArgumentError, String(error))
    assert.equal(error.argument, 'text')
    assert.equal(error.cause, undefined)
    const shown = inspect(error, { depth: 9, showHidden: true })
    for (const secret of ['hunter2', 'aHVudGVyMg', String(text).slice(20, 40)]) {
      if (secret !== '') assert.ok(!shown.includes(secret), shown)
    }
  })

  it('a well-formed text without a lease in the store is a lost lease', async () => {
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await assert.rejects(lock.restore(textOf(good())), { code: 'LEASE_LOST', lockName: 'name' })
  })
})

describe('what cannot be handed over', () => {
  it('is a shared lease; a writer’s lease can be handed over to a lock of the same name', async () => {
    const driver = memoryDriver()
    await using both = new ReadWriteLock({ driver })
    await using lock = new DistributedLock({ driver })
    const reader = await both.holdRead('name')
    await assert.rejects(reader.serialize(), { code: 'UNSUPPORTED', message: /only an exclusive lease/ })
    assert.equal(await reader.release(), true)
    const writer = await both.holdWrite('name')
    assert.equal((await lock.restore(await writer.serialize())).held, true)
  })

  it("is one of several uses of a lease with reacquire: 'extend'", async () => {
    await using lock = new DistributedLock({ driver: memoryDriver(), reacquire: 'extend' })
    const lease = await lock.hold('name')
    const other = await lock.hold('name')
    await assert.rejects(lease.serialize(), { code: 'UNSUPPORTED' })
    assert.equal(lease.held, true)
    await other.release()
    assert.match(await lease.serialize(), /^holdfast-lease-/)
  })

  it('is any lease that lasts as long as a session', async () => {
    const url = String(inject('servers').postgres).replace('postgres:', 'postgres+advisory:')
    await using lock = new DistributedLock({ url })
    await assert.rejects(lock.restore(textOf(good())), { code: 'UNSUPPORTED', message: /ends with the connection/ })
  })
})

it('a lease can be handed over again after its function has ended: only running functions count', async () => {
  const driver = memoryDriver()
  await using lock = new DistributedLock({ driver })
  await using other = new DistributedLock({ driver })
  const outer = await lock.hold('outer')
  await lock.withLock('inner', async () => {}, { under: outer })
  const restored = await other.restore(await outer.serialize())
  // Later claims under it are independent of it.
  const result = await lock.acquire('inner', { under: outer })
  assert.deepEqual([restored.held, result.acquired], [true, true])
})

function good() {
  const times = { acquiredAtMs: 1, storeAtMs: 2, ttlMs: 30_000 }
  return { lockName: 'name', claimId: 'a.1-secret', fencingToken: 7, holderId: 'holder', ...times }
}

function textOf(value: unknown): string {
  return `holdfast-lease-1.${Buffer.from(JSON.stringify(value)).toString('base64url')}`
}
