import { InvalidArgumentError } from '../../core/errors.ts'
import { type IoredisClient, type IoredisCluster, ioredisConnection } from './redis-ioredis.ts'
import type { MasterWatch } from './redis-master-watch.ts'
import {
  type NodeRedisClient,
  type NodeRedisCluster,
  type NodeRedisSentinel,
  nodeRedisConnection,
} from './redis-node-redis.ts'

/** What the driver needs of a client, whichever it is. */
export interface RedisConnection {
  readonly cluster: boolean
  /** Which server, as errors name it: a URL without its login. */
  readonly place: string
  /**
   * Why a command could not be sent, where the client itself only says that it could not. Absent where the client's own
   * error tells.
   */
  failureBehind?(error: unknown): unknown
  /** Sends a command to wherever `key` lives. Rejects with the client's own error. */
  command(key: string, args: readonly string[]): Promise<unknown>
  /**
   * Sends commands in one go, one after the other over one and the same connection. Rejects if one of them fails, or if
   * the connection ended after some of them: the rest is never sent over another one by itself. Absent on a Cluster.
   */
  together?(commands: readonly (readonly string[])[]): Promise<readonly unknown[]>
  /**
   * Called before a command is sent. Returns what tells, after the answer, whether the client may have sent the command
   * twice: its connection was lost meanwhile, and the answer may be that of the second time. Absent where the client
   * never sends a command again by itself.
   */
  watchResends?(): () => boolean | Promise<boolean>
  /** Absent where the client finds a new master by itself. */
  readonly master?: MasterWatch
  /** The masters: one, or one for each shard of a Cluster. */
  nodes(): Promise<readonly RedisNode[]>
  /**
   * The master that has this slot now. A key of the slot is asked for first: a client learns that a slot has moved only
   * from the answer to a command.
   */
  nodeOfSlot(slot: number): Promise<RedisNode>
}

export interface RedisNode {
  /** Stays the same while the node's address does. */
  readonly id: string
  command(args: readonly string[]): Promise<unknown>
  /** Opens a connection of its own to this node. `closed` is told once when it ends by itself. */
  subscriber(events: SubscriberEvents): Promise<Subscriber>
}

export interface SubscriberEvents {
  message(channel: string, text: string): void
  closed(cause: Error): void
}

export interface Subscriber {
  /** Resolves once the server has confirmed it. */
  subscribe(channel: string, sharded: boolean): Promise<void>
  /** Ends the connection at once. Never throws. */
  end(): void
}

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
