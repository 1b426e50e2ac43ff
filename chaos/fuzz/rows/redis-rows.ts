import { Redis } from 'ioredis'
import { type Server, startRedis } from '../../../test/harness/servers.ts'
import type { Draw } from '../../draw.ts'
import { openIoredis, openNodeRedis } from '../../wire/client.ts'
import type { Library } from '../../wire/library.ts'
import type { Judge } from '../judge.ts'
import { ODD_NUMBERS, oddBytes, oddText } from '../odd.ts'
import { fill, type RowStore, type Written } from './row-store.ts'

/** Keys of every type under the lock's own key and its siblings. The servers are its own: it breaks their counters. */
export async function openRedisRows(library: Library, count: 1 | 3): Promise<RowStore> {
  const servers = await Promise.all(Array.from({ length: count }, () => startRedis()))
  const writers = servers.map(({ port }) => new Redis(port))
  const first = await Promise.all(servers.map(({ port }) => openIoredis(port, count > 1)))
  const second = await Promise.all(servers.map(({ port }) => openNodeRedis(port, count > 1)))
  const clients = [first, second].map((opened) => {
    const nodes = opened.map(({ client }) => library.redisDriver({ client, onWarning() {} }))
    // A busy machine answers late, which is not what is tested here.
    const patient = { persistent: true, nodeTimeoutSeconds: 9 }
    const driver = count === 1 ? nodes[0] : library.redlockDriver({ nodes, ...patient })
    if (driver === undefined) throw new Error('no driver')
    return { driver, lock: new library.DistributedLock({ driver, callTimeoutSeconds: 3 }) }
  })
  return {
    name: count === 1 ? 'redis' : 'redlock',
    clients,
    url: count === 1 ? servers[0]?.url : undefined,
    async write(draw, judge, lockName) {
      const driver = clients[0]?.driver
      if (driver !== undefined && draw.chance(0.6)) await fill(draw, driver, lockName)
      const hit = draw.chance(0.5) ? writers : writers.slice(0, 1)
      const kinds = Array.from({ length: draw.whole(1, 3) }, () => keyOf(draw, lockName))
      let isHeldByOther = false
      for (const key of kinds) {
        const written = await Promise.all(hit.map((writer) => writeKey(draw, judge, writer, key)))
        isHeldByOther = key === `lock:${lockName}` && kinds.length === 1 && hit === writers && written.every(Boolean)
      }
      return { isHeldByOther, ...undoing(writers, kinds) }
    },
    async [Symbol.asyncDispose]() {
      await Promise.allSettled(clients.map(({ lock }) => lock.close()))
      for (const writer of writers) writer.disconnect()
      for (const each of [...first, ...second]) each.end()
      await Promise.all(servers.map((server: Server) => server[Symbol.asyncDispose]()))
    },
  }
}

/** What all locks share must not stay broken for all later cases. */
function undoing(writers: readonly Redis[], keys: readonly string[]): Pick<Written, 'undo'> {
  const shared = keys.filter((key) => SHARED_KEYS.includes(key))
  if (shared.length === 0) return {}
  return { undo: async () => void (await Promise.all(writers.map((writer) => writer.del(...shared)))) }
}

const SHARED_KEYS = ['holdfast:token', 'holdfast:voter']

function keyOf(draw: Draw, lockName: string): string {
  const tag = `lock:${lockName}`
  const kind = draw.weighted([
    ['plain', 4],
    ['d', 4],
    ['o', 4],
    ['rate', 2],
    ['shared', 1],
  ])
  if (kind === 'plain') return tag
  if (kind === 'rate') return `holdfast:{${tag}}:r${draw.one(['5/1000000/5', '50/60000000/50'])}`
  return kind === 'shared' ? draw.one(SHARED_KEYS) : `holdfast:{${tag}}:${kind}`
}

/** Returns whether the key is now one that no client of Holdfast writes. */
async function writeKey(draw: Draw, judge: Judge, redis: Redis, key: string): Promise<boolean> {
  const type = await redis.type(key)
  if (type !== 'none' && draw.chance(0.7)) {
    judge.note(`changes ${key} (${type})`)
    await changeKey(draw, redis, key, type)
    return false
  }
  const kind = draw.one(['string', 'string', 'bytes', 'hash', 'list', 'set', 'zset', 'stream'] as const)
  judge.note(`writes ${key} as ${kind}`)
  await redis.del(key)
  const text = (): string => oddText(draw, draw.one(REALISTIC))
  if (kind === 'string') {
    const value = text()
    await redis.set(key, value)
    return !value.startsWith('["') && value !== 'holdfast:shared'
  }
  const member = (): string => draw.one([text(), 'l"c0"', 'w"c1"', 'w"c2"', 'n', 'seq', 't'])
  if (kind === 'bytes') await redis.set(key, oddBytes(draw))
  else if (kind === 'hash') await redis.hset(key, member(), text(), member(), text())
  else if (kind === 'list') await redis.rpush(key, text(), text())
  else if (kind === 'set') await redis.sadd(key, text(), text())
  else if (kind === 'stream') await redis.xadd(key, '*', 'a', text())
  else await redis.zadd(key, draw.one(SCORES), member(), draw.one(SCORES), member())
  return kind !== 'bytes'
}

async function changeKey(draw: Draw, redis: Redis, key: string, type: string): Promise<void> {
  if (type === 'string') {
    await redis.set(key, oddText(draw, (await redis.get(key)) ?? ''), 'KEEPTTL')
  } else if (type === 'hash') {
    const fields = Object.entries<string>(await redis.hgetall(key))
    // It has expired meanwhile.
    if (fields.length === 0) return
    const [field, value] = draw.one(fields)
    if (draw.chance(0.2)) await redis.hdel(key, field)
    else await redis.hset(key, field, oddText(draw, value))
  } else if (type === 'zset') {
    const members = await redis.zrange(key, '0', '-1')
    const member = draw.chance(0.8) && members.length > 0 ? draw.one(members) : oddText(draw, 'w"c9"')
    if (draw.chance(0.2)) await redis.zrem(key, member)
    else await redis.zadd(key, draw.one(SCORES), member)
  } else {
    await redis.del(key)
  }
}

const SCORES = ['-inf', '+inf', '0', '-1', '1', '1.5', '1e300', '-1e300', '9007199254740993', '-1700000000000']

const REALISTIC: readonly string[] = [
  '["c0",1700000000000000,1700000000000,5000,"a holder",{"n":1}]',
  '["c0",1700000000000000,1700000000000,2,1,5000,"a holder"]',
  '[1800000000000,1700000000000,0,0,1,5000,1,"holdfast:wake:x.0","\\"a holder\\"","secret",2000]',
  '1700000000000.5 1700000001000 1000',
  'holdfast:shared',
  ...ODD_NUMBERS.slice(0, 4),
]
