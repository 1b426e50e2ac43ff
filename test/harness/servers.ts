import { type BinaryName, findBinaries } from './binaries.ts'
import {
  type PgBouncerOptions,
  type PostgresOptions,
  startPgBouncer,
  startPostgres,
  startPostgresReplica,
} from './postgres.ts'
import {
  disposeAll,
  type RedisCluster,
  type RedisOptions,
  type RedisSentinel,
  startAll,
  startRedis,
  startRedisCluster,
  startRedisSentinel,
} from './redis.ts'
import type { Server } from './server-process.ts'

export type { PgBouncerOptions, PostgresOptions, RedisCluster, RedisOptions, RedisSentinel, Server }
export { startPgBouncer, startPostgres, startPostgresReplica, startRedis, startRedisCluster, startRedisSentinel }

export interface ServerRequest {
  /** The number of single Redis servers. */
  redis?: number
  cluster?: boolean
  sentinel?: boolean
  postgres?: boolean
  /** In front of the requested PostgreSQL, or else of a PostgreSQL of its own. */
  pgbouncer?: boolean
}

/** The requested servers, by the same names. */
export type Servers<Request extends ServerRequest> = Pick<AllServers, keyof Request & keyof AllServers> & {
  /** Ends them all and removes their folders. */
  stop(): Promise<void>
} & AsyncDisposable

interface AllServers {
  redis: Server[]
  cluster: RedisCluster
  sentinel: RedisSentinel
  postgres: Server
  pgbouncer: Server
}

/**
 * Starts the requested servers at the same time, on free ports of 127.0.0.1. Resolves when all of them answer.
 * If one does not start, the others are ended, and the error has its output.
 * Servers end with the runner at the latest, in whichever way it ends.
 */
export async function startServers<const Request extends ServerRequest>(request: Request): Promise<Servers<Request>> {
  await findBinaries(binariesFor(request)) // All at once: installing them one by one takes three times as long.
  const redis = Array.from({ length: request.redis ?? 0 }, () => startRedis())
  const cluster = request.cluster ? startRedisCluster() : undefined
  const sentinel = request.sentinel ? startRedisSentinel() : undefined
  const postgres = request.postgres || request.pgbouncer ? startPostgres() : undefined
  const pgbouncer = request.pgbouncer ? postgres?.then((server) => startPgBouncer(server)) : undefined

  const starting: (Promise<AsyncDisposable> | undefined)[] = [...redis, cluster, sentinel, postgres, pgbouncer]
  const started = await startAll(starting.filter((each) => each !== undefined))
  const stop = () => disposeAll(started)
  const servers = {
    redis: await Promise.all(redis),
    cluster: await cluster,
    sentinel: await sentinel,
    postgres: await postgres,
    pgbouncer: await pgbouncer,
    stop,
    [Symbol.asyncDispose]: stop,
  }
  // A server that was not requested is undefined, and the type does not have it.
  return servers as unknown as Servers<Request>
}

function binariesFor({ redis, cluster, sentinel, postgres, pgbouncer }: ServerRequest): BinaryName[] {
  return [
    ...(redis || cluster || sentinel ? (['redis-server'] as const) : []),
    ...(postgres || pgbouncer ? (['postgres', 'initdb'] as const) : []),
    ...(pgbouncer ? (['pgbouncer'] as const) : []),
  ]
}
