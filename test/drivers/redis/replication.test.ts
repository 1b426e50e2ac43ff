import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { createClient, createSentinel } from 'redis'
import { afterAll, describe, it } from 'vitest'
import type { AcquireAnswer, Claim, Driver, DriverListener, Grant } from '../../../src/core/driver.ts'
import { systemClock } from '../../../src/core/time/clock.ts'
import { connectionOf } from '../../../src/drivers/redis/client.ts'
import { MasterWatch } from '../../../src/drivers/redis/connection.ts'
import { openRedis, type RedisClient, type RedisWarning, redisDriver, redisFence } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { type FaultProxy, startProxy } from '../../harness/proxy.ts'
import { type RedisSentinel, type Server, startRedis, startRedisSentinel } from '../../harness/servers.ts'
import { askRedis, type RedisReply } from '../../harness/wire.ts'

const clients: { disconnect(): void }[] = []
let counter = 0

afterAll(() => {
  for (const client of clients) client.disconnect()
})

describe.concurrent('redis with replicas', () => {
  it('failure 7: after a failover that lost the lease, the next token is still higher', async () => {
    await using pair = await startPair()
    const { master, replica, link } = pair
    const first = await grantOn(master, 'order')
    const copied = async (): Promise<boolean> => (await ask(replica, 'EXISTS', 'lock:order')) === 1
    await until(copied, patience('the first lease on the replica'))
    // From now on the replica receives nothing.
    link.blackHole()
    const second = await grantOn(master, 'other')
    await master.kill()
    await ask(replica, 'REPLICAOF', 'NO', 'ONE')
    assert.ok((await grantOn(replica, 'other')).fencingToken > second.fencingToken, 'the lost one')
    await ask(replica, 'DEL', 'lock:order')
    assert.ok((await grantOn(replica, 'order')).fencingToken > first.fencingToken, 'the replicated one')
  })

  it('failure 7: with too few replicas, the claim fails and is withdrawn', async () => {
    await using pair = await startPair()
    const { master, replica } = pair
    const waitingFor = (waitSeconds: number): DistributedLock =>
      new DistributedLock({ driver: redisDriver({ client: client(master), replicas: { count: 1, waitSeconds } }) })
    const [patient, hasty] = [waitingFor(20), waitingFor(0.2)]
    await (await patient.hold('safe')).release()
    await replica.pause()
    const message = /0 of 1 replicas confirmed the lease within 200 ms: it does not count/
    await assert.rejects(hasty.acquire('unsafe', { blocking: false }), { code: 'STORE_UNAVAILABLE', message })
    const watch = redisDriver({ client: client(master) })
    const isFree = async (): Promise<boolean> => (await watch.inspect({ lockName: 'unsafe' })).leases.length === 0
    await until(isFree, patience('the lease to be given back'))
    replica.resume()
    await (await patient.hold('unsafe')).release()
    await Promise.all([patient.close(), hasty.close()])
  })

  it('a grant that arrives before the refusal is a hint, and asking again makes WAIT cover it', async () => {
    await using pair = await startPair()
    await using proxy = await startProxy(pair.master.port)
    // The proxy delays answers, but not messages: the subscription does not go through it.
    const slow = client(proxy)
    Object.assign(slow, { duplicate: (options: object) => new Redis(pair.master.port, '127.0.0.1', options) })
    const driver = redisDriver({ client: slow, replicas: { count: 1, waitSeconds: 0.3 } })
    const direct = redisDriver({ client: client(pair.master) })
    const told: string[] = []
    const wake: DriverListener['wake'] = (target) => void told.push(JSON.stringify(target))
    await driver.listen?.({ wake, granted() {}, lost() {}, disconnected: assert.fail })
    const [holds, waits] = [claim('order'), { ...claim('order'), waiterTtlMs: 20_000 }]
    await only(direct.acquire([holds], newCall()))
    await slow.ping() // until it is connected
    proxy.hold('toClient')
    const answer = driver.acquire([waits], newCall())
    const queued = async (): Promise<boolean> => (await direct.inspect({ lockName: 'order' })).waiters.length === 1
    await until(queued, patience('the waiter'))
    await until(() => isInStep(pair.master), patience('the replica to have confirmed the waiter'))
    // The replica has confirmed all earlier writes of this connection, and never receives the grant.
    pair.link.blackHole()
    await direct.release([holds])
    await until(() => told.length > 0, patience('the message'))
    proxy.release('toClient')
    assert.equal((await only(answer)).granted, false)
    await assert.rejects(only(driver.acquire([waits], newCall())), /0 of 1 replicas confirmed the lease/)
    await driver.close()
  })

  for (const [through, open] of [
    ['ioredis', openAt],
    ['node-redis', openNodeRedisAt],
  ] as const) {
    it(`failure 53: WAIT that outlives its master does not confirm a lost lease, through ${through}`, async () => {
      await using scene = await startFailover()
      const { front, master, promoted } = scene
      const driver = redisDriver({ client: await open(front), replicas: { count: 1, waitSeconds: 10 } })
      const held = claim('order')
      await only(driver.acquire([claim('before')], newCall()))
      scene.cutOff()
      const answer = driver.acquire([held], newCall()).then(([one]) => one, asError)
      const waits = async (): Promise<boolean> => String(await ask(master, 'CLIENT', 'LIST')).includes(' cmd=wait ')
      await until(waits, patience('WAIT to be under way'))
      await scene.failOver()
      await assertNotHeldTwice(promoted, held, await answer)
    })

    it(`failure 53: WAIT on the next master does not confirm a lease of the last, through ${through}`, async () => {
      await using scene = await startFailover()
      const { front, master, promoted } = scene
      const driver = redisDriver({ client: await open(front), replicas: { count: 1, waitSeconds: 10 } })
      const held = claim('order')
      await only(driver.acquire([claim('before')], newCall()))
      scene.cutOff()
      front.hold('toClient')
      const answer = driver.acquire([held], newCall()).then(([one]) => one, asError)
      const granted = async (): Promise<boolean> => (await ask(master, 'EXISTS', 'lock:order')) === 1
      await until(granted, patience('the grant'))
      await scene.failOver()
      // The grant and the end of its connection arrive together.
      front.release('toClient')
      await assertNotHeldTwice(promoted, held, await answer)
    })
  }

  it('failure 53: a renewal that too few replicas confirmed is unknown, and moves no deadline', async () => {
    await using pair = await startPair()
    const replicas = { count: 1, waitSeconds: 0.2 }
    const driver = redisDriver({ client: client(pair.master), replicas })
    const lock = new DistributedLock({ driver })
    const lease = await lock.hold('order', { timeoutSeconds: 20, heartbeat: false, blocking: true })
    await pair.replica.pause()
    await assert.rejects(lease.extend(600), { code: 'STORE_UNAVAILABLE', message: /0 of 1 replicas confirmed/ })
    assert.ok(lease.remainingSeconds <= 20, `it relies on ${lease.remainingSeconds} s`)
    assert.ok(lease.held, 'one renewal that is not known is no loss')
    pair.replica.resume()
    const patient = redisDriver({ client: client(pair.master), replicas: { count: 1, waitSeconds: 20 } })
    const [shown] = (await patient.inspect({ lockName: 'order' })).leases
    const { claimId = '', fencingToken = 0 } = shown ?? {}
    const renewal = { lockName: 'order', claimId, fencingToken, ttlMs: 60_000 }
    assert.deepEqual(await patient.renew([renewal, { ...renewal, claimId: 'another' }]), ['renewed', 'lost'])
    await lock.close()
  })

  it('a waiter with `replicas` is woken, asks, and is granted when they have confirmed', async () => {
    await using pair = await startPair()
    const replicas = { count: 1, waitSeconds: 10 }
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

  it('failure 8: tokens tell the holders of two masters apart; min-replicas-to-write stops the old', async () => {
    await using pair = await startPair()
    const { master, replica } = pair
    await using data = await startRedis()
    await ask(replica, 'REPLICAOF', 'NO', 'ONE')
    const old = await grantOn(master, 'order')
    const current = await grantOn(replica, 'order')
    const fence = redisFence({ client: client(data) })
    await fence.set('order', 'current', current)
    await assert.rejects(fence.set('order', 'old', old), { code: 'STALE_TOKEN' })
    await ask(master, 'CONFIG', 'SET', 'min-replicas-to-write', '1')
    const onMaster = redisDriver({ client: client(master), onWarning: () => {} })
    await until(async () => {
      const answer = await grantFrom(onMaster, claim('another')).catch((error: Error) => error)
      return answer instanceof Error && answer.message.includes('NOREPLICAS')
    }, patience('the old master to refuse'))
  })

  it('failure 8: an old master grants nothing that all replicas must confirm, once one is promoted', async () => {
    await using pair = await startPair()
    const { master, replica } = pair
    await using other = await startRedis({ settings: { ...SETTINGS, replicaof: `127.0.0.1 ${master.port}` } })
    await until(() => isLinked(other), patience('the second replica'))
    const confirmedBy = (count: number): Driver =>
      redisDriver({ client: client(master), replicas: { count, waitSeconds: 1 } })
    const [all, one] = [confirmedBy(2), confirmedBy(1)]
    // A replica confirms once a second, and sooner when it is asked.
    const isConfirmed = (): Promise<boolean> =>
      grantFrom(all, claim('before')).then(
        () => true,
        () => false,
      )
    await until(isConfirmed, patience('a lease that both replicas confirm'))
    await ask(replica, 'REPLICAOF', 'NO', 'ONE')
    // As docs/drivers/redis.md says: the replica that is left confirms for the old master.
    assert.ok((await grantFrom(one, claim('order'))).granted)
    await assert.rejects(grantFrom(all, claim('another')), /1 of 2 replicas confirmed the lease/)
    assert.ok((await grantOn(replica, 'order')).granted, 'the new master has never seen it')
  })

  for (const [through, open] of [
    ['ioredis', async (front) => redisDriver({ client: await openAt(front) })],
    ['node-redis', async (front) => redisDriver({ client: await openNodeRedisAt(front) })],
    ['a URL', ({ port }) => openRedis(`redis://127.0.0.1:${port}`)],
  ] satisfies [string, (front: FaultProxy) => Promise<Driver>][]) {
    it(`the client of a demoted master reconnects to the new one at the same address, through ${through}`, async () => {
      await using scene = await startFailover()
      const { front, promoted } = scene
      const driver = await open(front)
      const lock = new DistributedLock({ driver, waiterTtlSeconds: 300 })
      const other = redisDriver({ client: client(promoted) })
      const held = { ...claim('order'), ttlMs: 300_000 }
      const { fencingToken } = await grantFrom(driver, held)
      // The slow poll comes after 100 s. A waiter with less time is served only if it is woken.
      const waiting = lock.hold('order', { blockingTimeoutSeconds: 50 })
      await until(() => isSubscribed(scene.master), patience('the waiter to listen'))
      await scene.demote()
      const takes = async (): Promise<boolean> => {
        const [answer] = await driver.acquire([claim(`more ${++counter}`)], newCall()).catch((error: Error) => [error])
        if (!(answer instanceof Error)) return true
        assert.match(answer.message, /READONLY|closed|connection/i)
        return false
      }
      await until(takes, patience('the driver to reach the new master'))
      await until(() => isSubscribed(promoted), patience('the waiter to listen there'))
      await other.release([{ ...held, fencingToken }])
      await (await waiting).release()
      await lock.close()
      await driver.close()
    }, 60_000)
  }

  it('a client that connected to a master that was demoted before its first write reaches the new one', async () => {
    await using scene = await startFailover()
    const { front } = scene
    const own = await openAt(front)
    const driver = redisDriver({ client: own, onWarning: () => {} })
    await connectionOf(own).command('', ['PING'])
    await scene.demote()
    const takes = async (): Promise<boolean> => {
      const [answer] = await driver.acquire([claim('first')], newCall()).catch((error: Error) => [error])
      return !(answer instanceof Error)
    }
    await until(takes, patience('the driver to reach the new master'))
    await driver.close()
  }, 60_000)

  for (const [what, write] of [
    [
      'leases',
      (driver) =>
        driver.acquire([claim('taken'), claim(`more ${++counter}`)], newCall()) as Promise<readonly unknown[]>,
    ],
    [
      'rates',
      async (driver) => driver.consume?.([rate('taken'), rate(`more ${++counter}`)]) as Promise<readonly unknown[]>,
    ],
  ] satisfies [string, (driver: Driver) => Promise<readonly unknown[]>][]) {
    it(`a master that wrote only a later entry of a list is left when it is demoted: ${what}`, async () => {
      await using scene = await startFailover()
      const { front, master } = scene
      await write(redisDriver({ client: client(master) })) // takes the lock that the driver is then refused
      const driver = redisDriver({ client: await openAt(front) })
      const [first, second] = (await write(driver)) as { granted?: boolean; allowed?: boolean }[]
      assert.deepEqual([first?.granted ?? first?.allowed, second?.granted ?? second?.allowed], [false, true])
      await scene.demote()
      const takes = async (): Promise<boolean> => {
        const answers = await write(driver).catch((error: Error) => [error])
        return answers.every((answer) => !(answer instanceof Error))
      }
      await until(takes, patience('the driver to reach the new master'))
      await driver.close()
    }, 60_000)
  }

  for (const [what, changes] of [
    ['refused', {}],
    ['refused where others wait', { mode: 'shared' }],
    ['queued', { waiterTtlMs: 60_000 }],
  ] satisfies [string, Partial<Claim>][]) {
    it(`a client that was only ever ${what} leaves a demoted master`, async () => {
      await using scene = await startFailover()
      const { front, master } = scene
      const holder = redisDriver({ client: client(master) })
      await grantFrom(holder, claim('order'))
      if (what.endsWith('wait')) await holder.acquire([{ ...claim('order'), waiterTtlMs: 60_000 }], newCall())
      const driver = redisDriver({ client: await openAt(front) })
      assert.equal((await only(driver.acquire([{ ...claim('order'), ...changes }], newCall()))).granted, false)
      await scene.demote()
      const takes = async (): Promise<boolean> => {
        const [answer] = await driver.acquire([claim(`more ${++counter}`)], newCall()).catch((error: Error) => [error])
        return !(answer instanceof Error)
      }
      await until(takes, { ...patience('the driver to reach the new master'), timeoutMs: 10_000 })
      await driver.close()
    }, 60_000)
  }

  it('a replica answers no claim, not even with a refusal', async () => {
    await using pair = await startPair()
    const { master, replica } = pair
    const holder = redisDriver({ client: client(master) })
    await grantFrom(holder, claim('order'))
    await holder.acquire([{ ...claim('order'), waiterTtlMs: 60_000 }], newCall())
    await until(() => isInStep(master), patience('the replica to have all'))
    const driver = redisDriver({ client: client(replica), onWarning: () => {} })
    for (const mode of ['exclusive', 'shared'] as const) {
      await assert.rejects(
        only(driver.acquire([{ ...claim('order'), mode }], newCall())),
        /READONLY.*connect to the master/s,
      )
    }
  })

  for (const [through, open] of [
    ['ioredis', openAt],
    ['node-redis', openNodeRedisAt],
  ] as const) {
    it(`a client that was connected to a replica from the start stays for a second, through ${through}`, async () => {
      await using pair = await startPair()
      const openedMs = performance.now()
      const own = await open(pair.replica)
      const idOf = (): Promise<unknown> => connectionOf(own).command('', ['CLIENT', 'ID'])
      const driver = redisDriver({ client: own, onWarning: () => {} })
      const id = await idOf()
      for (let round = 0; round < 3; round += 1) {
        // If the machine is too busy, this checks less, and reports no false error.
        if (performance.now() - openedMs > 500) return
        await assert.rejects(only(driver.acquire([claim('order')], newCall())), /READONLY.*connect to the master/s)
      }
      if (performance.now() - openedMs < 900) assert.equal(await idOf(), id)
    })
  }

  it('while the address leads to the demoted master, the client reconnects once a second', () => {
    let [nowMs, reconnects, changes] = [0, 0, 0]
    const clock = { ...systemClock, now: () => ({ monotonicMs: nowMs, wallMs: nowMs }) }
    const watch = new MasterWatch(
      () => {
        reconnects += 1
      },
      { clock },
    )
    watch.onChange(() => {
      changes += 1
    })
    const refused = new Error('READONLY You can’t write against a read only replica.')
    const callsFor = (ms: number): void => {
      for (let passed = 0; passed < ms; passed += 50) {
        watch.failed(refused)
        nowMs += 50
      }
    }
    callsFor(5_000)
    assert.equal(reconnects, 4, 'the client may have connected while the master was demoted')
    assert.equal(watch.neverWrote, true)
    watch.wrote()
    watch.failed(new Error('OOM command not allowed'))
    assert.equal(reconnects, 4, 'it is still the master')
    callsFor(5_000)
    assert.equal(reconnects, 9)
    assert.equal(changes, 0)
    watch.wrote()
    watch.wrote()
    assert.equal(changes, 1)
  })

  it('a read-only replica causes a warning, and the error of a claim says what to do', async () => {
    await using pair = await startPair()
    const warnings: RedisWarning[] = []
    const driver = redisDriver({ client: client(pair.replica), onWarning: (warning) => warnings.push(warning) })
    await assert.rejects(
      only(driver.acquire([claim('order')], newCall())),
      /READONLY.*connect to the master, or through Sentinel/s,
    )
    await until(() => warnings.length > 0, patience('the warning'))
    assert.equal(warnings[0]?.code, 'REPLICA')
  })

  for (const [through, open] of [
    ['ioredis', openIoredis],
    ['node-redis', openNodeRedis],
  ] as const) {
    it(`failure 7: after a failover by Sentinel a waiter gets a higher token, through ${through}`, async () => {
      await using sentinel = await startRedisSentinel()
      const lockOn = async (): Promise<DistributedLock> =>
        new DistributedLock({ driver: redisDriver({ client: await open(sentinel) }), waiterTtlSeconds: 3 })
      const [a, b] = [await lockOn(), await lockOn()]
      await (await b.hold('another')).release() // until it is connected
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

/** One address, behind which the master is replaced by its replica, which has another replica. */
interface Failover extends AsyncDisposable {
  readonly front: FaultProxy
  readonly master: Server
  readonly promoted: Server
  /** From now on the replica receives nothing from the master. */
  cutOff(): void
  failOver(): Promise<void>
  /** A planned failover: the old master becomes a replica and keeps its connections. New ones reach the new master. */
  demote(): Promise<void>
}

async function startFailover(): Promise<Failover> {
  const pair = await startPair()
  const { master, replica: promoted, link } = pair
  const second = await startRedis({ settings: { ...SETTINGS, replicaof: `127.0.0.1 ${promoted.port}` } })
  await until(() => isLinked(second), patience('the second replica'))
  const front = await startProxy(master.port)
  return {
    front,
    master,
    promoted,
    cutOff: () => link.blackHole(),
    async failOver() {
      front.redirect(promoted.port)
      await ask(promoted, 'REPLICAOF', 'NO', 'ONE')
      await master.kill()
    },
    async demote() {
      await until(() => isInStep(master), patience('the replica to have all'))
      await ask(promoted, 'REPLICAOF', 'NO', 'ONE')
      await ask(master, 'REPLICAOF', '127.0.0.1', promoted.port)
      front.redirect(promoted.port)
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([front.close(), second[Symbol.asyncDispose](), pair[Symbol.asyncDispose]()])
    },
  }
}

/** A grant counts only if the server that is the master now has it. */
async function assertNotHeldTwice(
  master: Server,
  held: Claim,
  answer: AcquireAnswer | Error | undefined,
): Promise<void> {
  const rival = await only(redisDriver({ client: client(master) }).acquire([claim(held.lockName)], newCall()))
  const isHeld = answer !== undefined && 'granted' in answer && answer.granted
  assert.ok(!(isHeld && rival.granted), `two holders: ${JSON.stringify(answer)} and ${JSON.stringify(rival)}`)
}

const asError = (error: Error): Error => error

const rate = (name: string) => ({ name, cost: 1, limits: [{ limit: 1, periodMs: 3_600_000, burst: 1 }] })

async function openAt({ port }: { port: number }): Promise<RedisClient> {
  return client({ port })
}

async function openNodeRedisAt({ port }: { port: number }): Promise<RedisClient> {
  const opened = createClient({ url: `redis://127.0.0.1:${port}` })
  opened.on('error', () => {})
  await opened.connect()
  clients.push({ disconnect: () => opened.destroy() })
  return opened
}

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
  /** The link between the two. */
  readonly link: FaultProxy
  readonly master: Server
  readonly replica: Server
}

// Otherwise the master would wait some seconds before it sends its data.
const SETTINGS = { 'repl-diskless-sync-delay': '0' }

async function startPair(): Promise<Pair> {
  const master = await startRedis({ settings: SETTINGS })
  const link = await startProxy(master.port)
  const replica = await startRedis({ settings: { ...SETTINGS, replicaof: `127.0.0.1 ${link.port}` } })
  await until(() => isLinked(replica), patience('the replica'))
  return {
    link,
    master,
    replica,
    async [Symbol.asyncDispose]() {
      await Promise.all([link.close(), master[Symbol.asyncDispose](), replica[Symbol.asyncDispose]()])
    },
  }
}

/** Over a separate connection, which is closed after the answer. */
const ask = ({ port }: Server, ...command: (string | number)[]): Promise<RedisReply> =>
  askRedis({ port, timeoutMs: 10_000 }, ...command)

async function isLinked(replica: Server): Promise<boolean> {
  return String(await ask(replica, 'INFO', 'replication')).includes('master_link_status:up')
}

async function isSubscribed(server: Server): Promise<boolean> {
  return ((await ask(server, 'PUBSUB', 'CHANNELS', 'holdfast:wake:*')) as string[]).length > 0
}

/** Its replica has confirmed all that was written. */
async function isInStep(master: Server): Promise<boolean> {
  const info = String(await ask(master, 'INFO', 'replication'))
  const [confirmed, written] = [/offset=(\d+)/, /master_repl_offset:(\d+)/].map((each) => Number(each.exec(info)?.[1]))
  return confirmed === written
}

function client({ port }: Pick<Server, 'port'>): Redis {
  const opened = new Redis(port, { commandTimeout: 10_000, retryStrategy: (times) => Math.min(50 * times, 1_000) })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

function claim(lockName: string): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 }
}

async function only<Answer>(answers: Promise<readonly (Answer | Error)[]>): Promise<Answer> {
  const [answer] = await answers
  if (answer === undefined || answer instanceof Error) throw answer
  return answer
}

const grantOn = (server: Server, lockName: string): Promise<Grant> =>
  grantFrom(redisDriver({ client: client(server), onWarning: () => {} }), claim(lockName))

async function grantFrom(driver: Driver, of: Claim): Promise<Grant> {
  const answer = await only(driver.acquire([of], newCall()))
  assert.ok(answer.granted)
  return answer
}

const patience = (what: string) => ({ timeoutMs: 30_000, failure: () => `timed out waiting for ${what}` })
