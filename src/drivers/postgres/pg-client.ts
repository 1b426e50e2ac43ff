import { createHash } from 'node:crypto'
import { StoreError } from '../../core/errors.ts'
import { redactedUrl } from '../../core/secrets.ts'
import { settlesWithin } from '../../core/time/abort.ts'
import { systemClock } from '../../core/time/clock.ts'
import {
  createSerialQueue,
  type DedicatedConnection,
  type DedicatedEvents,
  type PostgresConnections,
  QUERY_MS,
  type Row,
  SCRIPT_MS,
  type SerialQueue,
} from './connections.ts'
import { IN_TRANSACTION, sqlState } from './errors.ts'
import { postgresPlace } from './url.ts'

/** The few methods of the package pg that the drivers call, so that no version of its types is required. */

/** A `Pool` of pg. */
export interface PgPool {
  query(config: PgQuery): Promise<PgResult>
  connect(): Promise<PgPoolClient>
  end(): Promise<void>
  on(event: 'error', listener: (error: Error) => void): unknown
  readonly totalCount: number
  readonly idleCount?: number
  readonly waitingCount?: number
}

/** A `Client` of pg that the caller has connected. */
export interface PgClient {
  query(config: PgQuery): Promise<PgResult>
  on(event: 'notification', listener: (message: PgNotification) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  on(event: 'end', listener: () => void): unknown
  removeListener(event: string, listener: (event: Error & PgNotification) => void): unknown
  getTransactionStatus?(): string | null
}

export interface PgPoolClient extends PgClient {
  release(destroy?: boolean | Error): void
}

export interface PgQuery {
  text: string
  values?: (string | null)[]
  query_timeout?: number
  name?: string
  types?: { getTypeParser(oid: number): (value: string | Uint8Array) => string | boolean }
}

export interface PgResult {
  readonly rows: readonly unknown[]
}

export interface PgNotification {
  readonly channel: string
  readonly payload?: string | undefined
}

/** The socket of a pg client, which has no method of its own for what is done with it. */
interface WithSocket {
  readonly connection?: { readonly stream?: { ref?(): void; unref?(): void; destroy?(): void } }
}

export function pgPoolConnections(
  pool: PgPool,
  { owned, place = placeOf((pool as { options?: PgPlace }).options) }: { owned: boolean; place?: string },
): PostgresConnections {
  ignoreErrorEvents(pool)
  const clients = owned ? clientsOf(pool) : []
  const send = sendOn(pool)
  return {
    place,
    query: send,
    call: send,
    renew: send,
    release: send,
    isFree: () => (pool.idleCount ?? 0) > 0 && pool.waitingCount === 0,
    isPool: true,
    async dedicate(events) {
      const { Client, options } = pool as unknown as { Client?: new (config: unknown) => OwnClient; options: unknown }
      // A new connection beside the pool, where possible: a pinned one would be missing in the pool from then on.
      if (Client === undefined) {
        const client = await pool.connect()
        return dedicatedConnection(client, events, async () => client.release(true))
      }
      const client = new Client(options)
      // Each query of ours has its own deadline, and one that waits in the server's queue has none.
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

/** A pool of ours with the settings of the caller's pool. */
export function ownPoolLike(pool: PgPool): PostgresConnections {
  const { options, Client, constructor: Pool } = pool as unknown as CallersPool
  return ownPool(Pool, { ...options, Client }, options)
}

/** A pool of ours with the settings of the caller's client. `Pool` is that of the package pg. */
export function ownPoolFor(client: PgClient, Pool: PoolClass): PostgresConnections {
  const { connectionParameters, constructor: Client } = client as unknown as CallersClient
  return ownPool(Pool, { ...connectionParameters, Client }, connectionParameters)
}

function ownPool(
  Pool: PoolClass,
  settings: object,
  { password }: { readonly password?: unknown },
): PostgresConnections {
  // Two, so that a release that waits for its row does not delay renewals. pg hides the password from a spread.
  const own = { max: 2, min: 0, idleTimeoutMillis: 60_000, connectionTimeoutMillis: 5_000, allowExitOnIdle: true }
  const secret = password === undefined ? {} : { password }
  return pgPoolConnections(new Pool({ ...settings, ...secret, ...own }), { owned: true })
}

export type PoolClass = new (settings: object) => PgPool

interface CallersPool {
  readonly options: { readonly password?: unknown }
  readonly Client: unknown
  readonly constructor: PoolClass
}

interface CallersClient {
  readonly connectionParameters: { readonly password?: unknown }
  readonly constructor: unknown
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

/** An idle connection that breaks emits `error`, which would end the process if nothing listened. */
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
  const call: PostgresConnections['call'] = (text, values) =>
    inTurn(async () => {
      // A call that the server refuses aborts the caller's transaction. A heartbeat must not do that. So the client's
      // own transaction status is checked first. (Older versions of pg do not have it.)
      const status = client.getTransactionStatus?.()
      if (status === 'T' || status === 'E') throw new StoreError(IN_TRANSACTION, { retryable: false })
      return query(client, text, values)
    })
  return {
    place: placeOf(client as PgPlace),
    // Without names: prepared statements would stay on the caller's connection.
    query: (text, values) => inTurn(() => query(client, text, values)),
    call,
    renew: call,
    release: call,
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

/** A client of pg as a connection that nothing else uses. `close` ends it, or gives it back to the caller. */
function dedicatedConnection(
  client: PgClient,
  events: DedicatedEvents,
  close: () => Promise<void>,
  isCallers = false,
): DedicatedConnection {
  let ended = false
  const onError = (cause: Error): void => {
    if (ended) return
    stop()
    events.onEnd(cause)
  }
  const onClosed = (): void => onError(new Error('the server closed the connection'))
  const onNotification = ({ channel, payload = '' }: PgNotification): void => events.onNotification?.(channel, payload)
  const stop = (): void => {
    ended = true
    client.removeListener('notification', onNotification)
    client.removeListener('error', onError)
    client.removeListener('end', onClosed)
  }
  client.on('error', onError)
  client.on('end', onClosed)
  client.on('notification', onNotification)
  const inTurn = queueOf(client)
  return {
    query: (text, values, timeoutMs = QUERY_MS) => inTurn(() => query(client, text, values, { timeoutMs })),
    async script(text) {
      await inTurn(() => client.query({ text, query_timeout: SCRIPT_MS }))
    },
    get serverPid() {
      const { processID } = client as { processID?: number | null }
      return processID ? String(processID) : undefined
    },
    isCallers,
    keepAlive(wanted) {
      const stream = isCallers ? undefined : (client as WithSocket).connection?.stream
      if (wanted) stream?.ref?.()
      else stream?.unref?.()
    },
    async end() {
      if (ended) return
      stop()
      await close()
    },
  }
}

/** A server that hangs does not confirm the end. Its sockets would keep the process alive, so they are destroyed. */
async function endOrDestroy(what: { end(): Promise<void> }, clients: () => Iterable<WithSocket>): Promise<void> {
  const ending = what.end()
  if (await settlesWithin(systemClock, END_MS, ending)) return
  for (const { connection } of clients()) connection?.stream?.destroy?.()
  await ending
}

const END_MS = 1_000

async function query(
  client: Pick<PgClient, 'query'>,
  text: string,
  values: readonly (string | null)[] | undefined,
  { timeoutMs = QUERY_MS, name }: { timeoutMs?: number; name?: string | undefined } = {},
): Promise<readonly Row[]> {
  const own = { text, query_timeout: timeoutMs, types }
  const config = { ...own, ...(values && { values: [...values] }), ...(name && { name }) }
  const { rows } = await client.query(config)
  return rows as readonly Row[]
}

/** The columns of our statements are texts and booleans. The application may have other parsers, or binary values. */
const types: NonNullable<PgQuery['types']> = { getTypeParser: (oid) => (oid === BOOLEAN ? parseBoolean : parseText) }
const parseText = (value: string | Uint8Array): string =>
  typeof value === 'string' ? value : Buffer.from(value).toString()
const parseBoolean = (value: string | Uint8Array): boolean => value === 't' || value[0] === 1
const BOOLEAN = 16

/**
 * Sends a call again if nothing was done.
 *
 * - Named statements are parsed and planned once for each connection. Behind a pooler in transaction mode, the next
 *   transaction may get a connection that does not have the statement, or has it already. From then on, statements are
 *   sent without a name.
 * - The server may just have ended the connection, because it was idle. The next one may have ended as well. The pool
 *   drops each of them.
 */
function sendOn(pool: PgPool): PostgresConnections['query'] {
  let prepares = true
  return async (text, values) => {
    for (let tries = 1; ; tries += 1) {
      const name = prepares ? statementName(text) : undefined
      try {
        return await query(pool, text, values, { name })
      } catch (error) {
        const state = sqlState(error) ?? ''
        if (name !== undefined && NOT_PREPARED.includes(state)) prepares = false
        else if (state !== IDLE_SESSION_TIMEOUT || tries >= MAX_TRIES) throw error
      }
    }
  }
}

const NOT_PREPARED = ['26000', '42P05']
const IDLE_SESSION_TIMEOUT = '57P05'
const MAX_TRIES = 20

/** A hash of the text, so that two statements never have the same name, even if the application uses the connection. */
function statementName(text: string): string {
  const name = names.get(text) ?? `holdfast_${createHash('sha256').update(text).digest('hex').slice(0, 24)}`
  names.set(text, name)
  return name
}

const names = new Map<string, string>()

/** pg warns about a query on a busy client. So each client has one queue, however many drivers use it. */
function queueOf(client: PgClient): SerialQueue {
  const queue = queues.get(client) ?? createSerialQueue()
  queues.set(client, queue)
  return queue
}

const queues = new WeakMap<PgClient, SerialQueue>()
