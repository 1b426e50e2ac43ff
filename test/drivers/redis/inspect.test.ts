import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Claim, Driver, InspectPage, InspectQuery, LeaseRecord } from '../../../src/core/driver.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { redlockDriver } from '../../../src/drivers/redlock.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'

/** How many entries one call of the script may read. */
const MOST = 500
let client: Redis
let driver: Driver
/** The number of entries in each reply of inspect.lua. */
const replies: number[] = []
let counter = 0

beforeAll(() => {
  client = new Redis(inject('servers').redis?.[4] ?? '', { db: 7, commandTimeout: 10_000 })
  const counted = async (...args: [string, ...string[]]): Promise<unknown> => {
    const reply = await client.call(...args)
    if (Array.isArray(reply) && reply.every(isShown))
      replies.push(sum(reply.map(([, , a, b]) => (a.length + b.length) / 2)))
    return reply
  }
  driver = redisDriver({ client: Object.create(client, { call: { value: counted } }) as Redis, onWarning() {} })
})

afterAll(async () => {
  await client.flushdb()
  client.disconnect()
})

describe('redis: a lock with a long queue or many readers', () => {
  it('is returned in pages, in order, and no call reads more than 500 entries', async () => {
    const lockName = name()
    await driver.acquire([claim(lockName)], newCall())
    const waiting = claims(1_300, lockName, { waiterTtlMs: 60_000 })
    await driver.acquire(waiting, newCall())
    replies.length = 0
    for (const query of [{ lockName }, { prefix: lockName }, { prefix: lockName, pageSize: 1 }]) {
      const pages = await pagesOf(query)
      for (const { leases, waiters } of pages) assert.ok(leases.length + waiters.length <= MOST)
      assert.equal(pages.flatMap(({ leases }) => leases).length, 1)
      assert.deepEqual(idsOf(pages.flatMap(({ waiters }) => waiters)), idsOf(waiting))
    }
    assert.ok(replies.length >= 3 && Math.max(...replies) <= MOST, `entries of each call: ${replies}`)
  })

  it('returns every reader once, and waiters only after all readers', async () => {
    const lockName = name()
    const readers = claims(1_300, lockName, { mode: 'shared' })
    // Some end together, some do not.
    for (let at = 0; at < readers.length; at += 100) {
      await driver.acquire(
        readers.slice(at, at + 100).map((each, index) => ({ ...each, ttlMs: 60_000 + (index % 3) })),
        newCall(),
      )
    }
    const waiting = claims(700, lockName, { waiterTtlMs: 60_000 })
    await driver.acquire(waiting, newCall())
    const pages = await pagesOf({ lockName })
    assert.deepEqual(idsOf(pages.flatMap(({ leases }) => leases)).sort(), idsOf(readers).sort())
    assert.deepEqual(idsOf(pages.flatMap(({ waiters }) => waiters)), idsOf(waiting))
    const firstWaiters = pages.findIndex(({ waiters }) => waiters.length > 0)
    for (const { leases } of pages.slice(firstWaiters + 1)) assert.deepEqual(leases, [])
  })

  it('skips no reader that is renewed between two pages', async () => {
    const lockName = name()
    const readers = claims(1_200, lockName, { mode: 'shared' })
    const answers = await driver.acquire(readers, newCall())
    const tokens = answers.map((answer) => ('granted' in answer && answer.granted ? answer.fencingToken : 0))
    const seen = new Set<string>()
    let after: string | undefined
    do {
      const page = await driver.inspect({ lockName, ...(after !== undefined && { after }) })
      for (const claimId of idsOf(page.leases)) seen.add(claimId)
      after = page.next
      const renewals = readers.map((each, at) => ({
        ...each,
        fencingToken: tokens[at] as number,
        ttlMs: 61_000 + seen.size,
      }))
      await driver.renew(renewals.filter(({ claimId }) => !seen.has(claimId)))
    } while (after !== undefined)
    assert.equal(seen.size, readers.length)
  })

  it('returns the waiters that are left when others leave the queue between two pages', async () => {
    const lockName = name()
    await driver.acquire([claim(lockName)], newCall())
    const waiting = claims(1_200, lockName, { waiterTtlMs: 60_000 })
    await driver.acquire(waiting, newCall())
    const first = await driver.inspect({ lockName })
    await driver.release(waiting.slice(100, 600))
    const rest = await pagesOf({ lockName, ...(first.next !== undefined && { after: first.next }) })
    const shown = idsOf([first, ...rest].flatMap(({ waiters }) => waiters))
    const stayed = idsOf([...waiting.slice(0, 100), ...waiting.slice(600)])
    assert.deepEqual(
      shown.filter((claimId) => stayed.includes(claimId)),
      stayed,
    )
  })

  it('shares no page with part of another lock: only a lock larger than a page is split', async () => {
    const prefix = name()
    const names = Array.from({ length: 40 }, (_, at) => `${prefix}:${at}`)
    for (const lockName of names) {
      await driver.acquire([claim(lockName), ...claims(29, lockName, { waiterTtlMs: 60_000 })], newCall())
    }
    const large = `${prefix}:large`
    await driver.acquire([claim(large), ...claims(600, large, { waiterTtlMs: 60_000 })], newCall())
    const pages = await pagesOf({ prefix })
    const pagesWith = new Map<string, number>()
    for (const { leases, waiters } of pages) {
      for (const lockName of new Set([...leases, ...waiters].map((each) => each.lockName))) {
        pagesWith.set(lockName, (pagesWith.get(lockName) ?? 0) + 1)
      }
    }
    assert.equal(pagesWith.get(large), 2)
    for (const lockName of names) assert.equal(pagesWith.get(lockName), 1)
    assert.equal(pages.flatMap(({ waiters }) => waiters).length, 40 * 29 + 600)
  })

  it('is released by force completely, and all its holders are named', async () => {
    const lockName = name()
    const readers = claims(1_100, lockName, { mode: 'shared' })
    await driver.acquire(readers, newCall())
    await using lock = new DistributedLock({ driver })
    const released = await lock.forceRelease(lockName, { by: 'a test' })
    assert.equal(released.length, readers.length)
    assert.deepEqual((await driver.inspect({ lockName })).leases, [])
  })

  it('is returned completely through Redlock, each reader once', async () => {
    const lockName = name()
    const redlock = redlockDriver({
      nodes: [redisDriver({ client, prefix: 'r:' })],
      persistent: true,
      nodeTimeoutSeconds: 10,
    })
    const readers = claims(1_100, lockName, { mode: 'shared' })
    await redlock.acquire(readers, newCall())
    await redlock.acquire([claim(`${lockName}:other`)], newCall())
    for (const query of [{ lockName }, { prefix: lockName }]) {
      const leases = (await pagesOf(query, redlock)).flatMap((page) => page.leases)
      const ofName = leases.filter((lease: LeaseRecord) => lease.lockName === lockName)
      assert.deepEqual(idsOf(ofName).sort(), idsOf(readers).sort())
      assert.equal(leases.length - ofName.length, 'prefix' in query ? 1 : 0)
    }
  })
})

async function pagesOf(query: InspectQuery, of: Driver = driver): Promise<InspectPage[]> {
  const pages: InspectPage[] = []
  let after = query.after
  do {
    const page = await of.inspect({ ...query, ...(after !== undefined && { after }) })
    pages.push(page)
    after = page.next
    assert.ok(pages.length < 10_000, 'the pages never end')
  } while (after !== undefined)
  return pages
}

type Shown = [string, unknown, string[], string[], ...string[]]

const isShown = (entry: unknown): entry is Shown =>
  Array.isArray(entry) && entry.length >= 4 && Array.isArray(entry[2]) && Array.isArray(entry[3])

const sum = (numbers: readonly number[]): number => numbers.reduce((all, each) => all + each, 0)

const idsOf = (records: readonly { readonly claimId: string }[]): string[] => records.map(({ claimId }) => claimId)

const name = (): string => `inspect:${process.pid}:${++counter}`

function claim(lockName: string, changes: Partial<Claim> = {}): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0, ...changes }
}

const claims = (count: number, lockName: string, changes: Partial<Claim>): Claim[] =>
  Array.from({ length: count }, () => claim(lockName, changes))
