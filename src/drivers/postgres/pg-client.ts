import { StoreError } from '../../core/errors.ts'
import { redactedUrl } from '../../core/secrets.ts'
import type { PostgresConnections } from './connections.ts'
import { IN_TRANSACTION, sqlState } from './errors.ts'
import { dedicatedConnection, endOrDestroy } from './pg-dedicated.ts'
import { QUERY_MS, query, queryPrepared, queueOf } from './pg-query.ts'
import type { PgClient, PgPool, WithSocket } from './pg-types.ts'
import { postgresPlace } from './url.ts'

export function pgPoolConnections(
  pool: PgPool,
  { owned, place = placeOf((pool as { options?: PgPlace }).options) }: { owned: boolean; place?: string },
): PostgresConnections {
  ignoreErrorEvents(pool)
  const clients = owned ? clientsOf(pool) : []
  const send = retriedIfIdleEnded(queryPrepared(pool))
  return {
    place,
    query: send,
    call: send,
    isPool: true,
    async dedicate(events) {
      const { Client, options } = pool as unknown as { Client?: new (config: unknown) => OwnClient; options: unknown }
      // A new connection beside the pool, where possible: a pinned one would be missing in the pool from then on.
      if (Client === undefined) {
        const client = await pool.connect()
        return dedicatedConnection(client, events, async () => client.release(true))
      }
      const client = new Client(options)
      // Each query of ours has its own deadline, and one that waits in the server's queue must have none. So the pool's
      // setting must not apply.
      if (client.connectionParameters) client.connectionParameters.query_timeout = false
      ignoreErrorEvents(client)
      await client.connect()
      return dedicatedConnection(client, events, () => endOrDestroy(client, () => [client]))
    },
    async close() {
      if (owned) await endOrDestroy(pool, () => clients)
    },
  }
}

/** The clients that a pool of ours has, kept up to date. */
function clientsOf(pool: PgPool): Iterable<WithSocket> {
  const clients = new Set<WithSocket>()
  const events = pool as unknown as { on(event: string, listener: (client: WithSocket) => void): unknown }
  events.on('connect', (client) => clients.add(client))
  events.on('remove', (client) => clients.delete(client))
  return clients
}

/** The address in a client of pg, or in the options of a pool. */
interface PgPlace {
  readonly host?: string
  readonly port?: number
  readonly database?: string
  readonly connectionString?: string
}

function placeOf({ host, port, database, connectionString }: PgPlace = {}): string {
  // The caller may not have encoded the password, so where it ends is a guess.
  if (connectionString !== undefined) return String(redactedUrl(connectionString)).replace('…@', '')
  return postgresPlace({ host: host ?? 'localhost', port: port ?? 5432, database: database ?? '' })
}

/**
 * A call may get a connection that the server has just ended because it was idle. Nothing was done then, so the call is
 * sent again. The next connection may have ended as well. The pool drops each of them.
 */
function retriedIfIdleEnded(send: PostgresConnections['query']): PostgresConnections['query'] {
  return async (text, values) => {
    for (let tries = 1; ; tries += 1) {
      try {
        return await send(text, values)
      } catch (error) {
        if (sqlState(error) !== IDLE_SESSION_TIMEOUT || tries === MAX_TRIES) throw error
      }
    }
  }
}

const MAX_TRIES = 20
const IDLE_SESSION_TIMEOUT = '57P05'

/**
 * An idle connection that breaks emits `error`. Without a listener, that would end the process. One listener for each
 * emitter is enough, however many drivers use it.
 */
function ignoreErrorEvents(emitter: Pick<PgPool, 'on'>): void {
  if (withListener.has(emitter)) return
  withListener.add(emitter)
  emitter.on('error', () => {})
}

const withListener = new WeakSet<object>()

interface OwnClient extends PgClient, WithSocket {
  readonly connectionParameters?: { query_timeout?: unknown }
  connect(): Promise<void>
  end(): Promise<void>
}

/** Sends everything on the caller's one connection, one statement after the other. */
export function pgClientConnections(client: PgClient): PostgresConnections {
  ignoreErrorEvents(client)
  const inTurn = queueOf(client)
  return {
    place: placeOf(client as PgPlace),
    // Without names: prepared statements would stay on the caller's connection.
    query: (text, values) => inTurn(() => query(client, text, values)),
    call: (text, values) =>
      inTurn(async () => {
        refuseOpenTransaction(client)
        return query(client, text, values)
      }),
    isPool: false,
    // The connection stays open, so exactly what was done on it has to be undone.
    async dedicate(events) {
      const undo = async (): Promise<void> => {
        const text = events.undo?.() ?? ''
        if (text !== '') await inTurn(() => client.query({ text, query_timeout: QUERY_MS }))
      }
      return dedicatedConnection(client, events, undo, true)
    },
    close: async () => {},
  }
}

/**
 * A call that the server refuses aborts the caller's transaction. A heartbeat must not do that. So the client's own
 * transaction status is checked first. (Older versions of pg do not have it.)
 */
function refuseOpenTransaction(client: PgClient): void {
  const status = client.getTransactionStatus?.()
  if (status === 'T' || status === 'E') throw new StoreError(IN_TRANSACTION, { retryable: false })
}
