import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, describe, inject, it } from 'vitest'
import type { Claim } from '../../src/core/driver.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { lockKeys } from '../../src/drivers/support/redis-keys.ts'
import { DistributedLock } from '../../src/index.ts'

const client = new Redis(inject('servers').redis?.[0] ?? '', { commandTimeout: 5_000 })
const driver = redisDriver({ client })
afterAll(async () => {
  await driver.close()
  client.disconnect()
})

describe('redis: stealing', () => {
  it('takes over the key of a client that knows nothing of Holdfast, whatever its type', async () => {
    const foreign = [
      (key: string) => client.set(key, 'somebody', 'NX'),
      (key: string) => client.set(key, '["looks like ours"', 'PX', 60_000),
      (key: string) => client.hset(key, 'field', 'value'),
    ]
    for (const take of foreign) {
      const lockName = randomUUID()
      await take(`lock:${lockName}`)
      assert.deepEqual(await outcomes([claimOn(lockName)]), [false])
      assert.deepEqual(await outcomes([{ ...claimOn(lockName), steal: true }]), [true])
      assert.match((await client.get(`lock:${lockName}`)) ?? '', /^\["[^"]+",\d+,\d+,\d+,"thief"\]$/)
    }
  })

  it('a forced release ends the lock of a client that knows nothing of Holdfast, too, and lets the next one in', async () => {
    await using lock = new DistributedLock({ driver })
    for (const value of ['somebody', '["looks like ours"', '[]']) {
      const lockName = randomUUID()
      await client.set(`lock:${lockName}`, value)
      const [ended] = await lock.forceRelease(lockName, { by: 'operator' })
      assert.equal(ended?.holderId, 'another client')
      assert.deepEqual(await outcomes([claimOn(lockName)]), [true])
    }
  })

  it('tells every listener whose leases it ended, and by whom', async () => {
    const lockName = randomUUID()
    const lost: [string, string][] = []
    const other = redisDriver({ client })
    const stop = await other.listen?.({
      wake() {},
      granted() {},
      deaf() {},
      lost: (claimId, { message }) => lost.push([claimId, message]),
    })
    const readers = [1, 2].map(() => ({ ...claimOn(lockName), mode: 'shared' as const }))
    await other.acquire(readers)
    const thief = { ...claimOn(lockName), steal: true as const }
    await driver.acquire([thief])
    const second = { ...claimOn(lockName), steal: true as const }
    await driver.acquire([second])
    while (lost.length < 3) await client.ping()
    const ids = [...readers.map(({ claimId }) => claimId).sort(), thief.claimId]
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
    for (const [, message] of lost) assert.equal(message, 'it was stolen by thief')
    await stop?.()
    await other.close()
  })

  it('ends a thousand shared leases in one step, and leaves nothing of them behind', async () => {
    const lockName = randomUUID()
    const readers = Array.from({ length: 1_000 }, () => ({ ...claimOn(lockName), mode: 'shared' as const }))
    assert.deepEqual(new Set(await outcomes(readers)), new Set([true]))
    const thief = { ...claimOn(lockName), steal: true as const }
    assert.deepEqual(await outcomes([thief]), [true])
    const { data, order } = lockKeys('lock:', lockName)
    assert.equal(await client.exists(data, order), 0)
    assert.deepEqual(await driver.release([thief]), [true])
    assert.equal(await client.exists(`lock:${lockName}`), 0)
  })

  it('leaves nothing behind of waiters whose places have run out', async () => {
    const lockName = randomUUID()
    assert.deepEqual(await outcomes([claimOn(lockName), { ...claimOn(lockName), waitMs: 20 }]), [true, false])
    const { data, order } = lockKeys('lock:', lockName)
    await sleep(30) // for the place to run out; the keys themselves last for a second more
    assert.deepEqual(await outcomes([{ ...claimOn(lockName), steal: true }]), [true])
    assert.equal(await client.exists(data, order), 0)
  })
})

const claimOn = (lockName: string): Claim => ({
  lockName,
  claimId: randomUUID(),
  holderId: 'thief',
  mode: 'exclusive',
  permits: 1,
  ttlMs: 60_000,
  waitMs: 0,
})

const outcomes = async (claims: readonly Claim[]): Promise<boolean[]> =>
  (await driver.acquire(claims)).map((answer) => !(answer instanceof Error) && answer.granted)
