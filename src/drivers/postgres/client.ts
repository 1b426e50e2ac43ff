import { InvalidArgumentError, MissingClientError } from '../../core/errors.ts'
import { importIfThere } from '../shared/optional-client.ts'
import type { PostgresConnections } from './connections.ts'
import { type PgClient, type PgPool, pgClientConnections, pgPoolConnections } from './pg-client.ts'
import { type PostgresSql, sqlConnections, unrefSockets } from './postgres-js-client.ts'
import { type PostgresTarget, pgConfig, postgresConfig, postgresPlace } from './url.ts'

export type { PgClient, PgPool } from './pg-client.ts'
export type { PostgresSql } from './postgres-js-client.ts'

/** A client that the caller has: a `Pool` or a connected `Client` of pg, or what `postgres()` of postgres gives. */
export type PostgresClient = PgPool | PgClient | PostgresSql

export function connectionsOf(client: unknown): PostgresConnections {
  if (isSql(client)) return sqlConnections(client)
  if (isPgClient(client)) return pgClientConnections(client)
  if (isPgPool(client)) return pgPoolConnections(client, { owned: false })
  throw new InvalidArgumentError('client', client, 'a Pool or a Client of pg, or what postgres() gives')
}

/** Opens a small pool of its own, with pg, else with postgres: locks never starve the application's pool. */
export async function openConnections(target: PostgresTarget): Promise<PostgresConnections> {
  const pg = await importIfThere('pg')
  if (pg !== undefined) {
    const { Pool } = (pg['default'] ?? pg) as { Pool: new (config: object) => PgPool }
    const config = { max: POOL_SIZE, connectionTimeoutMillis: CONNECT_MS, keepAlive: true, allowExitOnIdle: true }
    return pgPoolConnections(new Pool({ ...config, ...pgConfig(target) }), {
      owned: true,
      place: postgresPlace(target),
    })
  }
  const postgres = await importIfThere('postgres')
  if (postgres !== undefined) {
    const create = postgres['default'] as (url: string, options: object) => PostgresSql
    const own = { max: POOL_SIZE, connect_timeout: CONNECT_MS / 1_000, onnotice: () => {} }
    const { url, options } = postgresConfig(target)
    const open = (): PostgresSql => create(url, { ...own, ...unrefSockets({}), ...options })
    return sqlConnections(open(), open)
  }
  throw new MissingClientError('the postgres driver', ['pg', 'postgres'])
}

/** How many connections a driver that was opened by a URL uses at most for its calls; one more listens. */
const POOL_SIZE = 4
const CONNECT_MS = 5_000

/**
 * What `begin` hands over and what `reserve` gives is one connection, in a transaction or about to be: it has no
 * `begin` of its own.
 */
const isSql = (client: unknown): client is PostgresSql =>
  typeof client === 'function' && 'unsafe' in client && 'begin' in client

const isPgClient = (client: unknown): client is PgClient =>
  typeof client === 'object' && client !== null && 'query' in client && 'connectionParameters' in client

const isPgPool = (client: unknown): client is PgPool =>
  typeof client === 'object' && client !== null && 'query' in client && 'connect' in client && 'totalCount' in client
