import { createHash } from 'node:crypto'
import { StoreError } from '../../core/errors.ts'
import { redactedUrl } from '../../core/secrets.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import type { DedicatedConnection, DedicatedEvents, PostgresConnections, Row } from './connections.ts'
import { IN_TRANSACTION, sqlState } from './errors.ts'
import { createLine } from './serial-queue.ts'
import { postgresPlace } from './url.ts'

/** What we call of a `Pool` of pg. */
export interface PgPool {
  query(config: PgQuery): Promise<PgResult>
  connect(): Promise<PgPoolClient>
  end(): Promise<void>
  on(event: 'error', listener: (error: Error) => void): unknown
  readonly totalCount: number
}

/** What we call of a `Client` of pg that the caller has connected. */
export interface PgClient {
  query(config: PgQuery): Promise<PgResult>
  on(event: 'notification', listener: (message: PgNotification) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  on(event: 'end', listener: () => void): unknown
  removeListener(event: string, listener: (heard: Error & PgNotification) => void): unknown
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
}

export interface PgResult {
  readonly rows: readonly unknown[]
}

export interface PgNotification {
  readonly channel: string
  readonly payload?: string | undefined
}

/** A half-open connection answers nothing and fails nowhere: after this long its query fails, and a pool drops it. */
const QUERY_MS = 10_000

export function pgPoolConnections(
  pool: PgPool,
  { owned, place = placeOf((pool as { options?: PgPlace }).options) }: { owned: boolean; place?: string },
): PostgresConnections {
  hearErrors(pool)
  const clients = owned ? clientsOf(pool) : []
  const query = notOnEndedConnection(askPrepared(pool))
  return {
    place,
    query,
    call: query,
    several: true,
    async dedicate(events) {
      const { Client, options } = pool as unknown as { Client?: new (config: unknown) => OwnClient; options: unknown }
      // A connection beside the pool: one that is pinned would be missing in it for ever.
      if (Client === undefined) {
        const client = await pool.connect()
        return dedicated(client, events, async () => client.release(true))
      }
      const client = new Client(options)
      // Without the pool's own deadline for a query: each of ours has one, and one that stands in the server's queue
      // must have none.
      if (client.connectionParameters) client.connectionParameters.query_timeout = false
      hearErrors(client)
      await client.connect()
      return dedicated(client, events, () => endOrCut(client, () => [client]))
    },
    async close() {
      if (owned) await endOrCut(pool, () => clients)
    },
  }
}

/** Those that a pool of ours has at the moment. */
function clientsOf(pool: PgPool): Iterable<WithSocket> {
  const clients = new Set<WithSocket>()
  const events = pool as unknown as { on(event: string, listener: (client: WithSocket) => void): unknown }
  events.on('connect', (client) => clients.add(client))
  events.on('remove', (client) => clients.delete(client))
  return clients
}

/** A server that does not answer says no farewell either, and its sockets would keep the process alive. */
async function endOrCut(what: { end(): Promise<void> }, clients: () => Iterable<WithSocket>): Promise<void> {
  const timer = setTimeout(() => {
    for (const { connection } of clients()) connection?.stream?.destroy?.()
  }, FAREWELL_MS)
  try {
    await what.end()
  } finally {
    clearTimeout(timer)
  }
}

const FAREWELL_MS = 1_000

/** Of a client of pg, which has no method for what is done with it. */
interface WithSocket {
  readonly connection?: { readonly stream?: { ref?(): void; unref?(): void; destroy?(): void } }
}

/** What a client of pg says of itself, and a pool of its settings. */
interface PgPlace {
  readonly host?: string
  readonly port?: number
  readonly database?: string
  readonly connectionString?: string
}

function placeOf({ host, port, database, connectionString }: PgPlace = {}): string {
  // Written by others, who may not have encoded the password: where it ends is a guess.
  if (connectionString !== undefined) return String(redactedUrl(connectionString)).replace('…@', '')
  return postgresPlace({ host: host ?? 'localhost', port: port ?? 5432, database: database ?? '' })
}

/**
 * A call may come to a connection that the server has just ended for idleness. It has not been done, and goes to another
 * one, which may have ended as well: the pool drops each of them.
 */
function notOnEndedConnection(query: PostgresConnections['query']): PostgresConnections['query'] {
  return async (text, values) => {
    for (let tries = 1; ; tries += 1) {
      try {
        return await query(text, values)
      } catch (error) {
        if (sqlState(error) !== IDLE_TOO_LONG || tries === MAX_TRIES) throw error
      }
    }
  }
}

const MAX_TRIES = 20
const IDLE_TOO_LONG = '57P05'

/**
 * An idle connection that breaks emits an error; with nobody to hear it, that would end the process. Once for each,
 * however many drivers use it.
 */
function hearErrors(emitter: Pick<PgPool, 'on'>): void {
  if (heard.has(emitter)) return
  heard.add(emitter)
  emitter.on('error', () => {})
}

const heard = new WeakSet<object>()

interface OwnClient extends PgClient, WithSocket {
  readonly connectionParameters?: { query_timeout?: unknown }
  connect(): Promise<void>
  end(): Promise<void>
}

/** Everything on the one connection that there is, one statement after the other. */
export function pgClientConnections(client: PgClient): PostgresConnections {
  hearErrors(client)
  const inTurn = lineOf(client)
  return {
    place: placeOf(client as PgPlace),
    // Without names: a prepared statement would stay on the caller's connection.
    query: (text, values) => inTurn(() => ask(client, text, values)),
    call: (text, values) =>
      inTurn(async () => {
        refuseOpenTransaction(client)
        return ask(client, text, values)
      }),
    several: false,
    // The connection goes on, so what was done on it has to be undone, and nothing else.
    async dedicate(events) {
      const undo = async (): Promise<void> => {
        const text = events.undo?.() ?? ''
        if (text !== '') await inTurn(() => client.query({ text, query_timeout: QUERY_MS }))
      }
      return dedicated(client, events, undo, true)
    },
    close: async () => {},
  }
}

function dedicated(
  client: PgClient,
  events: DedicatedEvents,
  close: () => Promise<void>,
  isCallers = false,
): DedicatedConnection {
  let ended = false
  const onEnd = (cause: Error): void => {
    if (ended) return
    stop()
    events.onEnd(cause)
  }
  const onError = (error: Error): void => onEnd(error)
  const onClosed = (): void => onEnd(new Error('the server closed the connection'))
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
  const inTurn = lineOf(client)
  return {
    query: (text, values, timeoutMs = QUERY_MS) => inTurn(() => ask(client, text, values, { timeoutMs })),
    queryOften: (text, values) => inTurn(() => ask(client, text, values, isCallers ? {} : { name: nameOf(text) })),
    async script(text) {
      await inTurn(() => client.query({ text, query_timeout: SCRIPT_MS }))
    },
    get serverPid() {
      const { processID } = client as { processID?: number | null }
      return processID ? String(processID) : undefined
    },
    isCallers,
    keepAlive(wanted) {
      if (isCallers) return
      const { connection } = client as WithSocket
      if (wanted) connection?.stream?.ref?.()
      else connection?.stream?.unref?.()
    },
    async end() {
      if (ended) return
      stop()
      await close()
    },
  }
}

const SCRIPT_MS = 120_000

/**
 * A client of pg that is asked while it is busy complains, and will refuse. So there is one line for each, however many
 * drivers use it.
 */
function lineOf(client: PgClient): ReturnType<typeof createLine> {
  const line = lines.get(client) ?? createLine()
  lines.set(client, line)
  return line
}

const lines = new WeakMap<PgClient, ReturnType<typeof createLine>>()

async function ask(
  client: Pick<PgClient, 'query'>,
  text: string,
  values: readonly (string | null)[] | undefined,
  { timeoutMs = QUERY_MS, name }: { timeoutMs?: number; name?: string } = {},
): Promise<readonly Row[]> {
  const query = { text, query_timeout: timeoutMs, ...(values && { values: [...values] }), ...(name && { name }) }
  const { rows } = await client.query(query)
  return rows as readonly Row[]
}

/**
 * Named statements are parsed and planned once for each connection. Behind a pooler in transaction mode the next
 * transaction may come to a connection that knows nothing of them, or has them already: then, nothing having been done,
 * it is sent again without a name, and so is all that follows.
 */
function askPrepared(client: Pick<PgClient, 'query'>): PostgresConnections['query'] {
  let prepares = true
  return async (text, values) => {
    if (!prepares) return ask(client, text, values)
    try {
      return await ask(client, text, values, { name: nameOf(text) })
    } catch (error) {
      if (!['26000', '42P05'].includes(sqlState(error) ?? '')) throw error
      prepares = false
      return ask(client, text, values)
    }
  }
}

/** Two statements never have the same name, whoever else uses the connection. */
function nameOf(text: string): string {
  const known = names.get(text)
  if (known !== undefined) return known
  const name = `holdfast_${createHash('sha256').update(text).digest('hex').slice(0, 24)}`
  names.set(text, name)
  return name
}

const names = new Map<string, string>()

/**
 * A call that the server refuses aborts the caller's transaction. A heartbeat must not do that to it, so what the
 * client knows of it is asked first. (Older versions of pg do not tell.)
 */
function refuseOpenTransaction(client: PgClient): void {
  const status = client.getTransactionStatus?.()
  if (status === 'T' || status === 'E') throw new StoreError(IN_TRANSACTION, { retryable: false })
}
