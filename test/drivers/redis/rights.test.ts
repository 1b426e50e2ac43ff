import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { Cluster, Redis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, inject, it, vi } from 'vitest'
import type { Claim, Driver, RateLimit } from '../../../src/core/driver.ts'
import { channelOf, lockKeys } from '../../../src/drivers/redis/keys.ts'
import { type RedisClient, type RedisDriver, redisDriver, redisFence } from '../../../src/drivers/redis.ts'
import { redlockDriver } from '../../../src/drivers/redlock.ts'
import { DistributedLock } from '../../../src/index.ts'
import { LeaderElection } from '../../../src/primitives/election/leader-election.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { startProxy } from '../../harness/proxy.ts'
import { ask, claim, granted, name, patience, shared } from '../../harness/redis-server.ts'
import { type Server, startServers } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

/**
 * The rights in the docs are enough, and all of them are needed. The test reads them from the pages. The server logs
 * what it has denied, also if the driver continues without it, such as a message that could not be published.
 */

const page = (file: string): string => readFileSync(new URL(`../../../docs/${file}`, import.meta.url), 'utf8')
const statements = [...page('explanation/safety.md').matchAll(/^ACL SETUSER (\w+) on >(\w+) (.+)$/gm)]
const rulesOf = (user: string): string => statements.find(([, who]) => who === user)?.[3] ?? ''
const APP = rulesOf('app')
const MONITOR = rulesOf('monitor')
const IN_DRIVER_PAGE = /needs\s`(~lock:[^`]+)`/.exec(page('drivers/redis.md'))?.[1] ?? ''

const PASSWORD = 'secret'
const PATIENT = { timeoutSeconds: 60, blockingTimeoutSeconds: 15 }
/** The slow poll behind the wake-ups comes after 20 s: a waiter that is served sooner was woken. */
const WOKEN = { waiterTtlSeconds: 60 }

let servers: readonly Server[]
const closing: (() => unknown)[] = []
let counter = 0

beforeAll(async () => {
  const more = await startServers({ redis: 2 })
  servers = [shared, ...more.redis]
  closing.push(() => more.stop())
})

afterAll(async () => {
  for (const close of closing) await close()
})

describe('redis: the rights that the docs give', () => {
  it('are found on the pages', () => {
    for (const rules of [APP, MONITOR, IN_DRIVER_PAGE]) assert.match(rules, /~lock:\*/)
  })

  for (const [where, rules] of [
    ['docs/explanation/safety.md', APP],
    ['docs/drivers/redis.md', IN_DRIVER_PAGE],
  ] as const) {
    for (const [through, open] of [
      ['ioredis', openIoredis],
      ['node-redis', openNodeRedis],
    ] as const) {
      it(`of ${where} are enough for all that a driver does, through ${through}`, async () => {
        const user = await userOn([shared], rules)
        const clients = [await open(shared, user), await open(shared, user)] as const
        await useAll(clients)
        assert.deepEqual(await deniedOn([shared], user), [])
      })
    }
  }

  it('are enough on a Cluster, where messages are published by slot', async () => {
    const nodes = (inject('servers').cluster ?? []).map((url) => ({ port: Number(new URL(url).port) }))
    const user = await userOn(nodes, APP)
    await useAll([await openCluster(nodes, user), await openCluster(nodes, user)])
    assert.deepEqual(await deniedOn(nodes, user), [])
  })

  it('are enough for Redlock, whose nodes keep a record of their voting', async () => {
    const user = await userOn(servers, APP)
    const drivers = await Promise.all(
      [1, 2].map(async () => {
        const clients = await Promise.all(servers.map((server) => openIoredis(server, user)))
        const nodes = clients.map((client) => redisDriver({ client }))
        return redlockDriver({ nodes, longestTtlSeconds: 1, nodeTimeoutSeconds: 5 })
      }),
    )
    const [a, b] = drivers as [Driver, Driver]
    const held = claim({ ttlMs: 1_000 })
    const take = async () => (await a.acquire([held], newCall()))[0]
    let grant = await take()
    await until(async () => {
      grant = await take()
      return grant !== undefined && 'granted' in grant
    }, patience('the nodes to vote'))
    assert.ok(grant !== undefined && 'granted' in grant && grant.granted)
    const lease = { ...held, fencingToken: grant.fencingToken }
    assert.deepEqual(await a.renew([lease]), ['renewed'])
    assert.equal((await b.inspect({ lockName: held.lockName })).leases.length, 1)
    let woken = false
    const stop = await b.listen?.({ ...SILENT, wake: () => (woken = true) })
    assert.deepEqual(await a.release([lease]), [true])
    await until(() => woken, patience('the message of the release'))
    await stop?.()
    assert.deepEqual(await deniedOn(servers, user), [])
  })

  it('are enough to wait for replicas, and to leave a master that was demoted', async () => {
    const [master, replica] = servers.slice(1) as [Server, Server]
    await using front = await startProxy(master.port)
    // Otherwise a master waits for more replicas before it sends its data to the first.
    for (const server of [master, replica]) await askRedis(server, 'CONFIG', 'SET', 'repl-diskless-sync-delay', '0')
    await askRedis(replica, 'REPLICAOF', '127.0.0.1', master.port)
    const user = await userOn([master, replica], APP)
    for (const open of [openIoredis, openNodeRedis]) {
      const driver = redisDriver({ client: await open(front, user), replicas: { count: 1, waitSeconds: 5 } })
      const grants = async (): Promise<boolean> => (await ask(driver, claim()).catch(() => undefined))?.granted === true
      await until(grants, patience('a grant that the replica has confirmed'))
    }
    const drivers = [await openIoredis(front, user), await openNodeRedis(front, user)].map(plainDriver)
    for (const driver of drivers) await granted(driver, claim())
    await askRedis(replica, 'REPLICAOF', 'NO', 'ONE')
    front.redirect(replica.port)
    await askRedis(master, 'REPLICAOF', '127.0.0.1', replica.port)
    for (const driver of drivers) {
      const takes = async (): Promise<boolean> => (await ask(driver, claim()).catch(() => undefined))?.granted === true
      await until(takes, patience('the driver to reach the new master'))
    }
    assert.deepEqual(await deniedOn([master, replica], user), [])
    await askRedis(master, 'REPLICAOF', 'NO', 'ONE')
  })

  for (const left of ['~lock:*', '~holdfast:*', '&holdfast:*', '+info']) {
    it(`are needed: without ${left} something is denied`, async () => {
      assert.ok(APP.split(' ').includes(left))
      const rules = APP.split(' ').filter((rule) => rule !== left)
      const user = await userOn([shared], rules.join(' '))
      const driver = plainDriver(await openIoredis(shared, user))
      const [held, waiting] = [claim(), claim({ waiterTtlMs: 5_000 })]
      for (const each of [held, { ...waiting, lockName: held.lockName }])
        await driver.acquire([each], newCall()).catch(() => {})
      await driver.listen?.(SILENT).catch(() => {})
      assert.notDeepEqual(await deniedOn([shared], user), [])
    })
  }

  it('a forbidden name costs no other claim, renewal or release of its list its answer', async () => {
    const user = await userOn([shared], APP.replace('~lock:*', '~lock:{app}*'))
    const driver = redisDriver({ client: await openIoredis(shared, user) })
    const claims = [claim({ lockName: '{app}1' }), claim({ lockName: '{others}2' }), claim({ lockName: '{app}3' })]
    const answers = await driver.acquire(claims, newCall())
    const [first, refused, third] = answers
    assert.ok(first && 'granted' in first && first.granted, String(first))
    assert.ok(refused instanceof Error)
    assert.match(refused.message, /NOPERM/)
    assert.ok(third && 'granted' in third && third.granted, String(third))
    const leases = [first, { fencingToken: 1 }, third].map(({ fencingToken }, index) => {
      const { lockName = '', claimId = '' } = claims[index] ?? {}
      return { lockName, claimId, fencingToken, ttlMs: 60_000 }
    })
    const renewed = await driver.renew(leases)
    assert.deepEqual([renewed[0], renewed[1] instanceof Error, renewed[2]], ['renewed', true, 'renewed'])
    const released = await driver.release(leases)
    assert.deepEqual([released[0], released[1] instanceof Error, released[2]], [true, true, true])
  })

  it('a forbidden name is an error for its group, and for no other claim of its list', async () => {
    const user = await userOn([shared], APP.replace('~lock:*', '~lock:{app}*'))
    const driver = redisDriver({ client: await openIoredis(shared, user) })
    const group = (id: string, ...names: string[]): Claim[] =>
      names.map((lockName) => ({ ...claim({ lockName }), group: id }))
    const members = group('first', '{app}group 1', '{others}group', '{app}group 2')
    const whole = group('second', '{app}group 3', '{app}group 4')
    const answers = await driver.acquire([...members, claim({ lockName: '{app}alone' }), ...whole], newCall())
    for (const answer of answers.slice(0, 3)) assert.match(String(answer), /NOPERM/)
    for (const answer of answers.slice(3)) assert.ok('granted' in answer && answer.granted)
    await assert.rejects(driver.acquire(members, newCall()), /NOPERM/)
    for (const lockName of ['{app}group 1', '{app}group 2']) {
      assert.deepEqual((await driver.inspect({ lockName })).leases, [])
    }
    await driver.release([...whole, ...members])
  })

  it('on its own lock names are enough for a client, except for the search for deadlocks', async () => {
    const user = await userOn([shared], APP.replace('~lock:*', '~lock:app:*'))
    const driver = plainDriver(await openIoredis(shared, user))
    await using lock = new DistributedLock({ driver, deadlockAfterSeconds: 0.02 })
    const failed: string[] = []
    lock.on('releaseFailed', ({ lockName }) => failed.push(lockName))
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const names = ['own', 'other'].map((part) => `app:${name()}:${part}`) as [string, string]
    const held = await lock.hold(names[1])
    const waiting = lock.withLock(names[0], () => lock.withLock(names[1], () => 'done', PATIENT))
    await until(() => warn.mock.calls.length > 0, patience('the warning'))
    const warnings = warn.mock.calls.map(([message]) => String(message))
    vi.restoreAllMocks()
    await held.release()
    assert.equal(await waiting, 'done')
    assert.match(warnings.join(), /^this instance does not look for deadlocks/)
    assert.deepEqual(failed, [])
    for (const denied of await deniedOn([shared], user)) assert.match(denied, /waits:/)
  })

  it('allow an application nothing outside of locks, and no change of the server', async () => {
    for (const rules of [APP, IN_DRIVER_PAGE]) {
      const client = await openIoredis(shared, await userOn([shared], rules))
      for (const command of [
        ['GET', 'another'],
        ['SET', 'another', 'x'],
        ['PUBLISH', 'another', 'x'],
        ['FLUSHALL'],
        ['CONFIG', 'GET', '*'],
        ['KEYS', '*'],
        ['ACL', 'LIST'],
        ['REPLICAOF', 'NO', 'ONE'],
      ] as [string, ...string[]][]) {
        await assert.rejects(client.call(...command), /NOPERM/, command.join(' '))
      }
    }
  })

  it('allow a monitor to read locks, leases and waiters, and not to change or publish anything', async () => {
    const driver = plainDriver(await openIoredis(shared, await userOn([shared], APP)))
    const held = claim()
    await granted(driver, held)
    await ask(driver, claim({ lockName: held.lockName, waiterTtlMs: 60_000 }))
    const { plain, data, order } = lockKeys('lock:', held.lockName)
    // Without the right to INFO, the ready check of the client would fail.
    const user = await userOn([shared], MONITOR)
    const monitor = await openIoredis(shared, user, { enableReadyCheck: false })
    assert.match((await monitor.get(plain)) ?? '', /^\["claim/)
    assert.ok((await monitor.pttl(plain)) > 0)
    assert.equal(await monitor.type(plain), 'string')
    assert.equal(Object.keys(await monitor.hgetall(data)).filter((field) => field.startsWith('w')).length, 1)
    assert.equal((await monitor.zrange(order, '0', '-1')).length, 1)
    assert.equal((await monitor.scan(0, 'MATCH', 'lock:*')).length, 2)
    assert.equal(await monitor.ping(), 'PONG')
    assert.deepEqual(await deniedOn([shared], user), [])
    for (const command of [
      ['SET', plain, 'x'],
      ['DEL', plain],
      ['PUBLISH', channelOf('x'), 'x'],
      ['SUBSCRIBE', channelOf('x')],
      ['EVAL', 'return 1', '0'],
      ['GET', 'another'],
    ] as [string, ...string[]][]) {
      await assert.rejects(monitor.call(...command), /NOPERM/, command.join(' '))
    }
  })
})

/** Every operation of the driver: acquire, wait, wake, renew, release, force, rates, inspect, fences. */
async function useAll([mine, another]: readonly [RedisClient, RedisClient]): Promise<void> {
  const [a, b] = [plainDriver(mine), plainDriver(another)]
  const [first, second] = [new DistributedLock({ driver: a, ...WOKEN }), new DistributedLock({ driver: b, ...WOKEN })]
  const lockName = name()

  // A waiter is handed the lock.
  const held = await first.hold(lockName, PATIENT)
  const handed = second.hold(lockName, PATIENT)
  await untilWaiting(a, lockName)
  assert.equal(await held.extend(30), true)
  await held.release()
  const ended = await handed

  // The lock is force-released, and its holder is notified. On a Cluster it learns of it with the next renewal.
  let heard = false
  const stop = await b.listen?.({ ...SILENT, lost: () => (heard = true) })
  await first.forceRelease(lockName, { by: 'an operator' })
  await until(() => heard || !b.capabilities.groups, patience('the message of the forced release'))
  await stop?.()
  assert.equal(await ended.release(), false)

  // Readers and permits, and a writer that waits for them.
  const shared = [claim({ mode: 'shared', limit: 2 }), claim({ mode: 'shared' })] as const
  for (const each of shared) {
    const { fencingToken } = await granted(a, each)
    assert.deepEqual(await a.renew([{ ...each, fencingToken }]), ['renewed'])
    assert.equal((await ask(b, claim({ lockName: each.lockName, waiterTtlMs: 60_000 }))).granted, false)
    assert.deepEqual(await a.release([{ ...each, fencingToken }]), [true])
  }

  const limits: RateLimit[] = [
    { limit: 10, periodMs: 1_000, burst: 10 },
    { limit: 100, periodMs: 60_000, burst: 100 },
  ]
  for (const cost of [1, 0]) {
    const [answer] = (await a.consume?.([{ name: lockName, cost, limits }])) ?? []
    assert.ok(answer !== undefined && !(answer instanceof Error), String(answer))
  }

  await granted(a, claim({ lockName }))
  assert.equal((await b.inspect({ prefix: lockName })).leases.length, 1)
  assert.equal((await b.inspect({ lockName })).leases.length, 1)

  const fence = redisFence({ client: mine })
  await fence.set(`lock:resource:${lockName}`, 'text', 1)
  await fence.accept(`lock:resource:${lockName}`, 2)

  const election = new LeaderElection({ driver: b, name: name() })
  await election.campaign()
  assert.equal((await election.leader())?.holderId, election.holderId)
  assert.equal(await election.resign(), true)
  await Promise.all([first.close(), second.close()])
}

const SILENT = { wake() {}, granted() {}, lost() {}, disconnected() {} }

const plainDriver = (client: RedisClient): RedisDriver => redisDriver({ client })

async function untilWaiting(driver: Driver, lockName: string): Promise<void> {
  const waits = async (): Promise<boolean> => (await driver.inspect({ lockName })).waiters.length > 0
  await until(waits, patience('the waiter'))
}

/** Creates a user with these rights and clears the log of denials. */
async function userOn(on: readonly { readonly port: number }[], rules: string): Promise<string> {
  const user = `rights-${process.pid}-${++counter}`
  for (const server of on) {
    await askRedis(server, 'ACL', 'SETUSER', user, 'on', `>${PASSWORD}`, ...rules.split(' '))
    closing.unshift(() => askRedis(server, 'ACL', 'DELUSER', user))
  }
  return user
}

/** Includes denials in a script that continued without the command. */
async function deniedOn(on: readonly { readonly port: number }[], user: string): Promise<string[]> {
  const logs = await Promise.all(on.map((server) => askRedis(server, 'ACL', 'LOG', '100')))
  return (logs.flat() as unknown[][])
    .map((entry) => Object.fromEntries(pairsOf(entry)) as Record<string, unknown>)
    .filter(({ username }) => username === user)
    .map(({ context, reason, object }) => `${context}: ${reason} ${object}`)
}

const pairsOf = (flat: readonly unknown[]): [string, unknown][] =>
  Array.from({ length: flat.length / 2 }, (_, at) => [String(flat[2 * at]), flat[2 * at + 1]])

async function openIoredis({ port }: { port: number }, username: string, options = {}): Promise<Redis> {
  const client = new Redis(port, { username, password: PASSWORD, retryStrategy: () => 20, ...options })
  client.on('error', () => {})
  closing.unshift(() => client.disconnect())
  await once(client, 'ready')
  return client
}

async function openNodeRedis({ port }: { port: number }, username: string): Promise<RedisClient> {
  const client = createClient({ url: `redis://127.0.0.1:${port}`, username, password: PASSWORD })
  client.on('error', () => {})
  closing.unshift(() => client.destroy())
  await client.connect()
  return client
}

async function openCluster(nodes: readonly { readonly port: number }[], username: string): Promise<RedisClient> {
  const hosts = nodes.map(({ port }) => ({ host: '127.0.0.1', port }))
  const client = new Cluster(hosts, { redisOptions: { username, password: PASSWORD } })
  client.on('error', () => {})
  closing.unshift(() => client.disconnect())
  await once(client, 'ready')
  return client
}
