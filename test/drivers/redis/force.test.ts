import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, describe, it } from 'vitest'
import type { Claim } from '../../../src/core/driver.ts'
import { connectionOf } from '../../../src/drivers/redis/client.ts'
import { acquireArgs } from '../../../src/drivers/redis/format.ts'
import { lockKeys } from '../../../src/drivers/redis/keys.ts'
import { runLeases } from '../../../src/drivers/redis/scripts.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { startRedis } from '../../harness/servers.ts'

// A server of its own: ioredis fails on a command of another client that comes right behind the answer to MONITOR.
const server = await startRedis()
const client = new Redis(server.port, { commandTimeout: 5_000 })
const driver = redisDriver({ client })
afterAll(async () => {
  await driver.close()
  client.disconnect()
  await server[Symbol.asyncDispose]()
})

describe('redis: claims with force', () => {
  it('takes over the key of another client, of any type', async () => {
    const foreign = [
      (key: string) => client.set(key, 'another', 'NX'),
      (key: string) => client.set(key, '["looks like ours"', 'PX', 60_000),
      (key: string) => client.hset(key, 'field', 'value'),
    ]
    for (const take of foreign) {
      const lockName = randomUUID()
      await take(`lock:${lockName}`)
      assert.deepEqual(await outcomes([claimOn(lockName)]), [false])
      assert.deepEqual(await outcomes([{ ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }]), [true])
      assert.match((await client.get(`lock:${lockName}`)) ?? '', /^\["[^"]+",\d+,\d+,\d+,"taker"\]$/)
    }
  })

  it('a forced release also ends the lock of another client, and the next claim is granted', async () => {
    await using lock = new DistributedLock({ driver })
    for (const value of ['another', '["looks like ours"', '[]']) {
      const lockName = randomUUID()
      await client.set(`lock:${lockName}`, value)
      const [ended] = await lock.forceRelease(lockName, { by: 'operator' })
      assert.equal(ended?.holderId, 'another client')
      assert.deepEqual(await outcomes([claimOn(lockName)]), [true])
    }
  })

  it('a forced release leaves a lock that another client took after the inspection', async () => {
    const lockName = randomUUID()
    const key = `lock:${lockName}`
    const [held] = await driver.acquire([claimOn(lockName)], newCall())
    assert.ok(held && 'granted' in held && held.granted)
    const inspect: typeof driver.inspect = async (query) => {
      const page = await driver.inspect(query)
      await client.set(key, 'another client, which lives', 'PX', 60_000)
      return page
    }
    await using lock = new DistributedLock({ driver: { ...driver, inspect } })
    assert.deepEqual(await lock.forceRelease(lockName, { by: 'operator' }), [])
    assert.equal(await client.get(key), 'another client, which lives')
  })

  it('without a prefix, takes only locks of Holdfast: another key may be anything', async () => {
    const bare = redisDriver({ client, prefix: '', onWarning() {} })
    await using lock = new DistributedLock({ driver: bare })
    const values = [
      ['string', (key: string) => client.set(key, 'a session', 'PX', 60_000)],
      ['string', (key: string) => client.set(key, '["looks like ours"')],
      ['hash', (key: string) => client.hset(key, 'name', 'ada')],
      ['list', (key: string) => client.rpush(key, 'job 1', 'job 2')],
    ] as const
    for (const [type, write] of values) {
      const key = randomUUID()
      await write(key)
      const before = await client.dumpBuffer(key)
      await assert.rejects(lock.forceRelease(key, { by: 'operator' }), { code: 'UNSUPPORTED', message: /prefix/ })
      const [, answer] = await bare.acquire(
        [claimOn(randomUUID()), { ...claimOn(key), forceUpTo: Number.MAX_SAFE_INTEGER }],
        newCall(),
      )
      assert.ok(answer instanceof Error && answer.message.includes('prefix'), `${answer}`)
      assert.deepEqual([await client.type(key), await client.dumpBuffer(key)], [type, before])
    }
    const lockName = randomUUID()
    await bare.acquire([claimOn(lockName)], newCall())
    assert.equal((await lock.forceRelease(lockName, { by: 'operator' })).length, 1)
    await bare.acquire([{ ...claimOn(lockName), mode: 'shared' }], newCall())
    assert.equal((await lock.forceRelease(lockName, { by: 'operator' })).length, 1)
    assert.equal(await client.exists(lockName), 0)
    await bare.close()
  })

  it('notifies every listener which leases it ended, and names the new holder', async () => {
    const lockName = randomUUID()
    const lost: [string, string][] = []
    const other = redisDriver({ client })
    const stop = await other.listen?.({
      wake() {},
      granted() {},
      disconnected() {},
      lost: (claimId, { message }) => lost.push([claimId, message]),
    })
    const readers = [1, 2].map(() => ({ ...claimOn(lockName), mode: 'shared' as const }))
    await other.acquire(readers, newCall())
    const taker = { ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }
    await driver.acquire([taker], newCall())
    const second = { ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }
    await driver.acquire([second], newCall())
    while (lost.length < 3) await client.ping()
    const ids = [...readers.map(({ claimId }) => claimId).sort(), taker.claimId]
    assert.deepEqual(
      [
        ...lost
          .slice(0, 2)
          .map(([claimId]) => claimId)
          .sort(),
        lost[2]?.[0],
      ],
      ids,
    )
    for (const [, message] of lost) assert.equal(message, 'it was force-released by taker')
    await stop?.()
    await other.close()
  })

  it('rule 13: ends at most 256 leases in one call, and publishes at most as many in one message', async () => {
    const { lockName, readers, holder, others } = await heldByMany(600)
    const told: string[][] = []
    const listener = client.duplicate()
    await listener.subscribe('holdfast:forced')
    const mine = new Set(readers.map(({ claimId }) => claimId))
    listener.on('message', (_, text) => {
      const { lost } = JSON.parse(text) as { lost: string[] }
      if (lost.some((id) => mine.has(id))) told.push(lost)
    })
    const monitor = await client.monitor()
    const ended: number[] = []
    monitor.on('monitor', (_, [command = '', ...args], source) => {
      const isOurs = source === 'lua' && command.toUpperCase() === 'ZREM' && args[0]?.includes(lockName)
      if (isOurs && args.length > 2) ended.push(args.length - 1)
    })
    const taker = { ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }
    assert.deepEqual(await outcomes([taker, ...others]), [true, true])
    while (told.flat().length < 600) await client.ping()
    assert.deepEqual(
      told.map((lost) => lost.length),
      [256, 256, 88],
    )
    while (ended.length < 3) await client.ping()
    assert.deepEqual(ended, [256, 256, 88])
    assert.deepEqual(new Set(told.flat()), mine)
    assert.deepEqual(await driver.renew([holder]), ['lost'])
    monitor.disconnect()
    listener.disconnect()
  })

  it('during several calls, no other claim is granted, and none of the leases is renewed', async () => {
    const { lockName, readers, holder } = await heldByMany(600)
    const waiter = { ...claimOn(lockName), waiterTtlMs: 60_000 }
    assert.deepEqual(await outcomes([waiter]), [false])
    const taker = { ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }
    await forceOnce(taker)
    const { leases } = await driver.inspect({ lockName })
    assert.ok(leases.length > 1, 'some are left')
    const newcomers = [claimOn(lockName), { ...claimOn(lockName), mode: 'shared' as const }, waiter]
    assert.deepEqual(await outcomes(newcomers), [false, false, false])
    assert.equal(await client.set(`lock:${lockName}`, 'another client', 'NX'), null)
    const left = leases.filter(({ claimId }) => claimId !== taker.claimId)
    assert.deepEqual(new Set(await driver.renew(left.map((lease) => ({ ...lease, ttlMs: 60_000 })))), new Set(['lost']))
    assert.deepEqual(await driver.renew([holder]), ['lost'])
    // The same claim continues.
    assert.deepEqual(await outcomes([taker]), [true])
    assert.deepEqual(
      (await driver.inspect({ lockName })).leases.map(({ claimId }) => claimId),
      [taker.claimId],
    )
    assert.deepEqual(await driver.release(readers.slice(0, 1)), [false])
    assert.deepEqual(await driver.release([taker]), [true])
    assert.deepEqual(await outcomes([waiter]), [true])
    assert.deepEqual(await driver.release([waiter]), [true])
  })

  it('a forced release that is not completed leaves the lock to the remaining leases', async () => {
    const { lockName } = await heldByMany(600)
    const waiter = { ...claimOn(lockName), waiterTtlMs: 60_000 }
    assert.deepEqual(await outcomes([waiter]), [false])
    const taker = { ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }
    await forceOnce(taker)
    assert.deepEqual(await driver.release([taker]), [true])
    assert.equal(await client.get(`lock:${lockName}`), 'holdfast:shared')
    assert.deepEqual(await outcomes([waiter]), [false])
    const { leases } = await driver.inspect({ lockName })
    assert.equal(leases.length, 600 - 256)
    assert.deepEqual(new Set(await driver.release(leases)), new Set([true]))
    assert.deepEqual(await outcomes([waiter]), [true])
    assert.deepEqual(await driver.release([waiter]), [true])
    const { data, order } = lockKeys('lock:', lockName)
    assert.equal(await client.exists(`lock:${lockName}`, data, order), 0)
  })

  it('up to a token, is refused for a newer reader that holds the lock, not for one that has left', async () => {
    const { lockName, readers } = await heldByMany(3)
    const newest = { ...claimOn(lockName), mode: 'shared' as const }
    const { leases } = await driver.inspect({ lockName })
    const forceUpTo = Math.max(...leases.map(({ fencingToken }) => fencingToken))
    const taker = { ...claimOn(lockName), forceUpTo }
    assert.deepEqual(await outcomes([newest, taker]), [true, false])
    assert.equal((await driver.inspect({ lockName })).leases.length, readers.length + 1)
    assert.deepEqual(await driver.release([newest]), [true])
    assert.deepEqual(await outcomes([taker]), [true])
  })

  it('ends a thousand shared leases and leaves no data behind', async () => {
    const lockName = randomUUID()
    const readers = Array.from({ length: 1_000 }, () => ({ ...claimOn(lockName), mode: 'shared' as const }))
    assert.deepEqual(new Set(await outcomes(readers)), new Set([true]))
    const taker = { ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }
    assert.deepEqual(await outcomes([taker]), [true])
    const { data, order } = lockKeys('lock:', lockName)
    assert.equal(await client.exists(data, order), 0)
    assert.deepEqual(await driver.release([taker]), [true])
    assert.equal(await client.exists(`lock:${lockName}`), 0)
  })

  it('leaves no data of expired waiters behind', async () => {
    const lockName = randomUUID()
    assert.deepEqual(await outcomes([claimOn(lockName), { ...claimOn(lockName), waiterTtlMs: 20 }]), [true, false])
    const { data, order } = lockKeys('lock:', lockName)
    await sleep(30) // for the place to expire; the keys last for another second
    assert.deepEqual(await outcomes([{ ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER }]), [true])
    assert.equal(await client.exists(data, order), 0)
  })
})

const claimOn = (lockName: string): Claim => ({
  lockName,
  claimId: randomUUID(),
  holderId: 'taker',
  mode: 'exclusive',
  permits: 1,
  ttlMs: 60_000,
  waiterTtlMs: 0,
})

const outcomes = async (claims: readonly Claim[]): Promise<boolean[]> =>
  (await driver.acquire(claims, newCall())).map((answer) => !(answer instanceof Error) && answer.granted)

/** A lock with this many readers, the first of them with its token, and a claim on another lock. */
async function heldByMany(count: number) {
  const lockName = randomUUID()
  const readers = Array.from({ length: count }, () => ({ ...claimOn(lockName), mode: 'shared' as const }))
  const answers = await driver.acquire(readers, newCall())
  const [first] = answers
  assert.ok(first && 'granted' in first && first.granted)
  const holder = { ...(readers[0] as Claim), fencingToken: first.fencingToken }
  return { lockName, readers, holder, others: [claimOn(randomUUID())] }
}

/** The first call of a forced release, after which its process stops. */
async function forceOnce(taker: Claim): Promise<void> {
  const parts = { connection: connectionOf(client), prefix: 'lock:', timeoutMs: 5_000 }
  const list = { operation: 'acquire', requests: [taker], args: acquireArgs([taker]) } as const
  const [, answer] = await runLeases(parts, 0, list, (reply) => reply)
  assert.deepEqual(answer, ['m'])
}
