import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, inject, it, vi } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { type RedisClient, redisDriver } from '../../../src/drivers/redis.ts'
import { redlockDriver } from '../../../src/drivers/redlock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { type FaultProxy, startProxy } from '../../harness/proxy.ts'
import { startRedis } from '../../harness/servers.ts'

/** A quorum consists of different servers. A server with two names has one vote. */
let urls: string[]
/** A second and a third name for the first server. */
let proxies: FaultProxy[]
let counter = 0
const clients: Redis[] = []

beforeAll(async () => {
  urls = inject('servers').redis ?? []
  const port = Number(new URL(urls[0] ?? '').port)
  proxies = await Promise.all([startProxy(port), startProxy(port)])
})

afterAll(async () => {
  for (const each of clients) each.disconnect()
  await Promise.all(proxies.map((proxy) => proxy.close()))
})

describe('redlock: servers', () => {
  it('a driver that is in the list twice is refused', () => {
    const [one, two] = [node(urls[0]), node(urls[1])]
    assert.throws(() => redlockDriver({ nodes: [one, two, one] }), {
      code: 'INVALID_ARGUMENT',
      message: /nodes must be a different server each: node 3 has the client of node 1/,
    })
  })

  it('a client that is in the list twice is refused, also with different settings', async () => {
    const [own, other] = [client(urls[0]), client(urls[1])]
    const drivers = [redisDriver({ client: own }), redisDriver({ client: own, prefix: 'x:' })]
    assert.throws(() => redlockDriver({ nodes: [...drivers, redisDriver({ client: other })] }), /node 2 has the client/)
    const nodeRedis = createClient({ url: urls[0] ?? '' }) as unknown as RedisClient
    const again = [nodeRedis, nodeRedis].map((each) => redisDriver({ client: each }))
    assert.throws(() => redlockDriver({ nodes: again }), /node 2 has the client of node 1/)
  })

  it('takes clients instead of drivers, and closes neither', async () => {
    const three = [client(urls[0]), client(urls[1]), client(urls[2])]
    const [driver, other] = [
      redlockDriver({ clients: three, persistent: true }),
      redlockDriver({ nodes: three.map((each) => redisDriver({ client: each })), persistent: true }),
    ]
    const of = claim()
    const { fencingToken } = await grantOf(driver, of)
    assert.deepEqual((await other.inspect({ lockName: of.lockName })).leases[0]?.fencingToken, fencingToken)
    const [refused] = await other.acquire([{ ...claim(), lockName: of.lockName }], newCall())
    assert.ok(refused !== undefined && 'granted' in refused && !refused.granted)
    assert.deepEqual(await driver.release([{ ...of, fencingToken }]), [true])
    await driver.close()
    await assert.rejects(driver.acquire([claim()], newCall()), { code: 'CLOSED' })
    assert.equal(await three[0]?.ping(), 'PONG')
    await grantOf(other, claim())
  })

  it('takes exactly one of clients and nodes, and names the argument that is wrong', () => {
    const [one, two] = [client(urls[0]), client(urls[1])]
    const nodes = [redisDriver({ client: one })]
    const both = { clients: [one], nodes }
    assert.throws(() => redlockDriver(both), { code: 'INVALID_ARGUMENT', argument: 'clients' })
    assert.throws(() => redlockDriver({}), { code: 'INVALID_ARGUMENT', argument: 'nodes', message: /`clients`/ })
    assert.throws(() => redlockDriver({ clients: [] }), { argument: 'clients' })
    assert.throws(() => redlockDriver({ clients: [one, {} as RedisClient] }), { argument: 'clients[1]' })
    assert.throws(() => redlockDriver({ clients: [one, two, one] }), {
      argument: 'clients',
      message: /node 3 has the client of node 1/,
    })
    const prefixed = new Redis(urls[2] ?? '', { keyPrefix: 'app:', lazyConnect: true })
    assert.throws(() => redlockDriver({ clients: [one, prefixed] }), { argument: 'clients[1].options.keyPrefix' })
  })

  it('one server under three names is no quorum', async () => {
    const names = [urls[0], ...proxies.map(({ port }) => `redis://127.0.0.1:${port}`)]
    const driver = redlockDriver({ nodes: names.map(node), persistent: true, nodeTimeoutSeconds: 10 })
    for (let tries = 0; tries < 3; tries += 1) {
      const of = claim()
      await assert.rejects(
        grantOf(driver, of),
        /2 of 3 nodes failed.*it is the same server as node \d \(run_id [0-9a-f]{40}\)/s,
      )
    }
  })

  it('a server under two names has one vote among those of others', async () => {
    const names = [urls[0], `redis://127.0.0.1:${proxies[0]?.port}`, urls[1], urls[2], urls[3]]
    const failures: string[] = []
    const driver = redlockDriver({
      nodes: names.map(node),
      persistent: true,
      nodeTimeoutSeconds: 10,
      onNodeError: ({ error }) => failures.push(error.message),
    })
    const of = claim()
    const { fencingToken } = await grantOf(driver, of)
    assert.deepEqual(await driver.renew([{ ...of, fencingToken }]), ['renewed'])
    assert.deepEqual(await driver.release([{ ...of, fencingToken }]), [true])
    // The others were a quorum, so no call waited for its answer.
    await until(() => failures.some((message) => /it is the same server as node/.test(message)), {
      timeoutMs: 5_000,
      failure: () => `onNodeError was not called: ${failures}`,
    })
  })

  it('a server that refuses INFO votes nevertheless', async () => {
    const control = client(urls[0])
    await control.call('ACL', 'SETUSER', 'uninformed', 'on', '>pw', '~*', '&*', '+@all', '-info')
    const url = `redis://uninformed:pw@127.0.0.1:${new URL(urls[0] ?? '').port}`
    const driver = redlockDriver({ nodes: [node(url)], persistent: true, nodeTimeoutSeconds: 10 })
    await grantOf(driver, claim())
    // Without `persistent`, it would not notice that the server was restarted.
    const forgetful = redlockDriver({ nodes: [node(url)], nodeTimeoutSeconds: 10 })
    await assert.rejects(grantOf(forgetful, { ...claim(), ttlMs: 1_000 }), /lacks the right to INFO.*allow \+info/s)
    await control.call('ACL', 'DELUSER', 'uninformed')
  })

  it('warns once of a node that has a replica', async () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    await using master = await startRedis()
    await using replica = await startRedis({ settings: { replicaof: `127.0.0.1 ${master.port}` } })
    const follows = async () => String(await client(replica.url).info('replication')).includes('master_link_status:up')
    await until(follows, { timeoutMs: 10_000, failure: () => 'the replica does not follow' })
    const driver = redlockDriver({ nodes: [node(master.url)], persistent: true, nodeTimeoutSeconds: 10 })
    for (let tries = 0; tries < 2; tries += 1) await grantOf(driver, claim())
    const warnings = warn.mock.calls.map(([message]) => String(message))
    vi.restoreAllMocks()
    assert.equal(warnings.length, 1)
    assert.match(warnings[0] ?? '', /^Redlock: node 1 at redis:\/\/.* has 1 replica\. .*independent servers/)
  })
})

const node = (url: string | undefined) => redisDriver({ client: client(url), onWarning() {} })

function client(url: string | undefined): Redis {
  const opened = new Redis(url ?? '', { maxRetriesPerRequest: 0, enableReadyCheck: false })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

async function grantOf(driver: Driver, of: Claim) {
  const [answer] = await driver.acquire([of], newCall())
  if (answer === undefined || answer instanceof Error) throw answer
  assert.ok(answer.granted, JSON.stringify(answer))
  return answer
}

function claim(): Claim {
  const lockName = `redlock servers:${process.pid}:${++counter}`
  const claimId = `claim ${counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 10_000, waiterTtlMs: 0 }
}
