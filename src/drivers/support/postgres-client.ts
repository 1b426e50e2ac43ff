import { InvalidArgumentError, MissingClientError } from '../../core/errors.ts'
import { importIfThere } from './optional-client.ts'
import { type PgClient, type PgPool, pgClientConnections, pgPoolConnections } from './postgres-pg.ts'
import { type PostgresSql, sqlConnections, unrefSockets } from './postgres-sql.ts'
import { type PostgresTarget, pgConfig, postgresConfig, postgresPlace } from './postgres-url.ts'

export type { PgClient, PgPool } from './postgres-pg.ts'
export type { PostgresSql } from './postgres-sql.ts'

/** A client that the caller has: a `Pool` or a connected `Client` of pg, or what `postgres()` of postgres gives. */
export type PostgresClient = PgPool | PgClient | PostgresSql

/** All that the drivers need of a client. Every call has a deadline, whatever the socket does. */
export interface PostgresConnections {
  /** Which database, as errors name it: a URL without its login. */
  readonly place: string
  /** One statement on any connection. */
  query(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** The same for one that the server refuses inside a transaction of the caller's. */
  call(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** Whether another try may come to another connection. */
  readonly several: boolean
  /** A connection that nobody else uses, outside the caller's pool where the client allows it. */
  dedicate(events: DedicatedEvents): Promise<DedicatedConnection>
  /** Ends what was opened here; never what the caller passed in. */
  close(): Promise<void>
}

export type Row = Readonly<Record<string, unknown>>

export interface DedicatedEvents {
  onNotification?(channel: string, payload: string): void
  /** Once, when the connection has ended, unless `end` was called before. */
  onEnd(cause: Error): void
  /** Where the connection is the caller's own and goes on: SQL that undoes what was done on it, run by `end`. */
  undo?(): string
}

export interface DedicatedConnection {
  /** `timeoutMs` 0: as long as it takes. */
  query(text: string, values?: readonly (string | null)[], timeoutMs?: number): Promise<readonly Row[]>
  /** A statement that is sent often: prepared where the connection is ours. */
  queryOften(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** Several statements at once, without values. */
  script(text: string): Promise<void>
  /** Whom the connection was told at its start that it talks to. Behind a pooler that is nobody of the server's. */
  readonly serverPid: string | undefined
  /** The caller's own connection, which goes on after `end`. */
  readonly isCallers: boolean
  /** The process may end although this connection is open, or may not. */
  keepAlive(wanted: boolean): void
  end(): Promise<void>
}

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
