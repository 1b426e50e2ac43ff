import { callListener } from '../core/call-listener.ts'
import type { Capabilities, Driver } from '../core/driver.ts'
import { InvalidArgumentError, UnsupportedError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { type RedisWarning, ServerLook } from './redis/checks.ts'
import { connectionOf, type RedisClient } from './redis/client.ts'
import { type RedisDriver, redisCapabilities, redisDriverOn } from './redis/driver.ts'
import { checkPrefix } from './redis/keys.ts'
import { openClient } from './redis/open.ts'
import type { ReplicaWait } from './redis/replicas.ts'
import { redisUrl } from './redis/url.ts'
import { keepingAlive } from './shared/keep-alive.ts'

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
   * A client that the caller has, and closes: of ioredis, iovalkey or redis (node-redis); one server, Cluster or
   * Sentinel.
   */
  readonly client: RedisClient
  /** Stands before every lock name: `lock:` if not said. It may be empty. Clients of the same lock must agree on it. */
  readonly prefix?: string
  /**
   * A grant or a renewal counts only when so many replicas have confirmed it (`WAIT`). With too few, the claim fails
   * and is withdrawn, and a renewal moves no deadline.
   */
  readonly replicas?: { readonly count: number; readonly timeoutSeconds?: number }
  /**
   * How long subscribing, `inspect`, `consume` and looking at the server may take before the answer counts as lost: 5 s
   * if not said. Acquire, renew and release are bounded by the caller's own call timeout instead.
   */
  readonly commandTimeoutSeconds?: number
  /**
   * Told what is wrong with the server: an eviction policy, a replica, a version. `process.emitWarning` if not said.
   */
  readonly onWarning?: (warning: RedisWarning) => void
  /** For tests. */
  readonly clock?: Clock
}

const OPTIONS = optionNames<RedisDriverOptions>({
  client: true,
  prefix: true,
  replicas: true,
  commandTimeoutSeconds: true,
  onWarning: true,
  clock: true,
})
const REPLICA_OPTIONS = optionNames<NonNullable<RedisDriverOptions['replicas']>>({ count: true, timeoutSeconds: true })

/**
 * Leases in Redis or Valkey, on one server, behind Sentinel or on a Cluster. Nothing is sent until the first call. The
 * client is used as it is and never closed; `close` ends the one connection that the driver opens itself, for
 * subscriptions.
 *
 * Throws `InvalidArgumentError` for a client that it does not know or that prefixes keys by itself, and
 * `UnsupportedError` for `replicas` on a Cluster, where `WAIT` cannot be sent to the node in question.
 */
export function redisDriver(options: RedisDriverOptions): RedisDriver {
  checkOptions(options, OPTIONS)
  const { client, prefix = 'lock:', commandTimeoutSeconds = 5, onWarning = emitWarning, clock = systemClock } = options
  checkPrefix(prefix)
  const timeoutMs = checkedMs('commandTimeoutSeconds', commandTimeoutSeconds)
  const connection = connectionOf(client)
  if (options.replicas !== undefined && connection.cluster) {
    const instead = 'set min-replicas-to-write on the servers instead'
    throw new UnsupportedError(
      `redis: replicas cannot be waited for on a Cluster, where WAIT has no key to go by; ${instead}`,
    )
  }
  const replicas = options.replicas && replicaWait(options.replicas)

  const servers = new ServerLook({ connection, timeoutMs, clock })
  const told = new Set<string>()
  /** In the background, with the first call: what it finds are warnings, so nothing waits for it. */
  const look = (): void => {
    if (servers.isComplete) return
    void servers.report().then(({ warnings }) => {
      for (const warning of warnings) {
        if (told.has(warning.message)) continue
        told.add(warning.message)
        callListener('onWarning', onWarning, warning)
      }
    })
  }
  /** Servers of which nothing is known count as older ones: messages that go through every node work on any version. */
  const sharded = async (): Promise<boolean> => {
    const { facts, failure } = await servers.report()
    if (facts.length === 0 && failure !== undefined) throw failure
    return facts.length > 0 && facts.every(({ major }) => major >= 7)
  }

  const driver = redisDriverOn({ connection, prefix, timeoutMs, sharded, clock, ...(replicas && { replicas }) })
  return {
    ...driver,
    acquire(claims) {
      look()
      return driver.acquire(claims)
    },
  }
}

/**
 * `redis://`, `rediss://` and `redis+cluster://` (`rediss+cluster://`): opens a client of its own, with ioredis or else
 * with redis, whichever is installed. Nothing is locked in another database than the one that the URL names. Rejects
 * with `InvalidArgumentError` for a URL of which any part is not understood, and with `MissingClientError` where neither
 * is installed.
 */
export async function openRedis(url: string): Promise<Driver> {
  const { target, prefix } = redisUrl(url)
  const { client, close } = await openClient(target)
  const driver = keepingAlive(redisDriver({ client, prefix }))
  return {
    ...driver,
    reopen: { module: import.meta.url, name: 'openRedis', args: [url] },
    async close() {
      await driver.close()
      await close()
    },
  }
}

function replicaWait(options: NonNullable<RedisDriverOptions['replicas']>): ReplicaWait {
  const { count, timeoutSeconds = 1 } = checkOptions(options, REPLICA_OPTIONS, 'replicas')
  if (!Number.isInteger(count) || count < 1)
    throw new InvalidArgumentError('replicas.count', count, 'a whole number from 1')
  return { count, timeoutMs: checkedMs('replicas.timeoutSeconds', timeoutSeconds) }
}

function checkedMs(argument: string, seconds: number): number {
  if (typeof seconds !== 'number' || !(seconds >= 0.001 && seconds <= 3_600)) {
    throw new InvalidArgumentError(argument, seconds, 'a number of seconds from 0.001 to 3600')
  }
  return Math.ceil(seconds * 1_000)
}

function emitWarning({ code, message }: RedisWarning): void {
  process.emitWarning(message, { type: 'HoldfastWarning', code: `HOLDFAST_REDIS_${code}` })
}
