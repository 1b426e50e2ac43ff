import type { Capabilities, Driver } from '../core/driver.ts'
import { InvalidArgumentError, UnsupportedError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { type RedisWarning, ServerChecks } from './redis/checks.ts'
import { connectionOf, type RedisClient } from './redis/client.ts'
import { type RedisDriver, redisCapabilities, redisDriverOn } from './redis/driver.ts'
import { checkPrefix } from './redis/keys.ts'
import { openClient } from './redis/open.ts'
import type { ReplicaWait } from './redis/renewals.ts'
import { redisUrl } from './redis/url.ts'
import { keepingAlive } from './shared/keep-alive.ts'
import { msFromSeconds } from './shared/seconds.ts'

export { StaleTokenError } from '../core/errors.ts'
export type { RedisWarning } from './redis/checks.ts'
export type { RedisClient } from './redis/client.ts'
export type { RedisDriver } from './redis/driver.ts'
export {
  type GuardedScript,
  type RedisFence,
  type RedisFenceOptions,
  redisFence,
  type Token,
} from './redis/fence.ts'

export const capabilities: Capabilities = redisCapabilities

export interface RedisDriverOptions {
  /**
   * A client of ioredis, iovalkey or redis (node-redis), for one server, a Cluster or Sentinel. You open and close it.
   */
  readonly client: RedisClient
  /**
   * The text before every lock name in a key. It may be empty. All clients of a lock need the same prefix.
   * @default 'lock:'
   */
  readonly prefix?: string
  /**
   * A grant or a renewal counts only when `count` replicas have confirmed it (`WAIT`) within `waitSeconds`
   * (default 1). With fewer, the claim fails and is withdrawn, and a renewal does not extend the lease. With fewer than
   * all replicas, a failover may still lose a lease: it may promote one that has not confirmed.
   * @default no replica has to confirm
   */
  readonly replicas?: { readonly count: number; readonly waitSeconds?: number }
  /**
   * How long subscribing, `inspect`, `consume` and reading the server's settings may take before they fail. For
   * acquire, renew and release, the lock instance has its own limit.
   * @default 5
   */
  readonly callTimeoutSeconds?: number
  /**
   * Called for each problem of the server: an eviction policy, a replica, an old version.
   * @default process.emitWarning
   */
  readonly onWarning?: (warning: RedisWarning) => void
  /** For tests. */
  readonly clock?: Clock
}

const OPTIONS = optionNames<RedisDriverOptions>({
  client: true,
  prefix: true,
  replicas: true,
  callTimeoutSeconds: true,
  onWarning: true,
  clock: true,
})
const REPLICA_OPTIONS = optionNames<NonNullable<RedisDriverOptions['replicas']>>({ count: true, waitSeconds: true })

/**
 * Keeps leases in Redis or Valkey: on one server, behind Sentinel or on a Cluster. It sends nothing before the first
 * call. It never closes or changes your client. `close` ends the one connection that the driver opens itself, for
 * subscriptions.
 *
 * @throws `InvalidArgumentError` for a client that is not supported or that has a key prefix of its own, for a prefix
 *   that begins with `holdfast:`, and for seconds that are out of range.
 * @throws `UnsupportedError` for `replicas` on a Cluster, because `WAIT` names no key and so cannot be sent to the
 *   right node.
 *
 * @example
 * ```ts
 * const lock = new DistributedLock({ driver: redisDriver({ client: new Redis() }) })
 * ```
 */
export function redisDriver(options: RedisDriverOptions): RedisDriver {
  checkOptions(options, OPTIONS)
  const { client, prefix = 'lock:', callTimeoutSeconds = 5, onWarning = emitWarning, clock = systemClock } = options
  checkPrefix(prefix)
  const timeoutMs = msFromSeconds('callTimeoutSeconds', callTimeoutSeconds)
  const connection = connectionOf(client)
  if (options.replicas !== undefined && connection.cluster) {
    const instead = 'set min-replicas-to-write on the servers instead'
    throw new UnsupportedError(
      `redis: the option replicas does not work on a Cluster, because WAIT names no key and so no node; ${instead}`,
    )
  }
  const replicas = options.replicas && replicaWait(options.replicas)

  const checks = new ServerChecks({ connection, timeoutMs, clock, onWarning })
  return redisDriverOn({ connection, prefix, timeoutMs, checks, ...(replicas && { replicas }) })
}

/**
 * Opens a driver for a `redis://`, `rediss://`, `redis+cluster://` or `rediss+cluster://` URL, with its own client:
 * ioredis if it is installed, otherwise redis. `valkey` and `valkeys` mean the same as `redis` and `rediss`. It never
 * locks in another database than the one that the URL names.
 *
 * @throws `InvalidArgumentError` if any part of the URL is unknown or invalid.
 * @throws `MissingClientError` if neither ioredis nor redis is installed.
 * @throws `StoreError` if a Cluster cannot be reached. If a single server cannot be reached, the first call rejects.
 */
export async function openRedis(url: string): Promise<Driver> {
  const { target, prefix } = redisUrl(url)
  const { client, close } = await openClient(target)
  const driver = keepingAlive(redisDriver({ client, prefix }))
  return {
    ...driver,
    extensions: { ...driver.extensions, reopen: { module: import.meta.url, name: 'openRedis', args: [url] } },
    async close() {
      await driver.close()
      await close()
    },
  }
}

function replicaWait(options: NonNullable<RedisDriverOptions['replicas']>): ReplicaWait {
  const { count, waitSeconds = 1 } = checkOptions(options, REPLICA_OPTIONS, 'replicas')
  if (!Number.isInteger(count) || count < 1)
    throw new InvalidArgumentError('replicas.count', count, 'a whole number from 1')
  return { count, timeoutMs: msFromSeconds('replicas.waitSeconds', waitSeconds) }
}

function emitWarning({ code, message }: RedisWarning): void {
  process.emitWarning(message, { type: 'HoldfastWarning', code: `HOLDFAST_REDIS_${code}` })
}
