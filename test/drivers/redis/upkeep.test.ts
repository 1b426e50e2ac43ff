import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { COUNTER, lockKeys } from '../../../src/drivers/redis/keys.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import {
  ask,
  claim,
  client,
  driverOn,
  granted,
  name,
  patience,
  shared,
  untilGranted,
} from '../../harness/redis-server.ts'
import { startRedis } from '../../harness/servers.ts'

/** What a call does besides its own entries: the token counter, and waiters that are gone. */
describe('redis: upkeep', () => {
  it('rule 8: while the counter is ahead of the clock, a release that fails does not set it back', async () => {
    await using server = await startRedis()
    const admin = client(server.port)
    const driver = driverOn(server.port)
    const { holder, waiter, fencingToken } = await heldAndWaitedFor(driver, server.port)
    // The user may not remove the waiter from the queue.
    await admin.call('ACL', 'SETUSER', 'clumsy', 'on', 'nopass', '~*', '&*', '+@all', '-zrem')
    const clumsy = client(server.port)
    await clumsy.call('AUTH', 'clumsy', 'any')
    const [failed] = await redisDriver({ client: clumsy })
      .release([{ ...holder }])
      .catch((error: Error) => [error])
    assert.match(String(failed), /the user lacks a right/)
    assert.deepEqual(await driver.release([holder]), [true])
    const handed = await granted(driver, waiter)
    assert.ok(handed.fencingToken > fencingToken, `${handed.fencingToken} after ${fencingToken}`)
  })

  it('rule 8: while the counter is ahead of the clock, tokens rise even if memory is full', async () => {
    await using server = await startRedis()
    const driver = driverOn(server.port)
    const { holder, waiter, fencingToken } = await heldAndWaitedFor(driver, server.port)
    await client(server.port).config('SET', 'maxmemory', '1')
    assert.deepEqual(await driver.release([holder]), [true])
    await client(server.port).config('SET', 'maxmemory', '0')
    const handed = await granted(driver, waiter)
    assert.ok(handed.fencingToken > fencingToken, `${handed.fencingToken} after ${fencingToken}`)
  })

  it('a lock can be taken by force on a server that is out of memory', async () => {
    await using server = await startRedis()
    const driver = driverOn(server.port)
    const { holder } = await heldAndWaitedFor(driver, server.port)
    await client(server.port).config('SET', 'maxmemory', '1')
    const taker = claim({ lockName: holder.lockName, forceUpTo: Number.MAX_SAFE_INTEGER })
    await granted(driver, taker)
    assert.deepEqual(await driver.release([taker]), [true])
  })

  it('the same lease twice in one list is granted, renewed and released once', async () => {
    const driver = driverOn(shared.port)
    const [one, other] = [claim(), claim()]
    const [first, second, again] = await driver.acquire([one, other, one], newCall())
    assert.deepEqual(again, first)
    assert.notDeepEqual(second, first)
    assert.deepEqual(await driver.release([one, other, one]), [true, true, false])
    assert.deepEqual(await driver.release([one, other]), [false, false])
  })

  it('a new claim does not overtake a waiter behind more dead waiters than one call removes', async () => {
    const driver = driverOn(shared.port)
    const lockName = name()
    const holder = claim({ lockName })
    await granted(driver, holder)
    const dead = Array.from({ length: 700 }, () => claim({ lockName, waiterTtlMs: 500 }))
    await driver.acquire(dead, newCall())
    const patient = claim({ lockName, waiterTtlMs: 60_000 })
    assert.equal((await ask(driver, patient)).granted, false)
    await sleep(510) // until their places have expired
    assert.deepEqual(await driver.release([holder]), [true])
    for (let asked = 0; asked < 5; asked += 1) {
      assert.equal((await ask(driver, claim({ lockName }))).granted, false, `newcomer ${asked}`)
    }
    const { leases } = await driver.inspect({ lockName })
    assert.deepEqual(
      leases.map(({ claimId }) => claimId),
      [patient.claimId],
    )
  })

  for (const isLong of [false, true]) {
    it(`failure 63: at its memory limit, a server renews and releases${isLong ? ' long lists' : ''}`, async () => {
      await using server = await startRedis()
      const driver = driverOn(server.port)
      const modes = ['exclusive', 'shared'] as const
      const leases = await Promise.all(
        modes.map(async (mode) => {
          const lease = claim({ lockName: name(), mode, ttlMs: 30_000 })
          const { fencingToken } = await granted(driver, lease)
          const waiter = claim({ lockName: lease.lockName, waiterTtlMs: 20_000, ttlMs: 60_000 })
          assert.equal((await ask(driver, waiter)).granted, false)
          return { ...lease, fencingToken, waiter }
        }),
      )
      await client(server.port).config('SET', 'maxmemory', '1')
      for (const ttlMs of [30_000, 10_000, 40_000]) {
        const renewals = leases.map(({ lockName, claimId, fencingToken }) => ({
          lockName,
          claimId,
          fencingToken,
          ttlMs,
        }))
        // Long lists of renewals go through a script of their own.
        const all = isLong ? Array.from({ length: 20 }, () => renewals).flat() : renewals
        for (const answer of await driver.renew(all)) assert.equal(answer, 'renewed', `to ${ttlMs} ms`)
      }
      assert.deepEqual(await driver.release(leases), [true, true])
      // Both locks were handed over until the place of the waiter would have ended. Their first renewal is longer.
      const handed = (await driver.inspect({})).leases
      assert.deepEqual(handed.map(({ claimId }) => claimId).sort(), leases.map(({ waiter }) => waiter.claimId).sort())
      assert.deepEqual(await driver.renew(handed.map((each) => ({ ...each, ttlMs: 60_000 }))), ['renewed', 'renewed'])
    })
  }

  it('a key of another type fails its own entry of a list, and no other', async () => {
    const driver = driverOn(shared.port)
    const spoiled = name()
    const { data } = lockKeys('lock:', spoiled)
    await client(shared.port).set(data, 'of another program')
    const mixed = [name(), spoiled, name()].map((lockName) => claim({ lockName }))
    const [one, error, other] = await driver.acquire(mixed, newCall())
    assert.ok(one !== undefined && 'granted' in one && one.granted)
    assert.ok(other !== undefined && 'granted' in other && other.granted)
    assert.match(String(error), /WRONGTYPE.*another program has written a key of this lock/)
    const [renewed, unknown, also] = await driver.renew([
      ...mixed.map((each) => ({ ...each, fencingToken: one.fencingToken })),
    ])
    assert.deepEqual([renewed, also], ['renewed', 'lost'])
    assert.match(String(unknown), /WRONGTYPE/)
    const [yes, released, alsoYes] = await driver.release(mixed)
    assert.deepEqual([yes, alsoYes], [true, true])
    assert.match(String(released), /WRONGTYPE/)
    await client(shared.port).del(data)
    await granted(driver, claim({ lockName: spoiled }))
  })

  it('a lock with only expired waiters is free, even with as many as one call removes', async () => {
    const driver = driverOn(shared.port)
    const lockName = name()
    const holder = claim({ lockName })
    await granted(driver, holder)
    await driver.acquire(
      Array.from({ length: 256 }, () => claim({ lockName, waiterTtlMs: 50 })),
      newCall(),
    )
    await sleep(60) // until their places have expired
    assert.deepEqual(await driver.release([holder]), [true])
    assert.deepEqual(await client(shared.port).keys(`*${lockName}*`), [])
  })

  it('a lock whose waiters are gone is free, even with as many as one call passes over', async () => {
    const { driver, holder, lockName } = await behindTheGone(256, () => 60_000)
    assert.deepEqual(await driver.release([holder]), [true])
    assert.deepEqual(await client(shared.port).keys(`*${lockName}*`), [])
  })

  it('rule 13: one call removes no more waiters than its bound, expired and gone ones together', async () => {
    const { driver, holder, lockName } = await behindTheGone(400, (at) => (at % 4 === 0 ? 60_000 : 2_000))
    await sleep(2_010) // until most places have expired
    assert.deepEqual(await driver.release([holder]), [true])
    const { order } = lockKeys('lock:', lockName)
    assert.equal(await client(shared.port).zcard(order), 400 - 256)
    // Later calls continue the cleanup.
    await untilGranted(driver, claim({ lockName }))
  })
})

/** A held lock with waiters that were subscribed and are no longer. */
async function behindTheGone(count: number, waiterTtlMs: (at: number) => number) {
  const driver = driverOn(shared.port)
  const lockName = name()
  const holder = claim({ lockName })
  await granted(driver, holder)
  const gone = driverOn(shared.port)
  const stop = await gone.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} })
  const [channel] = (await client(shared.port).call('PUBSUB', 'CHANNELS', 'holdfast:wake:*')) as [string]
  await gone.acquire(
    Array.from({ length: count }, (_, at) => claim({ lockName, waiterTtlMs: waiterTtlMs(at) })),
    newCall(),
  )
  await stop?.()
  const isSeen = async (): Promise<boolean> => {
    const [, hearing] = (await client(shared.port).call('PUBSUB', 'NUMSUB', channel)) as [string, number]
    return hearing === 0
  }
  await until(isSeen, patience('the server to see that the connection is closed'))
  return { driver, holder, lockName }
}

/** A lock that is held and waited for, on a server whose counter is ahead of its clock. */
async function heldAndWaitedFor(driver: Driver, port: number) {
  const holder = claim()
  const waiter = claim({ lockName: holder.lockName, waiterTtlMs: 60_000 })
  await setAhead(port)
  const { fencingToken } = await granted(driver, holder)
  assert.equal((await ask(driver, waiter)).granted, false)
  return { holder, waiter, fencingToken }
}

/** As after a clock that was set back by an hour. */
async function setAhead(port: number): Promise<void> {
  const [seconds] = (await client(port).time()) as unknown as [string, string]
  await client(port).set(COUNTER, `${(Number(seconds) + 3_600) * 1_000_000}`)
}
