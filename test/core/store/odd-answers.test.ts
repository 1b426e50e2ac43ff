import { describe, expect, it } from 'vitest'
import type {
  AcquireAnswer,
  Driver,
  DriverListener,
  Grant,
  InspectPage,
  LeaseRecord,
} from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, LeaderElection, RateLimiter, StoreError } from '../../../src/index.ts'

/** What a broken or hostile server, or a row of another client, makes of a driver's answers. Found by chaos/fuzz. */

const GRANT: Grant = { granted: true, fencingToken: 7, ttlMs: 500, acquiredAtMs: Date.now() }
const LEASE: LeaseRecord = {
  ...{ lockName: 'name', claimId: 'c', holderId: 'h', mode: 'exclusive', permits: 1 },
  ...{ fencingToken: 7, acquiredAtMs: 1_000, expiresAtMs: 2_000 },
}

const answering = (answer: unknown): Driver => ({
  ...memoryDriver(),
  acquire: async (claims) => claims.map(() => answer as AcquireAnswer),
  release: async (leases) => leases.map(() => true),
})

describe('a grant that is not valid never becomes a lease', () => {
  const odd: [string, unknown][] = [
    ...[0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53, '7', null, undefined].map(
      (value): [string, unknown] => [`the fencing token ${String(value)}`, { ...GRANT, fencingToken: value }],
    ),
    ...[0, -1, Number.NaN, undefined].map((value): [string, unknown] => [
      `the time to live ${String(value)}`,
      { ...GRANT, ttlMs: value },
    ]),
    ...[Number.NaN, 8.64e15 + 1, Number.POSITIVE_INFINITY, '1', undefined].map((value): [string, unknown] => [
      `the start ${String(value)}`,
      { ...GRANT, acquiredAtMs: value },
    ]),
  ]
  it.each(odd)('%s', async (_, answer) => {
    const lock = new DistributedLock({ driver: answering(answer) })
    await expect(lock.acquire('name', { timeoutSeconds: 0.5 })).rejects.toBeInstanceOf(StoreError)
    await lock.close()
  })

  it.each(odd)('%s, in a message to a waiter', async (_, grant) => {
    let listener: DriverListener | undefined
    let claimId = ''
    let asked = 0
    const driver: Driver = {
      ...answering({ granted: false, answeredAtMs: 0 }),
      acquire: async (claims) => {
        claimId = claims[0]?.claimId ?? ''
        asked += 1
        return claims.map(() => ({ granted: false, answeredAtMs: 0 }))
      },
      listen: async (given) => {
        listener = given
        return async () => {}
      },
    }
    const lock = new DistributedLock({ driver })
    const waiting = lock.acquire('name', { timeoutSeconds: 0.5, blockingTimeoutSeconds: 0.4 })
    await new Promise((resolve) => setTimeout(resolve, 100)) // it listens, and was refused again
    const before = asked
    listener?.granted(claimId, grant as Grant)
    expect((await waiting).acquired).toBe(false)
    expect(asked).toBeGreaterThan(before)
    await lock.close()
  })
})

it('a lease is never trusted for longer than its claim asked for', async () => {
  const lock = new DistributedLock({ driver: answering({ ...GRANT, ttlMs: 1e12 }) })
  const result = await lock.acquire('name', { timeoutSeconds: 0.5 })
  expect(result.acquired && result.lock.remainingSeconds).toBeLessThanOrEqual(0.5)
  await lock.close()
})

it('a lease that was granted at the last date there is has a valid end', async () => {
  const lock = new DistributedLock({ driver: answering({ ...GRANT, acquiredAtMs: 8.64e15 }) })
  const lease = await lock.hold('name', { timeoutSeconds: 0.5, heartbeat: false })
  expect(lease.expiresAt.getTime()).not.toBeNaN()
  await lock.close()
})

it.each(['askAgainMs', 'ahead', 'answeredAtMs'])('a refusal whose %s is no number is no answer', async (field) => {
  const lock = new DistributedLock({ driver: answering({ granted: false, [field]: Number.NaN }) })
  await expect(lock.acquire('name')).rejects.toBeInstanceOf(StoreError)
  await lock.close()
})

describe('a record that another client wrote', () => {
  const odd: [string, Partial<Record<keyof LeaseRecord, unknown>>][] = [
    ['ends at infinity', { acquiredAtMs: Number.NEGATIVE_INFINITY, expiresAtMs: Number.POSITIVE_INFINITY }],
    ['ends after the last date', { acquiredAtMs: 'Infinity', expiresAtMs: 9e15 }],
    ['has no dates', { acquiredAtMs: {}, expiresAtMs: null }],
    ['has a token that is no safe integer', { fencingToken: 2 ** 63 }],
    ['has a negative token', { fencingToken: -1 }],
    ['has metadata that is no object', { metadata: [1] }],
    ['has ids that are no text', { claimId: 7, holderId: { a: 1 } }],
    ['has a holder id that is too long for a message', { holderId: 'x'.repeat(20_000) }],
    ['has an unknown mode', { mode: 'weird', permits: 'many', limit: {} }],
  ]
  it.each(odd)('%s: it is shown, and nothing fails', async (_, changes) => {
    const record = { ...LEASE, ...changes } as LeaseRecord
    const page = { leases: [record], waiters: [{ ...record, waitingSinceMs: Number.NaN }] } as InspectPage
    const driver: Driver = { ...answering({ granted: false, holder: record }), inspect: async () => page }
    const lock = new DistributedLock({ driver })
    const refused = await lock.acquire('name')
    const holder = refused.acquired ? undefined : refused.holder
    expect(holder?.acquiredAt.getTime()).not.toBeNaN()
    expect(holder?.expiresAt.getTime()).not.toBeNaN()
    expect(typeof holder?.holderId).toBe('string')
    expect(refused.acquired ? '' : refused.error.length).toBeLessThan(1_000)
    const { leases, waiters } = await lock.inspect('name')
    expect(leases[0]?.fencingToken).toBeGreaterThanOrEqual(0)
    expect(leases[0]?.expiresAt?.getTime()).not.toBeNaN()
    expect(leases[0]?.metadata ?? {}).toBeTypeOf('object')
    expect(['exclusive', 'shared']).toContain(leases[0]?.mode)
    expect(leases[0]?.permits).not.toBeNaN()
    expect(waiters[0]?.waitingSince.getTime()).not.toBeNaN()
    const election = new LeaderElection({ driver, name: 'name' })
    expect((await election.leader())?.since.getTime()).not.toBeNaN()
    await Promise.all([lock.close(), election.close()])
  })
})

it.each([undefined, null, 7, [], {}, { leases: 7, waiters: [] }, { leases: [], waiters: [], next: 7 }])(
  'a page %j of inspect is an error with a code',
  async (page) => {
    const lock = new DistributedLock({ driver: { ...memoryDriver(), inspect: async () => page as never } })
    await expect(lock.inspect('name')).rejects.toBeInstanceOf(StoreError)
    await expect(lock.isLocked('name')).rejects.toBeInstanceOf(StoreError)
    await lock.close()
  },
)

it('a rate limit whose numbers are not finite is no answer', async () => {
  const answer = { allowed: true, remaining: 1, retryAfterMs: 0, resetAfterMs: 0, usedMs: [0] }
  for (const changes of [
    { remaining: Number.NaN },
    { retryAfterMs: undefined },
    { usedMs: [Number.NaN] },
    { usedMs: 7 },
  ]) {
    const driver: Driver = { ...memoryDriver(), consume: async () => [{ ...answer, ...changes } as never] }
    const limiter = new RateLimiter({ driver, limits: { limit: 5, periodSeconds: 1 } })
    await expect(limiter.consume('key')).rejects.toBeInstanceOf(StoreError)
    await limiter.close()
  }
})
