import { connect, type Socket } from 'node:net'
import { MissingClientError, StoreError } from '../../core/errors.ts'
import { withTimeout } from '../../core/time/abort.ts'
import { systemClock } from '../../core/time/clock.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import { importIfThere } from '../shared/optional-client.ts'
import {
  type DedicatedConnection,
  type DedicatedEvents,
  type PostgresConnections,
  QUERY_MS,
  type Row,
  SCRIPT_MS,
} from './connections.ts'
import { postgresPlace } from './url.ts'

/** The few methods that the drivers call of what `postgres()` of the package postgres returns. */
export interface PostgresSql {
  unsafe(text: string, values?: (string | null)[], options?: { prepare?: boolean }): SqlQuery
  begin(options: string, work: (transaction: Pick<PostgresSql, 'unsafe'>) => Promise<unknown>): Promise<unknown>
  end(options?: { timeout?: number }): Promise<void>
  readonly options: object
}

export interface SqlQuery extends PromiseLike<readonly unknown[]> {
  simple(): PromiseLike<unknown>
}

const IDLE_MS = 10_000

/**
 * `reopen` creates another pool like this one. It is passed where the pool is ours. A pool with half-open connections
 * never answers again, and is replaced. So is a pool that was idle for a while. A new pool connects with its first
 * call.
 *
 * A pool of the caller that converts rows is replaced with one of ours, which has the same settings, but does not.
 */
export function sqlConnections(given: PostgresSql, reopen?: () => PostgresSql): PostgresConnections {
  let sql = given
  const converts = convertsRows(given)
  let opening: Promise<void> | undefined
  const openPlain = async (): Promise<void> => {
    const create = await importCreate()
    reopen = () => create({ ...plainOptions(given, create), max: Math.min(maxOf(given), PLAIN_SIZE) })
    sql = reopen()
  }
  let inFlight = 0
  let idleTimer: NodeJS.Timeout | undefined
  let isClosed = false

  function replace(): void {
    const old = sql
    if (reopen !== undefined) sql = reopen()
    old.end({ timeout: 0 }).catch(() => {}) // It is not used any more.
  }

  const query: PostgresConnections['query'] = async (text, values) => {
    if (converts) {
      opening ??= openPlain()
      await opening
    }
    const current = sql
    const late = (): StoreError => {
      if (reopen !== undefined && sql === current) replace()
      return noAnswer(QUERY_MS)
    }
    inFlight += 1
    clearTimeout(idleTimer)
    try {
      // Without a named statement, postgres asks the server for the parameter types before each query. A pool with
      // `prepare: false` keeps that setting.
      const answer = current.unsafe(text, [...values], { prepare: true }) as PromiseLike<readonly Row[]>
      return await answered(answer, QUERY_MS, late)
    } finally {
      inFlight -= 1
      if (inFlight === 0 && reopen !== undefined && !isClosed) {
        // postgres has such a timer, too, but that one keeps the process alive.
        idleTimer = setTimeout(replace, IDLE_MS)
        idleTimer.unref()
      }
    }
  }

  return {
    place: placeOf(given),
    query,
    call: query,
    renew: query,
    release: query,
    isPool: maxOf(given) !== 1,
    dedicate: (events) => dedicate(sql, events),
    async close() {
      isClosed = true
      clearTimeout(idleTimer)
      if (reopen !== undefined) await sql.end({ timeout: 1 })
    },
  }
}

/**
 * Options of a pool whose connections do not keep the process alive. The package postgres has no option for that, but
 * it accepts a socket, and sends only when the socket is connected. Undefined for several hosts, because then postgres
 * itself has to choose one.
 */
export function unrefSockets(options: SqlOptions): object | undefined {
  const { host = [], socket } = options
  if (socket !== undefined || host.length > 1) return undefined
  const open = ({ host: [name = ''] = [], port: [port = 5432] = [], path }: SqlOptions): Socket => {
    const opened = path ? connect(path) : connect(port, name)
    opened.once('connect', () => opened.unref())
    // As postgres itself does: it checks the server's certificate against this host.
    return Object.assign(opened, { host: name, port })
  }
  return { socket: open, idle_timeout: null, max_lifetime: null }
}

function placeOf({ options }: PostgresSql): string {
  const { host, port, path, database = '' } = options as SqlOptions
  if (path) return postgresPlace({ host: path, port: 0, database })
  return postgresPlace({ host: String(host?.[0] ?? 'localhost'), port: Number(port?.[0] ?? 5432), database })
}

interface SqlOptions {
  readonly host?: readonly string[]
  readonly port?: readonly number[]
  readonly path?: string | false
  readonly socket?: unknown
  readonly database?: string
}

type Create = (options: object) => PostgresSql

async function importCreate(): Promise<Create> {
  const found = await importIfThere('postgres')
  if (found === undefined) throw new MissingClientError('a client of postgres', ['postgres'])
  return found['default'] as Create
}

/** What an application can have done to all rows: other names of columns, other values, other types. */
interface Conversions {
  readonly transform?: Record<'column' | 'value' | 'row', { readonly from?: unknown } | undefined>
  readonly parsers?: Readonly<Record<number, ((value: string) => unknown) | undefined>>
}

/** The columns of our statements are texts, which have no parser, and booleans. */
function convertsRows({ options }: PostgresSql): boolean {
  const { transform, parsers } = options as Conversions
  return (
    Object.values(transform ?? {}).some((each) => typeof each?.from === 'function') ||
    [TEXT, VARCHAR].some((type) => parsers?.[type] !== undefined) ||
    parsers?.[BOOLEAN]?.('t') !== true
  )
}

/** The settings of a pool without its conversions. */
function plainOptions(given: PostgresSql, create: Create): object {
  // It connects with its first query, so never.
  const { transform, parsers, serializers } = create({}).options as Conversions & { serializers?: unknown }
  const own = { fetch_types: false, onnotice: () => {}, transform, parsers, serializers }
  return { ...given.options, ...unrefSockets(given.options), ...own }
}

const maxOf = ({ options }: PostgresSql): number => (options as { max?: number }).max ?? 10

const [BOOLEAN, TEXT, VARCHAR] = [16, 25, 1043] as const
const PLAIN_SIZE = 4

/** A pool of ours with the settings of the caller's pool. */
export async function ownSqlLike(given: PostgresSql): Promise<PostgresConnections> {
  const create = await importCreate()
  // Two, so that a release that waits for its row does not delay renewals.
  const open = (): PostgresSql => create({ ...plainOptions(given, create), max: 2, connect_timeout: 5 })
  return sqlConnections(open(), open)
}

async function dedicate(given: PostgresSql, events: DedicatedEvents): Promise<DedicatedConnection> {
  const create = await importCreate()
  let ended = false
  let connected = false
  const drop = (): void => {
    ended = true
    sql.end({ timeout: 0 }).catch(() => {}) // It is not used any more.
  }
  // postgres reconnects by itself and reports it nowhere else.
  const onclose = (): void => {
    if (ended || !connected) return
    drop()
    events.onEnd(new Error('the server closed the connection'))
  }
  const timers = { idle_timeout: null, max_lifetime: null }
  const options = { ...plainOptions(given, create), max: 1, ...timers, onclose }
  const onnotify = (channel: string, payload: string): void => events.onNotification?.(channel, payload)
  const sql = create({ ...options, onnotify })
  const query: DedicatedConnection['query'] = async (text, values, timeoutMs = QUERY_MS) => {
    if (ended) throw new StoreError('the connection has ended')
    // Not prepared: each text begins with an activity comment, and hardly two are the same.
    const answer = sql.unsafe(text, values && [...values]) as PromiseLike<readonly Row[]>
    return timeoutMs === 0 ? await answer : answered(answer, timeoutMs)
  }
  let serverPid: string | undefined
  try {
    const { state } = (await query('SELECT 1')) as { state?: { pid?: number } }
    serverPid = state?.pid ? String(state.pid) : undefined
  } catch (error) {
    drop()
    throw error
  }
  connected = true
  return {
    query,
    async script(text) {
      await answered(sql.unsafe(text).simple(), SCRIPT_MS)
    },
    serverPid,
    isCallers: false,
    keepAlive() {},
    async end() {
      if (ended) return
      ended = true
      await sql.end({ timeout: 1 })
    },
  }
}

/** The package postgres has no deadline for a query. */
const answered = <T>(query: PromiseLike<T>, ms: number, late = () => noAnswer(ms)): Promise<T> =>
  withTimeout(systemClock, ms, Promise.resolve(query), late)

const noAnswer = (ms: number): StoreError => new StoreError(`PostgreSQL did not answer within ${ms} ms`)
