import { InvalidArgumentError } from '../../core/errors.ts'
import type { RedisConnection } from './connection.ts'
import { type IoredisClient, type IoredisCluster, ioredisConnection } from './ioredis.ts'
import {
  type NodeRedisClient,
  type NodeRedisCluster,
  type NodeRedisSentinel,
  nodeRedisConnection,
} from './node-redis.ts'

/**
 * A client that the caller has: `Redis` or `Cluster` of ioredis (5, 6) or of iovalkey, `createClient`, `createCluster`
 * or `createSentinel` of redis (5, 6). Typed by the few methods that are called, so that no version is asked for.
 */
export type RedisClient = IoredisClient | IoredisCluster | NodeRedisClient | NodeRedisCluster | NodeRedisSentinel

/** The same for every driver on one client: what is known of its server is known to all of them. */
export function connectionOf(client: RedisClient): RedisConnection {
  const known = connections.get(client) ?? newConnection(client)
  connections.set(client, known)
  return known
}

const connections = new WeakMap<RedisClient, RedisConnection>()

function newConnection(client: RedisClient): RedisConnection {
  refusePool(client)
  if (isIoredis(client)) return ioredisConnection(client)
  if (isNodeRedis(client)) return nodeRedisConnection(client)
  throw new InvalidArgumentError('client', client, 'a client of ioredis, iovalkey or redis (node-redis)')
}

/** A pool of node-redis looks like a client of it. */
function refusePool(client: RedisClient): void {
  if (!isFunction(client, 'execute') || !('totalClients' in client)) return
  const rule =
    'one client (createClient), not a pool: a pool may send each command over another connection, but WAIT speaks of ' +
    'what its own connection has written, and a subscription needs one that lasts. One client is enough: commands of ' +
    'all locks share it'
  throw new InvalidArgumentError('client', client, rule)
}

const isIoredis = (client: RedisClient): client is IoredisClient | IoredisCluster =>
  isFunction(client, 'call') && isFunction(client, 'duplicate') && 'isCluster' in client

const isNodeRedis = (client: RedisClient): client is NodeRedisClient | NodeRedisCluster | NodeRedisSentinel =>
  isFunction(client, 'sendCommand') && (isFunction(client, 'duplicate') || isFunction(client, 'getMasterNode'))

const isFunction = (client: object | null | undefined, name: string): boolean =>
  typeof (client as Record<string, unknown> | null | undefined)?.[name] === 'function'
