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
 * A client that you have opened: `Redis` or `Cluster` of ioredis (5, 6) or of iovalkey, or `createClient`,
 * `createCluster` or `createSentinel` of redis (5, 6). The type has only the few methods that the driver calls, so that
 * you are not tied to a version.
 */
export type RedisClient = IoredisClient | IoredisCluster | NodeRedisClient | NodeRedisCluster | NodeRedisSentinel

/**
 * The same connection for every driver on one client, so that they share what is known about its server. `argument`
 * names the client in errors.
 */
export function connectionOf(client: RedisClient, argument = 'client'): RedisConnection {
  const known = connections.get(client) ?? newConnection(client, argument)
  connections.set(client, known)
  return known
}

const connections = new WeakMap<RedisClient, RedisConnection>()

function newConnection(client: RedisClient, argument: string): RedisConnection {
  refusePool(client, argument)
  if (isIoredis(client)) return ioredisConnection(client, argument)
  if (isNodeRedis(client)) return nodeRedisConnection(client)
  throw new InvalidArgumentError(argument, client, 'a client of ioredis, iovalkey or redis (node-redis)')
}

/** A pool of node-redis has the methods of its client. */
function refusePool(client: RedisClient, argument: string): void {
  if (!isFunction(client, 'execute') || !('totalClients' in client)) return
  const rule =
    'one client (createClient), not a pool: a pool may send each command over another connection, but WAIT only ' +
    'covers what its own connection has written, and a subscription needs one that lasts. One client is enough: all ' +
    'locks share it'
  throw new InvalidArgumentError(argument, client, rule)
}

const isIoredis = (client: RedisClient): client is IoredisClient | IoredisCluster =>
  isFunction(client, 'call') && isFunction(client, 'duplicate') && 'isCluster' in client

const isNodeRedis = (client: RedisClient): client is NodeRedisClient | NodeRedisCluster | NodeRedisSentinel =>
  isFunction(client, 'sendCommand') && (isFunction(client, 'duplicate') || isFunction(client, 'getMasterNode'))

const isFunction = (client: object | null | undefined, name: string): boolean =>
  typeof (client as Record<string, unknown> | null | undefined)?.[name] === 'function'
