import { InvalidArgumentError, MissingClientError } from '../../core/errors.ts'
import { isReadable } from '../../core/options.ts'
import { importIfThere } from '../shared/optional-client.ts'
import type { PostgresConnections } from './connections.ts'
import { besideCallers } from './own-connections.ts'
import {
  ownPoolFor,
  ownPoolLike,
  type PgClient,
  type PgPool,
  type PoolClass,
  pgClientConnections,
  pgPoolConnections,
} from './pg-client.ts'
import { ownSqlLike, type PostgresSql, sqlConnections, unrefSockets } from './postgres-js-client.ts'
import { type PostgresTarget, pgConfig, postgresConfig, postgresPlace } from './url.ts'

export type { PgClient, PgPool } from './pg-client.ts'
export type { PostgresSql } from './postgres-js-client.ts'

/**
 * A client of the caller: a `Pool` or a connected `Client` of the package pg, or what `postgres()` of the package
 * postgres returns.
 */
export type PostgresClient = PgPool | PgClient | PostgresSql

export function connectionsOf(client: unknown): PostgresConnections {
  if (!isReadable(client)) throw new InvalidArgumentError('client', client, RULE)
  if (isSql(client)) return besideCallers(sqlConnections(client), () => ownSqlLike(client))
  if (isPgClient(client)) return besideCallers(pgClientConnections(client), () => ownPgPoolFor(client))
  if (isPgPool(client))
    return besideCallers(pgPoolConnections(client, { owned: false }), async () => ownPoolLike(client))
  throw new InvalidArgumentError('client', client, RULE)
}

async function ownPgPoolFor(client: PgClient): Promise<PostgresConnections> {
  const pg = await importIfThere('pg')
  if (pg === undefined) throw new MissingClientError('a Client of pg', ['pg'])
  return ownPoolFor(client, poolIn(pg))
}

const poolIn = (pg: Record<string, unknown>): PoolClass => ((pg['default'] ?? pg) as { Pool: PoolClass }).Pool

const RULE = 'a Pool or a Client of pg, or what postgres() gives'

/** Opens a small pool with pg or, without it, with postgres, so that locks never starve the application's own pool. */
export async function openConnections(target: PostgresTarget): Promise<PostgresConnections> {
  const pg = await importIfThere('pg')
  if (pg !== undefined) {
    const Pool = poolIn(pg)
    const config = { max: POOL_SIZE, connectionTimeoutMillis: CONNECT_MS, keepAlive: true, allowExitOnIdle: true }
    const pool = new Pool({ ...config, ...pgConfig(target) })
    return withReserve(pgPoolConnections(pool, { owned: true, place: postgresPlace(target) }))
  }
  const postgres = await importIfThere('postgres')
  if (postgres !== undefined) return openSqlConnections(postgres['default'] as CreateSql, target)
  throw new MissingClientError('the postgres driver', ['pg', 'postgres'])
}

type CreateSql = (url: string, options: object) => PostgresSql

/** `create` is `postgres()` of the package postgres. */
export function openSqlConnections(create: CreateSql, target: PostgresTarget): PostgresConnections {
  const { url, options } = postgresConfig(target)
  const own = {
    max: POOL_SIZE,
    connect_timeout: CONNECT_MS / 1_000,
    onnotice: () => {},
    // A connection that ends while postgres reads the types of arrays is an unhandled rejection. We need none of them.
    fetch_types: false,
    // Its own default grows to 20 s: a server that is back would not be noticed for that long.
    backoff: (attempt: number) => Math.min(0.05 * 2 ** attempt, MAX_RETRY_SECONDS),
  }
  const open = (): PostgresSql => create(url, { ...own, ...unrefSockets({}), ...options })
  return withReserve(sqlConnections(open(), open))
}

/**
 * One connection is left to what keeps or ends a lease. A claim can wait half a second for a row that an open
 * transaction has locked, and many of them would use up all connections for longer than a lease lasts.
 */
function withReserve(connections: PostgresConnections): PostgresConnections {
  let free = POOL_SIZE - 1
  const waiting: (() => void)[] = []
  const inTurn =
    (send: PostgresConnections['call']): PostgresConnections['call'] =>
    async (text, values) => {
      if (free > 0) free -= 1
      else await new Promise<void>((resolve) => waiting.push(resolve))
      try {
        return await send(text, values)
      } finally {
        const next = waiting.shift()
        if (next === undefined) free += 1
        else next()
      }
    }
  return { ...connections, query: inTurn(connections.query), call: inTurn(connections.call) }
}

/** The connections that a driver opened by a URL uses for its calls. One more listens for notifications. */
const POOL_SIZE = 4
const CONNECT_MS = 5_000
const MAX_RETRY_SECONDS = 1

/** What `begin` passes to its callback and what `reserve` returns is one connection, and has no `begin`. */
const isSql = (client: unknown): client is PostgresSql =>
  typeof client === 'function' && 'unsafe' in client && 'begin' in client

const isPgClient = (client: unknown): client is PgClient =>
  typeof client === 'object' && client !== null && 'query' in client && 'connectionParameters' in client

const isPgPool = (client: unknown): client is PgPool =>
  typeof client === 'object' && client !== null && 'query' in client && 'connect' in client && 'totalCount' in client
