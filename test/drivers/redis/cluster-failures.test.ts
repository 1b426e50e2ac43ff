import assert from 'node:assert/strict'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster } from 'ioredis'
import { createCluster } from 'redis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { lockKeys, slotOf } from '../../../src/drivers/redis/keys.ts'
import { type RedisClient, redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { type RedisCluster, type Server, startRedisCluster } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

let cluster: RedisCluster
let counter = 0
const closers: (() => void)[] = []

beforeAll(async () => {
  cluster = await startRedisCluster({ settings: { 'cluster-require-full-coverage': 'no' } })
})

afterAll(async () => {
  for (const close of closers) close()
  await cluster[Symbol.asyncDispose]()
})

describe('redis cluster: failures', () => {
  for (const [through, open] of [
    ['ioredis', openIoredis],
    ['node-redis', openNodeRedis],
  ] as const) {
    it(`failure 21: while its slot moves, a lock has one holder and rising tokens, through ${through}`, async () => {
      const lockName = `reshard ${through}`
      const slot = slotOf(`lock:${lockName}`)
      const drivers = await Promise.all(
        [open(), open(), open()].map(async (client) => redisDriver({ client: await client })),
      )
      const tokens: number[] = []
      let [inside, turns, moving] = [0, 0, true]
      const turn = async (driver: Driver): Promise<void> => {
        while (moving || turns < 30) {
          const claim = claimOn(lockName)
          const token = await grantOf(driver, claim)
          if (token === undefined) continue
          inside += 1
          assert.equal(inside, 1, 'two holders')
          tokens.push(token)
          await sleep(1) // as long as a short job
          inside -= 1
          await again(() => driver.release([{ lockName, claimId: claim.claimId, fencingToken: token }]))
          turns += 1
        }
      }
      const work = Promise.all(drivers.map(turn))
      for (let round = 0; round < 6; round += 1) await moveSlot(slot, cluster.nodes[round % 3] as Server)
      moving = false
      await work
      assert.ok(turns >= 30, `${turns} turns`)
      assert.deepEqual(
        tokens,
        tokens.toSorted((x, y) => x - y),
      )
      assert.equal(new Set(tokens).size, tokens.length)
    })
  }

  for (const [through, open] of [
    ['ioredis', openIoredis],
    ['node-redis', openNodeRedis],
  ] as const) {
    it(`failure 53: a waiter whose slot moved is woken through the new owner, with ${through}`, async () => {
      const lockName = `listens again ${through}`
      const slot = slotOf(`lock:${lockName}`)
      const lockOn = async (): Promise<DistributedLock> =>
        new DistributedLock({ driver: redisDriver({ client: await open() }), waiterTtlSeconds: 300 })
      const [a, b] = [await lockOn(), await lockOn()]
      // The slow poll comes after 100 s. A waiter with less time is served only if it is woken.
      const { held, waiting } = await heldAndWaitedFor(a, b, lockName, { blockingTimeoutSeconds: 50 })
      const from = await ownerOf(slot)
      const to = cluster.nodes.find(({ port }) => port !== from.port) as Server
      await moveSlot(slot, to)
      const isHeard = async (): Promise<boolean> =>
        ((await askRedis(to, 'PUBSUB', 'SHARDCHANNELS')) as string[]).length > 0
      await until(isHeard, patience('the subscription at the new owner'))
      await again(() => held.release())
      await (await waiting).release()
      await Promise.all([a.close(), b.close()])
    }, 60_000)
  }

  for (const [through, open] of [
    ['ioredis', openIoredis],
    ['node-redis', openNodeRedis],
  ] as const) {
    it(`failure 54: during a slot move leases are renewed, claims and releases wait, through ${through}`, async () => {
      const driver = redisDriver({ client: await open() })
      const lock = new DistributedLock({ driver })
      // With the tag, all of them are in one slot.
      const [carried, left, given, asked] = [1, 2, 3, 4].map((each) => `{${through}}${each}`) as [
        string,
        string,
        string,
        string,
      ]
      const claims = [claimOn(carried), claimOn(left)]
      const tokens = await tokensOf(driver, claims)
      const renewals = claims.map((claim, at) => ({ ...claim, fencingToken: tokens[at] as number }))
      const held = await lock.hold(given, { timeoutSeconds: 60, heartbeat: false })
      const move = await beginMove(slotOf(`lock:${carried}`))
      assert.deepEqual(await driver.renew(renewals), ['renewed', 'renewed'])
      await move.carry(`lock:${carried}`)
      assert.deepEqual(await driver.renew(renewals), ['renewed', 'renewed'])
      const waiting = lock.hold(asked, { blockingTimeoutSeconds: 15 })
      await assert.rejects(held.release(), /the slot is being moved to another node: try again/)
      assert.deepEqual(await driver.renew(renewals), ['renewed', 'renewed'])
      await move.end()
      await (await waiting).release()
      const isFree = async (): Promise<boolean> => (await driver.inspect({ lockName: given })).leases.length === 0
      await until(isFree, patience('what was given back meanwhile'))
      assert.deepEqual(await driver.renew(renewals), ['renewed', 'renewed'])
      assert.deepEqual(await driver.renew(renewals.map((each) => ({ ...each, fencingToken: 1 }))), ['lost', 'lost'])
      assert.deepEqual(await driver.release(renewals), [true, true])
      await lock.close()
    })
  }

  // There, existing keys can be changed and deleted, but no key can be created: a script that deletes a key cannot use
  // it again.
  for (const [held, waits] of [
    ['exclusive', 'exclusive'],
    ['exclusive', 'shared'],
    ['shared', 'exclusive'],
    ['shared', undefined],
  ] as const) {
    const next = waits === undefined ? 'ended' : `handed over to a waiter (${waits})`
    it(`failure 54: during a slot move, a lease (${held}) with unmoved keys is ${next} completely`, async () => {
      const scene = await startMovedScene(held, waits)
      const { a, b, holder, waiter, granted, move } = scene
      assert.deepEqual(await a.release([holder]), [true])
      if (waiter !== undefined) await until(() => granted.length > 0, patience('the grant'))
      await move.end()
      assert.deepEqual(await again(() => a.renew([holder])), ['lost'])
      const { leases } = await a.inspect({ lockName: holder.lockName })
      assert.deepEqual(
        leases.map(({ claimId, fencingToken }) => [claimId, fencingToken]),
        granted,
      )
      const leftBy = waiter && { ...waiter, fencingToken: granted[0]?.[1] as number }
      if (leftBy !== undefined) assert.deepEqual(await again(() => b.release([leftBy])), [true])
      await scene.assertNothingLeft()
    })
  }

  for (const [held, waits] of [
    ['exclusive', 'exclusive'],
    ['exclusive', undefined],
    ['shared', 'exclusive'],
    ['shared', undefined],
  ] as const) {
    const queue = waits === undefined ? 'after its queue has died' : 'from before its queue'
    it(`failure 54: during a slot move, a lease (${held}) is force-released ${queue}`, async () => {
      const scene = await startMovedScene(held, waits)
      const { a, b, holder, waiter, move } = scene
      const taker = { ...claimOn(holder.lockName), forceUpTo: Number.MAX_SAFE_INTEGER }
      const [taken] = await b.acquire([taker], newCall()).catch((error: Error) => [error])
      assert.ok(taken !== undefined && 'granted' in taken && taken.granted, String(taken))
      await move.end()
      assert.deepEqual(await again(() => a.renew([holder])), ['lost'])
      const { leases } = await a.inspect({ lockName: holder.lockName })
      assert.deepEqual(
        leases.map(({ claimId }) => claimId),
        [taker.claimId],
      )
      if (waiter !== undefined) assert.equal(await grantOf(b, waiter), undefined)
      assert.deepEqual(await again(() => b.release([{ ...taker, fencingToken: taken.fencingToken }])), [true])
      if (waiter !== undefined) {
        const fencingToken = (await grantOf(b, waiter)) as number
        assert.deepEqual(await again(() => b.release([{ ...waiter, fencingToken }])), [true])
      }
      await scene.assertNothingLeft()
    })
  }

  for (const [through, open] of [
    ['ioredis', openIoredis],
    ['node-redis', openNodeRedis],
  ] as const) {
    it(`failure 54: a step with two limits on two nodes is refused or taken once, through ${through}`, async () => {
      const driver = redisDriver({ client: await open() })
      const limits = [
        { limit: 10, periodMs: 3_600_000, burst: 10 },
        { limit: 20, periodMs: 86_400_000, burst: 20 },
      ]
      const request = { name: `two limits ${through}`, cost: 1, limits }
      const take = async () => (await driver.consume?.([request]))?.[0]
      let taken = 0
      const count = (answer: unknown): void => {
        if (!(answer instanceof Error)) taken += 1
        else assert.match(answer.message, /TRYAGAIN.*the slot is being moved to another node: try again/s)
      }
      count(await take())
      const slot = slotOf(`lock:${request.name}`)
      const move = await beginMove(slot)
      const keys = (await askRedis(await ownerOf(slot), 'CLUSTER', 'GETKEYSINSLOT', slot, 100)) as string[]
      const [first] = keys.filter((key) => key.includes(request.name))
      await move.carry(first as string)
      const before = await triesAgain()
      const meanwhile = [take(), take(), take()]
      await until(async () => (await triesAgain()) >= before + meanwhile.length, patience('TRYAGAIN'))
      await move.end()
      for (const answer of await Promise.all(meanwhile)) count(answer)
      count(await again(async () => (await driver.consume?.([request])) ?? []).then(([answer]) => answer))
      assert.ok(taken >= 2)
      const [look] = (await driver.consume?.([{ ...request, cost: 0 }])) ?? []
      assert.ok(look !== undefined && !(look instanceof Error))
      assert.equal(look.remaining, 10 - taken)
    })
  }

  it('failure 21: a waiter is served although its slot moved while it waited', async () => {
    const lockName = 'moves under a waiter'
    const [a, b] = [await openLock(3), await openLock(3)]
    const { held, waiting } = await heldAndWaitedFor(a, b, lockName)
    const slot = slotOf(`lock:${lockName}`)
    const owner = await ownerOf(slot)
    await moveSlot(slot, cluster.nodes.find(({ port }) => port !== owner.port) as Server)
    await again(() => held.release())
    assert.ok((await waiting).held)
    await Promise.all([a.close(), b.close()])
  })

  it('failure 18: tokens rise although every node lost its data', async () => {
    const driver = redisDriver({ client: await openIoredis() })
    const names = Array.from({ length: 20 }, (_, index) => `flushed ${index}`)
    const tokens = await tokensOf(driver, names.map(claimOn))
    for (const node of cluster.nodes) await askRedis(node, 'FLUSHALL')
    const later = await tokensOf(driver, names.map(claimOn))
    later.forEach((token, at) => {
      assert.ok(token > (tokens[at] as number), `${token} after ${tokens[at]}`)
    })
  })

  it('failure 20: SCRIPT FLUSH on every node between operations goes unnoticed', async () => {
    const driver = redisDriver({ client: await openIoredis() })
    const flush = () => Promise.all(cluster.nodes.map((node) => askRedis(node, 'SCRIPT', 'FLUSH')))
    const claims = Array.from({ length: 10 }, (_, index) => claimOn(`scripts ${index}`))
    await flush()
    const answers = await driver.acquire(claims, newCall())
    const leases = claims.map((claim, at) => {
      const answer = answers[at]
      assert.ok(answer && 'granted' in answer && answer.granted, String(answer))
      return { ...claim, fencingToken: answer.fencingToken }
    })
    await flush()
    assert.deepEqual(new Set(await driver.renew(leases)), new Set(['renewed']))
    await flush()
    assert.deepEqual(new Set(await driver.release(leases)), new Set([true]))
  })

  it('failure 29: a waiter whose subscriptions were killed subscribes again and finds what it missed', async () => {
    const [a, b] = [await openLock(60), await openLock(60)]
    const { held, waiting } = await heldAndWaitedFor(a, b, 'unheard')
    for (const node of cluster.nodes) await askRedis(node, 'CLIENT', 'KILL', 'TYPE', 'pubsub')
    await held.release()
    const releasedMs = performance.now()
    await (await waiting).release()
    assert.ok(performance.now() - releasedMs < 10_000, 'it was found by the slow poll, not by listening again')
    await Promise.all([a.close(), b.close()])
  })

  it('failure 31: a release passes over a first waiter whose connections are gone', async () => {
    const [a, b] = [await openLock(60), await openLock(60)]
    const lockName = 'dead waiter'
    const { held, waiting: next } = await heldAndWaitedFor(a, b, lockName, {
      async first() {
        // Like a killed process: nothing is withdrawn, and its place stays in the queue.
        const dead = redisDriver({ client: await openIoredis() })
        const stop = await dead.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} })
        const place = { ...claimOn(lockName), waiterTtlMs: 60_000 }
        // The first call makes the driver subscribe to the slot. With the second one, the server sees that it listens.
        await dead.acquire([place], newCall())
        await dead.acquire([place], newCall())
        await stop?.()
      },
    })
    const releasedMs = performance.now()
    await held.release()
    await (await next).release()
    assert.ok(performance.now() - releasedMs < 10_000, 'the dead waiter was waited for')
    await Promise.all([a.close(), b.close()])
  })

  it('a user without the right to INFO can lock, and its waiters are woken', async () => {
    for (const node of cluster.nodes) {
      await askRedis(node, 'ACL', 'SETUSER', 'me', 'on', '>pw', '~*', '&*', '+@all', '-info')
    }
    const login = { username: 'me', password: 'pw', enableReadyCheck: false }
    const open = async (): Promise<DistributedLock> =>
      new DistributedLock({ driver: redisDriver({ client: await openIoredis(login) }), waiterTtlSeconds: 60 })
    const [a, b] = [await open(), await open()]
    const held = await a.hold('without INFO', { timeoutSeconds: 60 })
    const waiting = b.hold('without INFO', { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    const isSubscribed = async (): Promise<boolean> => {
      const replies = await Promise.all(
        cluster.nodes.map((node) => askRedis(node, 'PUBSUB', 'CHANNELS', 'holdfast:wake:*')),
      )
      return replies.flat().length > 0
    }
    await until(isSubscribed, patience('the waiter to listen'))
    await held.release()
    await (await waiting).release()
    await Promise.all([a.close(), b.close()])
  })

  it('failure 62: a node that hangs does not delay a process that begins to wait on another one', async () => {
    const [a, b] = [
      new DistributedLock({ driver: redisDriver({ client: await openIoredis() }) }),
      new DistributedLock({ driver: redisDriver({ client: await openIoredis() }) }),
    ]
    const down = cluster.nodes[2] as Server
    const names = Array.from({ length: 30 }, (_, index) => `beside ${index}`)
    const owners = await Promise.all(names.map((each) => ownerOf(slotOf(`lock:${each}`))))
    const name = names.find((_, at) => owners[at]?.port !== down.port) as string
    const held = await a.hold(name, { timeoutSeconds: 60 })
    await down.pause()
    const isWaiting = new Promise((resolve) => void b.on('waiting', resolve))
    const startedMs = performance.now()
    const waiting = b.hold(name, { timeoutSeconds: 60, blockingTimeoutSeconds: 30 })
    await isWaiting
    const tookMs = performance.now() - startedMs
    down.resume()
    assert.ok(tookMs < 3_000, `it was queued after ${tookMs} ms`)
    await held.release()
    await (await waiting).release()
    await Promise.all([a.close(), b.close()])
  })

  it('failure 62: if one node fails, only the locks of its slots fail, each with an error', async () => {
    const client = await openIoredis()
    const driver = redisDriver({ client, callTimeoutSeconds: 2 })
    const names = Array.from({ length: 30 }, (_, index) => `spread ${index}`)
    const first = names.map(claimOn)
    assert.ok((await driver.acquire(first, newCall())).every((answer) => 'granted' in answer && answer.granted))
    const down = cluster.nodes[2] as Server
    const ofDown = new Set<string>()
    for (const each of names) if ((await ownerOf(slotOf(`lock:${each}`))).port === down.port) ofDown.add(each)
    assert.ok(ofDown.size > 0 && ofDown.size < names.length)
    await down.pause()
    const [hasty, patient] = [1, 10].map(
      (callTimeoutSeconds) => new DistributedLock({ driver, callTimeoutSeconds }),
    ) as [DistributedLock, DistributedLock]
    const [lost, kept] = [[...ofDown][0] as string, names.find((each) => !ofDown.has(each)) as string]
    await assert.rejects(hasty.acquire(lost, { blocking: false }), { code: 'STORE_UNAVAILABLE' })
    // In one turn: the node that hangs does not delay the answer of the other.
    const startedMs = performance.now()
    const hanging = patient.acquire(lost, { blocking: false }).catch(() => undefined)
    assert.equal((await patient.acquire(kept, { blocking: false })).acquired, false)
    assert.ok(performance.now() - startedMs < 5_000, 'it waited for the node that hangs')
    down.resume()
    await hanging
    await until(async () => {
      const answers = await driver.release(first).catch(() => [])
      return answers.length === names.length && answers.every((answer) => !(answer instanceof Error))
    }, patience('the node to be back'))
    await Promise.all([hasty.close(), patient.close()])
  })
})

const openLock = async (waiterTtlSeconds: number): Promise<DistributedLock> =>
  new DistributedLock({ driver: redisDriver({ client: await openIoredis() }), waiterTtlSeconds })

/** `a` holds the lock. The waiter of `first`, if any, and then `b` wait for it and listen. */
async function heldAndWaitedFor(
  a: DistributedLock,
  b: DistributedLock,
  lockName: string,
  {
    blockingTimeoutSeconds = 20,
    first = async () => {},
  }: { blockingTimeoutSeconds?: number; first?: () => Promise<void> } = {},
) {
  const held = await a.hold(lockName, { timeoutSeconds: 60 })
  await first()
  const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds })
  const owner = await ownerOf(slotOf(`lock:${lockName}`))
  const hears = async (): Promise<boolean> => {
    const texts = (await askRedis(owner, 'HVALS', `holdfast:{lock:${lockName}}:d`)) as string[]
    const waiters = texts.filter((text) => text.startsWith('['))
    return waiters.length > 0 && waiters.every((text) => typeof (JSON.parse(text) as unknown[])[6] === 'string')
  }
  await until(hears, patience('the waiters'))
  return { held, waiting }
}

async function tokensOf(driver: Driver, claims: readonly Claim[]): Promise<number[]> {
  const answers = await driver.acquire(claims, newCall())
  return answers.map((answer) => {
    assert.ok('granted' in answer && answer.granted, String(answer))
    return answer.fencingToken
  })
}

async function openIoredis(
  redisOptions: { username?: string; password?: string; enableReadyCheck?: boolean } = {},
): Promise<RedisClient> {
  const client = new Cluster(
    cluster.nodes.map(({ port }) => ({ host: '127.0.0.1', port })),
    { redisOptions: { commandTimeout: 5_000, ...redisOptions }, retryDelayOnTryAgain: 10, retryDelayOnMoved: 5 },
  )
  client.on('error', () => {})
  closers.push(() => client.disconnect())
  await once(client, 'ready')
  return client
}

async function openNodeRedis(): Promise<RedisClient> {
  const client = createCluster({ rootNodes: cluster.nodes.map(({ url }) => ({ url })) })
  client.on('error', () => {})
  closers.push(() => client.destroy())
  await client.connect()
  return client
}

function claimOn(lockName: string): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 }
}

/** Retried with the same claim, as the core does. Undefined: refused. */
async function grantOf(driver: Driver, claim: Claim): Promise<number | undefined> {
  const answer = await again(async () => {
    const [one] = await driver.acquire([claim], newCall())
    if (one === undefined || one instanceof Error) throw one
    return one
  })
  if (!answer.granted) await sleep(1) // so that the three rivals do not only refuse each other
  return answer.granted ? answer.fencingToken : undefined
}

async function again<T>(work: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      const done = await work()
      const [first] = Array.isArray(done) ? done : []
      if (first instanceof Error) throw first
      return done
    } catch (error) {
      if (tries === 50) throw error
      await sleep(10) // for the slot to have arrived
    }
  }
}

async function ownerOf(slot: number): Promise<Server> {
  const text = String(await askRedis(cluster.nodes[0] as Server, 'CLUSTER', 'NODES'))
  for (const line of text.split('\n')) {
    const [, address = '', , , , , , , ...ranges] = line.split(' ')
    const has = ranges.some((range) => {
      const [from, to = from] = range.split('-').map(Number)
      return !range.startsWith('[') && slot >= Number(from) && slot <= Number(to)
    })
    const port = Number(address.split('@')[0]?.split(':').at(-1))
    if (has) return cluster.nodes.find((node) => node.port === port) as Server
  }
  throw new Error(`no node has slot ${slot}`)
}

/** How often a node has answered TRYAGAIN. */
async function triesAgain(): Promise<number> {
  const infos = await Promise.all(cluster.nodes.map((node) => askRedis(node, 'INFO', 'errorstats')))
  const counts = infos.map((info) => Number(/errorstat_TRYAGAIN:count=(\d+)/.exec(String(info))?.[1] ?? 0))
  return counts.reduce((all, each) => all + each, 0)
}

async function moveSlot(slot: number, to: Server): Promise<void> {
  await (await beginMove(slot, to)).end()
}

/**
 * A lock that one driver holds and another one waits for, or whose only waiter has died. Its slot is being moved, but
 * none of its keys.
 */
async function startMovedScene(held: 'exclusive' | 'shared', waits: 'exclusive' | 'shared' | undefined) {
  const lockName = `moved whole ${++counter}`
  const [a, b] = await Promise.all([1, 2].map(async () => redisDriver({ client: await openIoredis() })))
  assert.ok(a && b)
  const first = { ...claimOn(lockName), mode: held }
  const [fencingToken] = await tokensOf(a, [first])
  const holder = { ...first, fencingToken: fencingToken as number }
  const granted: [string, number][] = []
  await b.listen?.({
    wake() {},
    granted: (claimId, grant) => granted.push([claimId, grant.fencingToken]),
    lost() {},
    disconnected() {},
  })
  const waiter = waits && { ...claimOn(lockName), mode: waits, waiterTtlMs: 60_000 }
  if (waiter !== undefined) assert.equal(await grantOf(b, waiter), undefined)
  // Otherwise not all keys of an exclusive lock would exist.
  else if (held === 'exclusive') {
    const dead = { ...claimOn(lockName), waiterTtlMs: 1 }
    assert.equal(await grantOf(b, dead), undefined)
    await sleep(2) // for the place to expire
  }
  const slot = slotOf(`lock:${lockName}`)
  const move = await beginMove(slot)
  return {
    a,
    b,
    holder,
    waiter,
    granted,
    move,
    async assertNothingLeft() {
      const { plain, data, order } = lockKeys('lock:', lockName)
      const kept = (await askRedis(await ownerOf(slot), 'EXISTS', plain, data, order)) as number
      assert.equal(kept, 0)
      await Promise.all([a.close(), b.close()])
    },
  }
}

/** Moves a slot as `redis-cli --cluster reshard` does: key by key. */
async function beginMove(slot: number, target?: Server) {
  const from = await ownerOf(slot)
  const to = target ?? (cluster.nodes.find(({ port }) => port !== from.port) as Server)
  if (from.port === to.port) return { carry: async () => {}, end: async () => {} }
  const [fromId, toId] = await Promise.all(
    [from, to].map(async (node) => String(await askRedis(node, 'CLUSTER', 'MYID'))),
  )
  await makeNewest(to)
  await askRedis(to, 'CLUSTER', 'SETSLOT', slot, 'IMPORTING', fromId as string)
  await askRedis(from, 'CLUSTER', 'SETSLOT', slot, 'MIGRATING', toId as string)
  const carry = async (...keys: string[]): Promise<void> => {
    await askRedis(from, 'MIGRATE', '127.0.0.1', to.port, '', 0, 5_000, 'KEYS', ...keys)
  }
  return {
    carry,
    async end() {
      for (;;) {
        const keys = (await askRedis(from, 'CLUSTER', 'GETKEYSINSLOT', slot, 100)) as string[]
        if (keys.length === 0) break
        await carry(...keys)
      }
      for (const node of [to, from, ...cluster.nodes])
        await askRedis(node, 'CLUSTER', 'SETSLOT', slot, 'NODE', toId as string)
    },
  }
}

/**
 * Gives a node the largest epoch, and waits until all nodes know it. Otherwise a heartbeat of the old owner that is
 * still on its way can take the slot back at one of the nodes: it deletes the slot's keys, two nodes send clients to
 * each other, and no node puts an end to it.
 */
async function makeNewest(newest: Server): Promise<void> {
  const id = String(await askRedis(newest, 'CLUSTER', 'MYID'))
  await askRedis(newest, 'CLUSTER', 'BUMPEPOCH')
  // The message for a new node has the epoch, too, and is sent at once.
  for (const { port } of cluster.nodes)
    if (port !== newest.port) await askRedis(newest, 'CLUSTER', 'MEET', '127.0.0.1', port)
  const isNewestAt = async (node: Server): Promise<boolean> => {
    const lines = String(await askRedis(node, 'CLUSTER', 'NODES'))
      .trim()
      .split('\n')
    const epochs = new Map(lines.map((line) => [line.split(' ')[0], Number(line.split(' ')[6])]))
    const own = epochs.get(id) ?? 0
    return [...epochs].every(([each, epoch]) => each === id || epoch < own)
  }
  const isNewest = async (): Promise<boolean> => (await Promise.all(cluster.nodes.map(isNewestAt))).every(Boolean)
  await until(isNewest, patience('the nodes to know the epoch'))
}

const patience = (what: string) => ({ timeoutMs: 30_000, failure: () => `timed out waiting for ${what}` })
