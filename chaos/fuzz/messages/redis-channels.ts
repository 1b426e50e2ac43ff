import { Redis } from 'ioredis'
import { startRedis } from '../../../test/harness/servers.ts'
import { openIoredis, openNodeRedis } from '../../wire/client.ts'
import type { Library } from '../../wire/library.ts'
import { type ChannelStore, until, type Waiting } from './channel.ts'

/** One server, or three nodes of a Redlock. */
export async function openRedisChannels(library: Library, count: 1 | 3): Promise<ChannelStore> {
  const servers = await Promise.all(Array.from({ length: count }, () => startRedis()))
  const [forger, ...others] = servers.map(({ port }) => new Redis(port)) as [Redis, ...Redis[]]
  const spy = new Redis(servers[0]?.port ?? 0)
  const heard: string[] = []
  await spy.psubscribe('holdfast:*')
  spy.on('pmessage', (_pattern, _channel, text: string) => {
    if (isForging || text.length > 1_000) return
    heard.push(text)
    if (heard.length > 30) heard.shift()
  })
  let isForging = false
  const opened = await Promise.all(
    [openIoredis, openNodeRedis, openIoredis].map((open) =>
      Promise.all(servers.map(({ port }) => open(port, count > 1))),
    ),
  )
  const [first, second, other] = opened.map((nodes) => {
    const drivers = nodes.map(({ client }) => library.redisDriver({ client, onWarning() {} }))
    // A busy machine answers late, which is not what is tested here.
    const patient = { persistent: true, nodeTimeoutSeconds: 9 }
    const driver = count === 1 ? drivers[0] : library.redlockDriver({ nodes: drivers, ...patient })
    if (driver === undefined) throw new Error('no driver')
    return { driver, lock: new library.DistributedLock({ driver }) }
  })
  if (first === undefined || second === undefined || other === undefined) throw new Error('no clients')

  const waitingInQueue = (lockName: string): Promise<Waiting> =>
    until(async () => {
      const fields = await forger.hgetall(`holdfast:{lock:${lockName}}:d`)
      const found = Object.entries(fields).find(([field]) => field.startsWith('w'))
      if (found === undefined) return undefined
      const channel = String((JSON.parse(found[1]) as unknown[])[7])
      const [, listening] = (await forger.pubsub('NUMSUB', channel)) as [string, number]
      if (listening === 0) return undefined
      return { claimId: JSON.parse(found[0].slice(1)) as string, channels: [channel, 'holdfast:forced'] }
    })
  const waitingForRelease = (): Promise<Waiting> =>
    until(async () => {
      const [, listening] = (await forger.pubsub('NUMSUB', 'holdfast:released')) as [string, number]
      return listening === 0 ? undefined : { claimId: 'unknown', channels: ['holdfast:released', 'holdfast:forced'] }
    })
  return {
    name: count === 1 ? 'redis' : 'redlock',
    clients: [first, second],
    other,
    waiting: count === 1 ? waitingInQueue : waitingForRelease,
    heard,
    async send(channel, message) {
      isForging = true
      await Promise.all([forger, ...others].map((each) => each.publish(channel, message)))
      isForging = false
    },
    async [Symbol.asyncDispose]() {
      await Promise.allSettled([first, second, other].map(({ lock }) => lock.close()))
      for (const each of opened.flat()) each.end()
      for (const each of [forger, ...others, spy]) each.disconnect()
      await Promise.all(servers.map((server) => server[Symbol.asyncDispose]()))
    },
  }
}
