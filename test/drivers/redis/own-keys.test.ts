import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { redlockDriver } from '../../../src/drivers/redlock.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'

/** The driver's own keys begin with `holdfast:`. With an empty or shorter prefix, a lock name can reach them. */
const NAMES: readonly (readonly [prefix: string, lockName: string])[] = [
  ['', 'holdfast:token'],
  ['', 'holdfast:{own}:d'],
  ['', 'holdfast:{own}:o'],
  ['', 'holdfast:{own}:f'],
  ['', 'holdfast:{1}:d:{1}own'],
  ['', 'holdfast:{own}:r10/3600000000/10'],
  ['', 'holdfast:anything'],
  ['hold', 'fast:token'],
  ['holdfast', ':{own}:d'],
]

const DATABASE = 11
let own: Redis
let counter = 0

beforeAll(async () => {
  const url = inject('servers').redis?.[3] ?? ''
  own = new Redis(url, { db: DATABASE })
  await own.flushdb()
})

afterAll(async () => {
  await own.flushdb()
  own.disconnect()
})

describe('redis: keys of our own', () => {
  it.each(NAMES)(
    'with the prefix "%s" the lock name "%s" is refused, and the rest of its list is not',
    async (prefix, bad) => {
      const { sent, client } = watched()
      const driver = redisDriver({ client, prefix, onWarning() {} })
      const list = [
        claim(`good ${prefix}`),
        claim(bad),
        claim(bad, { mode: 'shared' }),
        claim(bad, { forceUpTo: Number.MAX_SAFE_INTEGER }),
      ]
      const [granted, ...refused] = await driver.acquire(list, newCall())
      assert.ok(granted && 'granted' in granted && granted.granted, String(granted))
      for (const answer of refused) assertRefused(answer)
      const { fencingToken } = granted
      const leases = list.map((each) => ({ ...each, fencingToken }))
      const [renewed, ...notRenewed] = await driver.renew(leases)
      assert.equal(renewed, 'renewed')
      for (const answer of notRenewed) assertRefused(answer)
      const [released, ...notReleased] = await driver.release(leases)
      assert.equal(released, true)
      for (const answer of notReleased) assertRefused(answer)
      assert.deepEqual(
        // The counter is a key of every call.
        sent.filter((args) => args.includes(prefix + bad) && args[3] !== prefix + bad),
        [],
      )
      await driver.close()
    },
  )

  it('the error names the reason, also with Redlock', async () => {
    const drivers: Driver[] = [redisDriver({ client: own, prefix: '' })]
    drivers.push(redlockDriver({ nodes: [redisDriver({ client: own, prefix: '' })], persistent: true }))
    for (const driver of drivers) {
      await using lock = new DistributedLock({ driver })
      await assert.rejects(lock.hold('holdfast:token', { timeoutSeconds: 5, blocking: true }), {
        code: driver.name === 'redis' ? 'INVALID_ARGUMENT' : 'STORE_UNAVAILABLE',
        message: /lockName must .*"holdfast:".* own keys/,
      })
      await lock.withLock('holdfast', async () => {}) // without the colon it is an ordinary name
    }
  })

  it('a prefix that begins with "holdfast:" is refused', () => {
    for (const prefix of ['holdfast:', 'holdfast:{x}:d']) {
      assert.throws(() => redisDriver({ client: own, prefix }), { code: 'INVALID_ARGUMENT', argument: 'prefix' })
    }
    assert.throws(() => redisDriver({ client: own, prefix: 'lone \ud800' }), { argument: 'prefix' })
  })

  it.each(['', 'hold', 'holdfast'])(
    'with the prefix "%s" no key of the driver’s own is returned as a lock',
    async (prefix) => {
      const driver = redisDriver({ client: own, prefix, onWarning() {} })
      const held = claim(`job ${prefix}`)
      await driver.acquire([held, claim(held.lockName, { waiterTtlMs: 60_000 })], newCall())
      assert.ok((await own.keys('holdfast:*')).length >= 3)
      const { leases, waiters } = await driver.inspect({})
      assert.deepEqual([...new Set([...leases, ...waiters].map(({ lockName }) => lockName))], [held.lockName])
      for (const key of await own.keys('holdfast:*')) {
        const shown = await driver.inspect({ lockName: key.slice(prefix.length) })
        assert.deepEqual(shown, { leases: [], waiters: [] })
      }
      await own.flushdb()
      await driver.close()
    },
  )
})

/** The client, and the commands that it was asked to send. */
function watched(): { sent: string[][]; client: Redis } {
  const sent: string[][] = []
  const call = (...args: [string, ...string[]]): Promise<unknown> => {
    sent.push(args)
    return own.call(...args)
  }
  return { sent, client: Object.create(own, { call: { value: call } }) as Redis }
}

function assertRefused(answer: unknown): void {
  assert.ok(answer instanceof Error, JSON.stringify(answer))
  assert.equal((answer as { code?: string }).code, 'INVALID_ARGUMENT')
  assert.match(answer.message, /own keys/)
}

function claim(lockName: string, changes: Partial<Claim> = {}): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0, ...changes }
}
