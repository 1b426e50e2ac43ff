import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { afterAll, describe, it } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { type Server, startRedis } from '../../harness/servers.ts'

/** Groups on a server that cannot write, and beside other clients on the same keys. */

const clients: Redis[] = []
let counter = 0

afterAll(() => {
  for (const client of clients) client.disconnect()
})

describe('redis: groups', () => {
  for (const [setting, code] of [
    ['min-replicas-to-write', 'NOREPLICAS'],
    ['maxmemory', 'OOM'],
  ] as const) {
    it(`a group that the server cannot write (${code}) is an error, and no part of it is kept`, async () => {
      await using server = await startRedis()
      const [admin, driver] = [open(server), redisDriver({ client: open(server), onWarning() {} })]
      // If a name in the list has waiters, the script takes its slow path.
      for (const others of [[], [await waitedFor(driver)]]) {
        await admin.config('SET', setting, '1')
        const members = groupOn('a', 'b', 'c')
        const answers = await driver.acquire([...members, ...others], newCall()).catch((error: Error) => [error])
        await admin.config('SET', setting, '0')
        // After a delete, a server that is out of memory accepts all writes of a script.
        if (answers.slice(0, 3).every(isGranted) && others.length > 0 && code === 'OOM') continue
        assert.match(String(answers[0]), new RegExp(code))
        for (const { lockName } of members) assert.equal(await admin.exists(`lock:${lockName}`), 0, lockName)
        assert.deepEqual((await driver.acquire(members, newCall())).map(isGranted), [true, true, true])
        await driver.release(members)
      }
      await driver.close()
    })
  }

  it('a group that replicas do not confirm fails completely and is released', async () => {
    await using server = await startRedis()
    const replicas = { count: 1, waitSeconds: 0.05 }
    const driver = redisDriver({ client: open(server), replicas, onWarning() {} })
    const answers = await driver.acquire(groupOn('a', 'b'), newCall())
    assert.ok(answers.every((answer) => answer instanceof Error && /0 of 1 replicas/.test(answer.message)))
    const lock = new DistributedLock({ driver })
    await assert.rejects(
      lock.withLocks(['c', 'd'], () => assert.fail('it ran')),
      /0 of 1 replicas/,
    )
    await lock.close()
    const names = (await redisDriver({ client: open(server) }).inspect({})).leases.map(({ lockName }) => lockName)
    assert.deepEqual(names.sort(), ['a', 'b'], 'the driver itself leaves it to its caller to give back')
  })

  it('a name that is a key of the driver’s own is an error for its group, and for no other claim', async () => {
    await using server = await startRedis()
    const [admin, driver] = [open(server), redisDriver({ client: open(server), prefix: '', onWarning() {} })]
    const [other] = groupOn('other') as [Claim]
    const answers = await driver.acquire([other, ...groupOn('a', 'holdfast:token', 'b')], newCall())
    assert.deepEqual(answers.map(isGranted), [true, false, false, false])
    assert.ok(answers.slice(1).every((answer) => answer instanceof Error))
    assert.deepEqual(await Promise.all(['a', 'b'].map((name) => admin.exists(name))), [0, 0])
    await driver.close()
  })

  it('a lock of another client, of any type, blocks a group, and the other names stay free', async () => {
    await using server = await startRedis()
    const [admin, driver] = [open(server), redisDriver({ client: open(server), onWarning() {} })]
    await admin.set('lock:theirs', 'a value of theirs', 'PX', 60_000)
    await admin.rpush('lock:list', 'of another type')
    for (const [theirs, holder] of [
      ['theirs', 'another client'],
      ['list', undefined],
    ] as const) {
      const answers = await driver.acquire(groupOn('a', theirs, 'b'), newCall())
      assert.deepEqual(
        answers.map((answer) => 'granted' in answer && !answer.granted && (answer.holder?.holderId ?? answer.free)),
        [true, holder, true],
      )
    }
    assert.deepEqual(
      await Promise.all(['lock:a', 'lock:b', 'holdfast:token'].map((key) => admin.exists(key))),
      [0, 0, 0],
    )
    await driver.close()
  })

  it('a name that is twice in a group is never granted twice', async () => {
    await using server = await startRedis()
    const driver = redisDriver({ client: open(server), onWarning() {} })
    for (const others of [[], [await waitedFor(driver)]]) {
      const answers = await driver.acquire([...others, ...groupOn('a', 'b', 'a')], newCall())
      assert.ok(!answers.some(isGranted))
    }
    await driver.close()
  })
})

function open(server: Server): Redis {
  const client = new Redis(server.port, { maxRetriesPerRequest: 1 })
  client.on('error', () => {})
  clients.push(client)
  return client
}

function groupOn(...names: readonly string[]): Claim[] {
  counter += 1
  const terms = {
    holderId: 'h',
    mode: 'exclusive',
    permits: 1,
    ttlMs: 60_000,
    waiterTtlMs: 0,
    group: `g${counter}`,
  } as const
  return names.map((lockName, at) => ({ lockName, claimId: `${counter}.${at}`, ...terms }))
}

/** A claim on a held name with waiters. */
async function waitedFor(driver: Driver): Promise<Claim> {
  const [claim] = groupOn('waited for') as [Claim]
  const { group: _, ...alone } = claim
  await driver.acquire([alone, { ...alone, claimId: `${alone.claimId} waits`, waiterTtlMs: 60_000 }], newCall())
  return { ...alone, claimId: `${alone.claimId} asks` }
}

const isGranted = (answer: object): boolean => 'granted' in answer && answer.granted === true
