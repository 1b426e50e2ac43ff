import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { createSentinel } from 'redis'
import { afterAll, describe, it } from 'vitest'
import type { Claim, Driver, Grant } from '../../src/core/driver.ts'
import { type RedisClient, type RedisWarning, redisDriver, redisFence } from '../../src/drivers/redis.ts'
import { DistributedLock } from '../../src/index.ts'
import { until } from '../harness/processes.ts'
import { type FaultProxy, startProxy } from '../harness/proxy.ts'
import { type RedisSentinel, type Server, startRedis, startRedisSentinel } from '../harness/servers.ts'

const clients: { disconnect(): void }[] = []
let counter = 0

afterAll(() => {
  for (const client of clients) client.disconnect()
})

describe.concurrent('redis with replicas', () => {
  it('failure 7: after a failover that lost the lease, the next token is higher all the same', async () => {
    await using pair = await startPair()
    const { master, replica, link } = pair
    const first = await grantOn(master, 'order')
    const copied = async (): Promise<boolean> => (await client(replica).exists('lock:order')) === 1
    await until(copied, patience('the first lease on the replica'))
    // What the master sends from now on never arrives.
    link.blackHole()
    const second = await grantOn(master, 'other')
    await master.kill()
    await client(replica).call('REPLICAOF', 'NO', 'ONE')
    assert.ok((await grantOn(replica, 'other')).fencingToken > second.fencingToken, 'the lost one')
    await client(replica).del('lock:order')
    assert.ok((await grantOn(replica, 'order')).fencingToken > first.fencingToken, 'the replicated one')
  })

  it('failure 7: with too few replicas, a grant is given back and the claim fails', async () => {
    await using pair = await startPair()
    const { master, replica } = pair
    const waitingFor = (timeoutSeconds: number): Driver =>
      redisDriver({ client: client(master), replicas: { count: 1, timeoutSeconds } })
    const [patient, hasty] = [waitingFor(20), waitingFor(0.2)]
    assert.equal((await only(patient.acquire([claim('safe')]))).granted, true)
    await replica.pause()
    const unsafe = claim('unsafe')
    await assert.rejects(only(hasty.acquire([unsafe])), /0 of 1 replicas confirmed .* given back/)
    assert.deepEqual((await hasty.inspect({ lockName: 'unsafe' })).leases, [])
    replica.resume()
    assert.equal((await only(patient.acquire([unsafe]))).granted, true)
  })

  it('a grant that is heard before the refusal is asked for again, so that WAIT speaks of it', async () => {
    await using pair = await startPair()
    await using proxy = await startProxy(pair.master.port)
    // Answers are kept back, messages are not: its subscription takes another way.
    const slow = client(proxy)
    Object.assign(slow, { duplicate: (options: object) => new Redis(pair.master.port, '127.0.0.1', options) })
    const driver = redisDriver({ client: slow, replicas: { count: 1, timeoutSeconds: 0.3 } })
    const direct = redisDriver({ client: client(pair.master) })
    const told: string[] = []
    await driver.listen?.({ wake() {}, granted: (claimId) => told.push(claimId), lost() {}, deaf: assert.fail })
    const [holds, waits] = [claim('order'), { ...claim('order'), waitMs: 20_000 }]
    await only(direct.acquire([holds]))
    await slow.ping() // it is connected
    proxy.hold('toClient')
    const answer = driver.acquire([waits])
    const queued = async (): Promise<boolean> => (await direct.inspect({ lockName: 'order' })).waiters.length === 1
    await until(queued, patience('the waiter'))
    await until(() => isInStep(pair.master), patience('the replica to have confirmed the waiter'))
    // The replica has confirmed all that this connection has written so far, and never hears of the grant.
    pair.link.blackHole()
    await direct.release([holds])
    await until(() => told.length > 0, patience('the message'))
    proxy.release('toClient')
    await assert.rejects(only(answer), /0 of 1 replicas confirmed .* given back/)
    assert.deepEqual((await direct.inspect({ lockName: 'order' })).leases, [])
    await driver.close()
  })

  it('a waiter that waits for replicas is told, asks, and is granted when they have confirmed', async () => {
    await using pair = await startPair()
    const replicas = { count: 1, timeoutSeconds: 10 }
    const [a, b] = [0, 1].map(
      () =>
        new DistributedLock({ driver: redisDriver({ client: client(pair.master), replicas }), waiterTtlSeconds: 60 }),
    ) as [DistributedLock, DistributedLock]
    const held = await a.hold('order')
    const waiting = b.hold('order', { blockingTimeoutSeconds: 10 })
    const watch = redisDriver({ client: client(pair.master) })
    const waits = async (): Promise<boolean> => (await watch.inspect({ lockName: 'order' })).waiters.length === 1
    await until(waits, patience('the waiter'))
    await held.release()
    assert.ok((await waiting).held)
    await Promise.all([a.close(), b.close()])
  })

  it('failure 8: while the old master still takes writes, tokens tell the holders apart; min-replicas-to-write stops it', async () => {
    await using pair = await startPair()
    const { master, replica } = pair
    await using data = await startRedis()
    await client(replica).call('REPLICAOF', 'NO', 'ONE')
    const old = await grantOn(master, 'order')
    const current = await grantOn(replica, 'order')
    const fence = redisFence({ client: client(data) })
    await fence.set('order', 'current', current)
    await assert.rejects(fence.set('order', 'old', old), { code: 'STALE_TOKEN' })
    await client(master).config('SET', 'min-replicas-to-write', '1')
    await until(async () => {
      const answer = await grantOn(master, 'another').catch((error: Error) => error)
      return answer instanceof Error && answer.message.includes('NOREPLICAS')
    }, patience('the old master to refuse'))
  })

  it('a read-only replica is warned of, and a claim there fails with what to do', async () => {
    await using pair = await startPair()
    const warnings: RedisWarning[] = []
    const driver = redisDriver({ client: client(pair.replica), onWarning: (warning) => warnings.push(warning) })
    await assert.rejects(
      only(driver.acquire([claim('order')])),
      /READONLY.*connect to the master, or through Sentinel/s,
    )
    await until(() => warnings.length > 0, patience('the warning'))
    assert.equal(warnings[0]?.code, 'REPLICA')
  })

  for (const [through, open] of [
    ['ioredis', openIoredis],
    ['node-redis', openNodeRedis],
  ] as const) {
    it(`failure 7: Sentinel fails over under a waiter, who gets the lock from the new master with a higher token, through ${through}`, async () => {
      await using sentinel = await startRedisSentinel()
      const lockOn = async (): Promise<DistributedLock> =>
        new DistributedLock({ driver: redisDriver({ client: await open(sentinel) }), waiterTtlSeconds: 3 })
      const [a, b] = [await lockOn(), await lockOn()]
      await (await b.hold('another')).release() // it is connected
      const held = await a.hold('order', { timeoutSeconds: 8, heartbeat: false })
      const refused = await b.acquire('order', { blocking: false })
      assert.equal(refused.acquired, false)
      const waiting = b.hold('order', { blockingTimeoutSeconds: 60, timeoutSeconds: 30 })
      await sentinel.master.kill()
      const lease = await waiting
      assert.ok(lease.fencingToken > held.fencingToken)
      assert.notEqual(await sentinel.currentMasterPort(), sentinel.master.port)
      await Promise.all([a.close(), b.close()])
    }, 60_000)
  }
})

async function openIoredis(sentinel: RedisSentinel): Promise<RedisClient> {
  const opened = new Redis({
    sentinels: sentinel.sentinels.map(({ port }) => ({ host: '127.0.0.1', port })),
    name: sentinel.masterName,
    sentinelRetryStrategy: () => 100,
    retryStrategy: () => 100,
    commandTimeout: 10_000,
    maxRetriesPerRequest: null,
  })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

async function openNodeRedis(sentinel: RedisSentinel): Promise<RedisClient> {
  const opened = createSentinel({
    name: sentinel.masterName,
    sentinelRootNodes: sentinel.sentinels.map(({ port }) => ({ host: '127.0.0.1', port })),
    scanInterval: 500,
  })
  opened.on('error', () => {})
  await opened.connect()
  clients.push({ disconnect: () => void opened.destroy().catch(() => {}) })
  return opened
}

interface Pair extends AsyncDisposable {
  /** Between the two. */
  readonly link: FaultProxy
  readonly master: Server
  readonly replica: Server
}

async function startPair(): Promise<Pair> {
  const settings = { 'repl-diskless-sync-delay': '0' }
  const master = await startRedis({ settings })
  const link = await startProxy(master.port)
  const replica = await startRedis({ settings: { ...settings, replicaof: `127.0.0.1 ${link.port}` } })
  const inStep = async (): Promise<boolean> =>
    (await client(replica).info('replication')).includes('master_link_status:up')
  await until(inStep, patience('the replica'))
  return {
    link,
    master,
    replica,
    async [Symbol.asyncDispose]() {
      await Promise.all([link.close(), master[Symbol.asyncDispose](), replica[Symbol.asyncDispose]()])
    },
  }
}

/** Its replica has confirmed all that was written. */
async function isInStep(master: Server): Promise<boolean> {
  const info = await client(master).info('replication')
  const [confirmed, written] = [/offset=(\d+)/, /master_repl_offset:(\d+)/].map((each) => Number(each.exec(info)?.[1]))
  return confirmed === written
}

function client({ port }: Pick<Server, 'port'>): Redis {
  const opened = new Redis(port, { commandTimeout: 10_000, retryStrategy: () => 50 })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

function claim(lockName: string): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waitMs: 0 }
}

async function only<Answer>(answers: Promise<readonly (Answer | Error)[]>): Promise<Answer> {
  const [answer] = await answers
  if (answer === undefined || answer instanceof Error) throw answer
  return answer
}

async function grantOn(server: Server, lockName: string): Promise<Grant> {
  const driver: Driver = redisDriver({ client: client(server), onWarning: () => {} })
  const answer = await only(driver.acquire([claim(lockName)]))
  assert.ok(answer.granted)
  return answer
}

const patience = (what: string) => ({ timeoutMs: 20_000, failure: () => `waited in vain for ${what}` })
