import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Cluster } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { connectionOf } from '../../../src/drivers/redis/client.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { type Server, startRedis } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

// ioredis forgets a node whose connection has ended. If only replicas are left, it sends every command to one of them,
// in READONLY mode. To a script, the replica of the right shard does not answer MOVED, which would lead to the master.
// So with one shard, or with one replica that is left, such a client would stay there.

let shard: Shard
let counter = 0
const clients: Cluster[] = []

beforeAll(async () => {
  shard = await startShard()
})

afterAll(async () => {
  for (const client of clients) client.disconnect()
  await Promise.all([shard.master, shard.replica].map((server) => server[Symbol.asyncDispose]()))
})

describe('redis cluster: ioredis that has lost its masters and knows a replica', () => {
  it('a claim is granted, renewed and released', async () => {
    const { driver, loseMaster } = await openClient()
    const claim = claimOn('found again')
    await loseMaster()
    const [grant] = await driver.acquire([claim], newCall())
    assert.ok(grant !== undefined && 'granted' in grant && grant.granted, String(grant))
    const lease = { ...claim, fencingToken: grant.fencingToken }
    await loseMaster()
    assert.deepEqual(await driver.renew([lease]), ['renewed'])
    await loseMaster()
    assert.deepEqual(await driver.release([lease]), [true])
  })

  it('a waiter queues, and listens at the master', async () => {
    const [a, b] = [await openClient(), await openClient()]
    const lockName = 'waited for'
    const holder = claimOn(lockName)
    await a.driver.acquire([holder], newCall())
    const granted: string[] = []
    const heard = { wake() {}, granted: (id: string) => granted.push(id), lost() {}, disconnected: assert.fail }
    await b.driver.listen?.(heard)
    await b.loseMaster()
    const waiter = { ...claimOn(lockName), waiterTtlMs: 60_000 }
    await b.driver.acquire([waiter], newCall())
    await a.driver.release([holder])
    await until(() => granted.length > 0, patience('the grant'))
    assert.deepEqual(granted, [waiter.claimId])
    await Promise.all([a.driver.close(), b.driver.close()])
  })

  it('`inspect` shows every lease instead of none', async () => {
    const { driver, loseMaster } = await openClient()
    const claim = claimOn('to be seen')
    await driver.acquire([claim], newCall())
    await loseMaster()
    const { leases } = await driver.inspect({ prefix: 'to be seen' })
    assert.deepEqual(
      leases.map(({ claimId }) => claimId),
      [claim.claimId],
    )
  })

  it('the masters are found again, also by a client that has not connected yet', async () => {
    const { client, loseMaster } = await openClient()
    await loseMaster()
    const lazy = newClient({ lazyConnect: true })
    for (const each of [client, lazy]) {
      const nodes = await connectionOf(each).nodes()
      assert.deepEqual(
        nodes.map(({ id }) => id),
        [`127.0.0.1:${shard.master.port}`],
      )
    }
  })
})

interface Shard {
  master: Server
  replica: Server
}

/** A Cluster of one master, which has all slots, and one replica. */
async function startShard(): Promise<Shard> {
  const settings = { 'cluster-enabled': 'yes', 'repl-diskless-sync-delay': '0' }
  const [master, replica] = await Promise.all([startRedis({ settings }), startRedis({ settings })])
  const slots = Array.from({ length: 16_384 }, (_, slot) => slot)
  await askRedis(master, 'CLUSTER', 'ADDSLOTS', ...slots)
  await askRedis(replica, 'CLUSTER', 'MEET', '127.0.0.1', master.port)
  const id = String(await askRedis(master, 'CLUSTER', 'MYID'))
  const follows = (): Promise<boolean> =>
    askRedis(replica, 'CLUSTER', 'REPLICATE', id).then(
      () => true,
      () => false,
    )
  await until(follows, patience('the replica to know its master'))
  const isKnown = async (): Promise<boolean> => {
    const info = String(await askRedis(master, 'CLUSTER', 'INFO'))
    const shards = (await askRedis(master, 'CLUSTER', 'SLOTS')) as unknown[][]
    const link = String(await askRedis(replica, 'INFO', 'replication'))
    const isWhole = info.includes('cluster_state:ok') && link.includes('master_link_status:up')
    return isWhole && shards.every(([, , ...nodes]) => nodes.length === 2)
  }
  await until(isKnown, patience('the Cluster'))
  return { master, replica }
}

function newClient({ lazyConnect = false } = {}): Cluster {
  const client = new Cluster([{ host: '127.0.0.1', port: shard.master.port }], { lazyConnect })
  clients.push(client)
  return client.on('error', () => {})
}

async function openClient(): Promise<{ client: Cluster; driver: Driver; loseMaster(): Promise<void> }> {
  const client = newClient()
  await once(client, 'ready')
  const driver = redisDriver({ client })
  return {
    client,
    driver,
    async loseMaster() {
      await client.call('PING') // so that there is a connection that can end
      assert.equal(client.nodes('slave').length, 1)
      for (const node of client.nodes('master')) node.disconnect()
      await until(() => client.nodes('master').length === 0, patience('the end of the connection'))
    },
  }
}

function claimOn(lockName: string): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 }
}

const patience = (what: string) => ({ timeoutMs: 30_000, failure: () => `timed out waiting for ${what}` })
