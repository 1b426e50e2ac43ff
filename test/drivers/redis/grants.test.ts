import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, describe, it } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { lockKeys } from '../../../src/drivers/redis/keys.ts'
import { type RedisClient, redisDriver } from '../../../src/drivers/redis.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { startProxy } from '../../harness/proxy.ts'
import { type Server, startRedis } from '../../harness/servers.ts'

/** Rule 15: a published grant is stored. Nothing is published that was not written. */

const ends: (() => unknown)[] = []
let counter = 0

afterAll(() => {
  for (const end of ends) end()
})

for (const [through, open] of [
  ['ioredis', openIoredis],
  ['node-redis', openNodeRedis],
] as const) {
  describe.concurrent(`redis: grants, through ${through}`, () => {
    it('failure 36: a release on a demoted master fails, and no grant is published', async () => {
      await using pair = await startPair()
      const { master, replica } = pair
      await using proxy = await startProxy(master.port)
      const [a, b] = [redisDriver({ client: await open(proxy.port) }), redisDriver({ client: await open(master.port) })]
      const { held, heardOn } = await heldAndWaitedFor(master, a, b)
      proxy.hold('toServer')
      const releasing = assert.rejects(only(a.release([held])), /READONLY/)
      await swap(pair)
      proxy.release('toServer')
      await releasing
      assert.deepEqual(await heardOn(master), [])
      const { leases, waiters } = await redisDriver({ client: openIoredis(replica.port) }).inspect({
        lockName: held.lockName,
      })
      assert.deepEqual([leases.length, waiters.length], [1, 1], 'the release was done')
    })

    it('failure 36: a release that is refused for lack of replicas publishes no grant', async () => {
      await using pair = await startPair()
      const { master, replica } = pair
      const [a, b] = [
        redisDriver({ client: await open(master.port) }),
        redisDriver({ client: await open(master.port) }),
      ]
      const { held, waits, heardOn } = await heldAndWaitedFor(master, a, b)
      const admin = openIoredis(master.port)
      await admin.config('SET', 'min-replicas-to-write', '1')
      await replica.kill()
      const refuses = async (): Promise<boolean> =>
        (await admin.del('x').catch((error: Error) => error)) instanceof Error
      await until(refuses, patience('the master to miss its replica'))
      await assert.rejects(only(a.release([held])), /NOREPLICAS/)
      assert.deepEqual(await heardOn(master), [])
      await admin.config('SET', 'min-replicas-to-write', '0')
      assert.equal(await only(a.release([held])), true)
      assert.deepEqual(await heardOn(master), [await tokenOf(a, waits)])
    })

    it('failure 36: on a server that is out of memory, a published grant is stored', async () => {
      await using server = await startRedis()
      const [a, b] = [
        redisDriver({ client: await open(server.port) }),
        redisDriver({ client: await open(server.port) }),
      ]
      const { held, waits, heardOn } = await heldAndWaitedFor(server, a, b)
      const admin = openIoredis(server.port)
      await admin.config('SET', 'maxmemory', '1')
      assert.equal(await only(a.release([held])), true)
      assert.deepEqual(await heardOn(server), [await tokenOf(a, waits)])
      await admin.config('SET', 'maxmemory', '0')
    })

    it('failures 37, 65: a waiter that listens at the old master has its turn after a failover', async () => {
      await using pair = await startPair()
      const { master, replica } = pair
      const [a, b] = [
        redisDriver({ client: await open(master.port) }),
        redisDriver({ client: await open(master.port) }),
      ]
      const { held, waits, heardOn } = await heldAndWaitedFor(master, a, b)
      await swap(pair)
      const c = redisDriver({ client: await open(replica.port) })
      const next = claim({ lockName: held.lockName, waiterTtlMs: 60_000 })
      await listenOn(c)
      assert.equal((await only(c.acquire([next], newCall()))).granted, false)
      // The new master counts no subscriber of the first waiter, and never had one. So it does not count as gone: the
      // messages that the new master publishes reach the subscribers of its replicas, too.
      assert.equal(await only(c.release([held])), true)
      assert.deepEqual(await heardOn(replica), [await tokenOf(c, waits)])
      assert.equal((await only(c.acquire([next], newCall()))).granted, false)
      assert.equal((await only(c.acquire([waits], newCall()))).granted, true)
    })

    it('failure 37: a waiter that listens at a replica keeps its place and receives its grant there', async () => {
      await using pair = await startPair()
      const { master, replica } = pair
      const client = await open(master.port)
      const atReplica = await open(replica.port)
      Object.assign(client, { duplicate: atReplica.duplicate.bind(atReplica) })
      const [a, b] = [redisDriver({ client: await open(master.port) }), redisDriver({ client })]
      const { held, waits, heardOn } = await heldAndWaitedFor(master, a, b)
      const behind = claim({ lockName: held.lockName, waiterTtlMs: 60_000 })
      assert.equal((await only(a.acquire([behind], newCall()))).granted, false)
      assert.equal(await only(a.release([held])), true)
      assert.deepEqual(await heardOn(master), [await tokenOf(a, waits)])
    })
  })
}

describe.concurrent('redis: grants', () => {
  it('rule 15: a script publishes after all its other commands', async () => {
    await using server = await startRedis()
    const admin = openIoredis(server.port)
    // Before any other client sends a command: ioredis cannot read one that comes right behind the answer to MONITOR.
    await admin.ping()
    const monitor = await admin.monitor()
    ends.push(() => monitor.disconnect())
    const [a, b] = [
      redisDriver({ client: openIoredis(server.port) }),
      redisDriver({ client: openIoredis(server.port) }),
    ]
    const commands: string[] = []
    monitor.on('monitor', (_, [command = ''], source) => {
      if (source === 'lua') commands.push(command.toUpperCase())
    })
    /** The commands that scripts have called since the last time. */
    const called = async (): Promise<string[]> => {
      const seen = new Promise<void>((resolve) => {
        monitor.on('monitor', (_, [command]) => command === 'echo' && resolve())
      })
      await admin.echo('the end')
      await seen
      return commands.splice(0)
    }
    const publishesLast = async (what: string): Promise<void> => {
      const list = await called()
      const first = list.indexOf('PUBLISH')
      assert.ok(first > 0, `${what}: nothing was published: ${list}`)
      assert.deepEqual(new Set(list.slice(first)), new Set(['PUBLISH']), what)
    }
    const { held } = await heldAndWaitedFor(server, a, b)
    const { lockName } = held
    const others = [0, 1, 2].map(() => claim({ lockName, waiterTtlMs: 60_000, mode: 'shared' }))
    await b.acquire(others, newCall())
    await called()
    assert.equal(await only(a.release([held])), true)
    await publishesLast('a release')
    const taker = claim({ lockName, forceUpTo: Number.MAX_SAFE_INTEGER })
    const taken = await only(a.acquire([taker], newCall()))
    assert.ok(taken.granted)
    await publishesLast('a forced release')
    assert.equal(await only(a.renew([{ ...taker, fencingToken: taken.fencingToken, ttlMs: 1_000 }])), 'renewed')
    await publishesLast('a renewal that shortens a lease')
    const brief = claim({ ttlMs: 50 })
    const [first, second] = [0, 1].map(() => claim({ lockName: brief.lockName, waiterTtlMs: 60_000, mode: 'shared' }))
    assert.ok(first && second)
    await a.acquire([brief, first, second], newCall())
    const isOver = async (): Promise<boolean> => (await admin.exists(`lock:${brief.lockName}`)) === 0
    await until(isOver, patience('the lease to end'))
    await called()
    assert.equal((await only(a.acquire([second], newCall()))).granted, true)
    await publishesLast('a request that finds another waiter’s turn to have come')
  })

  it('a client that may not publish hands the lock over, and the waiter finds it when it asks', async () => {
    await using server = await startRedis()
    const mute = openIoredis(server.port)
    await mute.call('ACL', 'SETUSER', 'mute', 'on', 'nopass', '~*', '+@all', 'resetchannels')
    await mute.call('AUTH', 'mute', 'any')
    const [a, b] = [redisDriver({ client: mute }), redisDriver({ client: openIoredis(server.port) })]
    const { held, waits, heardOn } = await heldAndWaitedFor(server, b, b)
    assert.equal(await only(a.release([held])), true)
    assert.deepEqual(await heardOn(server), [])
    assert.equal((await only(b.acquire([waits], newCall()))).granted, true)
  })

  it('if the user may not run PUBSUB, no waiter counts as gone', async () => {
    await using server = await startRedis()
    const shy = openIoredis(server.port)
    await shy.call('ACL', 'SETUSER', 'shy', 'on', 'nopass', '~*', '&*', '+@all', '-pubsub')
    await shy.call('AUTH', 'shy', 'any')
    const [a, b] = [redisDriver({ client: shy }), redisDriver({ client: openIoredis(server.port) })]
    const { held, waits, heardOn } = await heldAndWaitedFor(server, b, b)
    const behind = claim({ lockName: held.lockName, waiterTtlMs: 60_000 })
    await b.acquire([behind], newCall())
    assert.equal(await only(a.release([held])), true)
    assert.deepEqual(await heardOn(server), [await tokenOf(b, waits)])
    // The waiter is gone, but the client cannot know it.
    await b.close()
    const c = redisDriver({ client: openIoredis(server.port) })
    assert.equal(await only(a.release([waits])), true)
    assert.equal((await c.inspect({ lockName: held.lockName })).leases[0]?.claimId, behind.claimId)
  })
})

/** A lock on `server` that one driver holds and another, which listens, waits for. */
async function heldAndWaitedFor(server: Server, a: Driver, b: Driver) {
  const held = claim()
  const waits = claim({ lockName: held.lockName, waiterTtlMs: 60_000 })
  const { grants, wakes } = await listenOn(b)
  assert.equal((await only(a.acquire([held], newCall()))).granted, true)
  assert.equal((await only(b.acquire([waits], newCall()))).granted, false)
  const places = await openIoredis(server.port).hvals(lockKeys('lock:', held.lockName).data)
  const channel = /"(holdfast:wake:[^"]+)"/.exec(places.join())?.[1] ?? ''
  /** The tokens of the grants that the waiter has received, after everything that was published there up to now. */
  const heardOn = async ({ port }: Server): Promise<number[]> => {
    wakes.length = 0
    await openIoredis(port).publish(channel, JSON.stringify([waits.claimId]))
    await until(() => wakes.includes(waits.claimId), patience('a message'))
    return grants
  }
  return { held, waits, heardOn }
}

async function listenOn(driver: Driver) {
  const grants: number[] = []
  const wakes: string[] = []
  await driver.listen?.({
    wake: (target) => void wakes.push('claimId' in target ? target.claimId : ''),
    granted: (_, { fencingToken }) => void grants.push(fencingToken),
    lost() {},
    disconnected() {},
  })
  return { grants, wakes }
}

/** The token of the lease that a claim has. */
async function tokenOf(driver: Driver, { lockName, claimId }: Claim): Promise<number | undefined> {
  const { leases } = await driver.inspect({ lockName })
  return leases.find((lease) => lease.claimId === claimId)?.fencingToken
}

async function startPair() {
  const settings = { 'repl-diskless-sync-delay': '0' }
  const master = await startRedis({ settings })
  const replica = await startRedis({ settings: { ...settings, replicaof: `127.0.0.1 ${master.port}` } })
  await untilInStep(replica)
  const end = async (): Promise<void> => {
    await Promise.all([master[Symbol.asyncDispose](), replica[Symbol.asyncDispose]()])
  }
  return { master, replica, [Symbol.asyncDispose]: end }
}

/** The replica becomes the master, and the master its replica. Connections stay open. */
async function swap({ master, replica }: { master: Server; replica: Server }): Promise<void> {
  const old = openIoredis(master.port)
  // When the replica has this, it has all that was written before it.
  await old.set('last', 'x')
  assert.equal(await old.wait(1, 10_000), 1)
  await openIoredis(replica.port).call('REPLICAOF', 'NO', 'ONE')
  await old.call('REPLICAOF', '127.0.0.1', `${replica.port}`)
  await untilInStep(master)
}

async function untilInStep(replica: Server): Promise<void> {
  const control = openIoredis(replica.port)
  const isUp = async (): Promise<boolean> => (await control.info('replication')).includes('master_link_status:up')
  await until(isUp, patience('the replica'))
}

function openIoredis(port: number): Redis {
  const opened = new Redis(port, { commandTimeout: 10_000, retryStrategy: () => 50 })
  opened.on('error', () => {})
  ends.push(() => opened.disconnect())
  return opened
}

async function openNodeRedis(port: number): Promise<RedisClient & { duplicate: () => unknown }> {
  const opened = createClient({ url: `redis://127.0.0.1:${port}` })
  opened.on('error', () => {})
  await opened.connect()
  ends.push(() => opened.destroy())
  return opened as unknown as RedisClient & { duplicate: () => unknown }
}

function claim(changes: Partial<Claim> = {}): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  const plain = { mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 } as const
  return { lockName: `grants:${counter}`, claimId, holderId: 'h', ...plain, ...changes }
}

async function only<Answer>(answers: Promise<readonly (Answer | Error)[]>): Promise<Answer> {
  const [answer] = await answers
  if (answer === undefined || answer instanceof Error) throw answer
  return answer
}

const patience = (what: string) => ({ timeoutMs: 30_000, failure: () => `timed out waiting for ${what}` })
