import type {} from 'vitest'
import { type ServerRequest, startServers } from './servers.ts'

/**
 * The servers that a test run starts once for all test files. A file gets them with `inject('servers')`.
 * A test that kills or pauses a server, or shifts its clock, starts its own.
 */
export const sharedServers = {
  redis: 5,
  cluster: true,
  sentinel: true,
  postgres: true,
  pgbouncer: true,
} satisfies ServerRequest

/** The URLs of the servers. A kind that this run does not start is missing. */
export interface SharedServers {
  redis?: string[]
  /** The nodes, to start a client from. */
  cluster?: string[]
  sentinel?: { urls: string[]; masterName: string }
  postgres?: string
  pgbouncer?: string
}

declare module 'vitest' {
  interface ProvidedContext {
    servers: SharedServers
  }
}

/**
 * Takes servers from the environment, and starts the rest.
 *
 * | variable | |
 * | --- | --- |
 * | HOLDFAST_TEST_REDIS_URL | the single servers, separated by commas |
 * | HOLDFAST_TEST_REDIS_CLUSTER_URL | nodes of one Cluster, separated by commas |
 * | HOLDFAST_TEST_REDIS_SENTINEL_URL | the Sentinels, separated by commas |
 * | HOLDFAST_TEST_REDIS_SENTINEL_MASTER | the name of their master |
 * | HOLDFAST_TEST_POSTGRES_URL, HOLDFAST_TEST_PGBOUNCER_URL | one each |
 * | HOLDFAST_TEST_SERVERS | only these, such as `redis,postgres`, or `none` |
 */
export async function startSharedServers(
  environment: Record<string, string | undefined> = process.env,
): Promise<{ servers: SharedServers; stop(): Promise<void> }> {
  const wanted = narrowed(sharedServers, environment['HOLDFAST_TEST_SERVERS'])
  const given = givenServers(environment)
  const request = without(wanted, Object.keys(given))
  const started = await startServers(request)
  const servers: SharedServers = {}
  if (request.redis) servers.redis = started.redis.map((server) => server.url)
  if (request.cluster) servers.cluster = started.cluster.nodes.map((server) => server.url)
  if (request.sentinel) {
    const { sentinels, masterName } = started.sentinel
    servers.sentinel = { urls: sentinels.map((server) => server.url), masterName }
  }
  if (request.postgres) servers.postgres = started.postgres.url
  if (request.pgbouncer) servers.pgbouncer = started.pgbouncer.url
  return { servers: { ...servers, ...given }, stop: started.stop }
}

function givenServers(environment: Record<string, string | undefined>): SharedServers {
  const list = (name: string) => environment[name]?.split(',').map((url) => url.trim())
  const redis = list('HOLDFAST_TEST_REDIS_URL')
  const cluster = list('HOLDFAST_TEST_REDIS_CLUSTER_URL')
  const urls = list('HOLDFAST_TEST_REDIS_SENTINEL_URL')
  const postgres = environment['HOLDFAST_TEST_POSTGRES_URL']
  const pgbouncer = environment['HOLDFAST_TEST_PGBOUNCER_URL']
  return {
    ...(redis && { redis }),
    ...(cluster && { cluster }),
    ...(urls && { sentinel: { urls, masterName: environment['HOLDFAST_TEST_REDIS_SENTINEL_MASTER'] ?? 'mymaster' } }),
    ...(postgres && { postgres }),
    ...(pgbouncer && { pgbouncer }),
  }
}

function narrowed(request: ServerRequest, only: string | undefined): ServerRequest {
  if (only === undefined) return request
  const names = only === 'none' ? [] : only.split(',').map((name) => name.trim())
  const unknown = names.find((name) => !(name in sharedServers))
  if (unknown !== undefined) {
    const known = Object.keys(sharedServers).join(', ')
    throw new Error(`HOLDFAST_TEST_SERVERS names "${unknown}"; it takes "none", or some of ${known}`)
  }
  return without(
    request,
    Object.keys(request).filter((name) => !names.includes(name)),
  )
}

function without(request: ServerRequest, names: string[]): ServerRequest {
  return Object.fromEntries(Object.entries(request).filter(([name]) => !names.includes(name)))
}
