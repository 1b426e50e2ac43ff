import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { createSentinel } from 'redis'
import { it } from 'vitest'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { until } from '../../harness/processes.ts'
import { type RedisSentinel, startRedisSentinel } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

it('failure 29: while no Sentinel answers, attempts to subscribe leave no connecting client of ioredis', async () => {
  await using servers = await startRedisSentinel()
  const client = new Redis({ sentinels: addressesOf(servers), name: servers.masterName })
  client.on('error', () => {})
  const duplicates: Redis[] = []
  const { duplicate } = client
  client.duplicate = (...options) => {
    const made = duplicate.apply(client, options)
    duplicates.push(made)
    return made
  }
  const driver = redisDriver({ client, onWarning() {} })
  const [one, two] = [new DistributedLock({ driver }), new DistributedLock({ driver })]
  const held = await one.hold('order')
  const waiting = two.hold('order', { blockingTimeoutSeconds: 50 })
  await until(() => duplicates[0]?.status === 'ready', { timeoutMs: 10_000, failure: () => 'it did not subscribe' })
  await cutSubscriptions(servers)
  await until(() => duplicates.length > 4, { timeoutMs: 30_000, failure: () => 'it did not subscribe again' })
  const left = duplicates.filter(({ status }) => status !== 'end')
  assert.ok(left.length <= 1, `${left.length} of ${duplicates.length} clients are left`)
  await held.release()
  // The connection for commands is still there, so the waiter asks again.
  await (await waiting).release()
  await Promise.all([one.close(), two.close()])
  client.disconnect()
}, 60_000)

// It needs no second client: createSentinel subscribes again by itself, at the master that it knows.
it('failure 29: while no Sentinel answers, node-redis subscribes again and opens no more connections', async () => {
  await using servers = await startRedisSentinel()
  const client = createSentinel({ name: servers.masterName, sentinelRootNodes: addressesOf(servers) })
  client.on('error', () => {})
  await client.connect()
  const driver = redisDriver({ client, onWarning() {} })
  const [one, two] = [new DistributedLock({ driver }), new DistributedLock({ driver })]
  await one.hold('order')
  const waiting = two.hold('order', { blockingTimeoutSeconds: 50 }).catch((error: Error) => error)
  const subscribed = async (): Promise<boolean> => (await subscriptionsAt(servers)) === 1
  await until(subscribed, { timeoutMs: 10_000, failure: () => 'it did not subscribe' })
  const before = sockets()
  await cutSubscriptions(servers)
  await until(subscribed, { timeoutMs: 10_000, failure: () => 'it did not subscribe again' })
  for (let second = 0; second < 4; second += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1_000))
    assert.ok(sockets() <= before, `${sockets()} connections instead of ${before}`)
  }
  await client.destroy()
  await Promise.all([one.close(), two.close()])
  await waiting
}, 60_000)

const addressesOf = ({ sentinels }: RedisSentinel) => sentinels.map(({ port }) => ({ host: '127.0.0.1', port }))

async function cutSubscriptions({ master, sentinels }: RedisSentinel): Promise<void> {
  await Promise.all(sentinels.map((sentinel) => sentinel.kill()))
  assert.equal(await askRedis(master, 'CLIENT', 'KILL', 'TYPE', 'pubsub'), 1)
}

async function subscriptionsAt({ master }: RedisSentinel): Promise<number> {
  // Those of the Sentinels themselves are to `__sentinel__:hello`.
  const channels = (await askRedis(master, 'PUBSUB', 'CHANNELS', 'holdfast:*')) as string[]
  return channels.filter((channel) => channel !== 'holdfast:forced').length
}

const sockets = (): number => process.getActiveResourcesInfo().filter((each) => each === 'TCPSocketWrap').length
