import { randomBytes } from 'node:crypto'
import { StoreError, UnsupportedError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { sleep } from '../../core/time/native-time.ts'
import type { DedicatedConnection, PostgresConnections, Row } from '../postgres/connections.ts'
import { sqlState, standbyError } from '../postgres/errors.ts'
import { advisoryStatements, deallocation, execution, preparation, restoring } from './statements.ts'

/** A connection that is proved to be one session of the server, with its settings and prepared statements. */
export type OpenedSession = Awaited<ReturnType<typeof openSession>>

/**
 * Rejects with `UnsupportedError` when the connection is not one session of the server. `undo` returns SQL that undoes
 * everything of the session, once it is open.
 */
export async function openSession(
  connections: PostgresConnections,
  events: { onEnd(cause: Error): void; undo(): string | undefined },
) {
  let ended: Error | undefined
  let undoOpening = ''
  const connection = await connections.dedicate({
    onEnd(cause) {
      ended = cause
      events.onEnd(cause)
    },
    undo: () => events.undo() ?? undoOpening,
  })
  try {
    // No other session has it.
    const sessionId = randomBytes(9).toString('hex')
    const values = [sessionId, String(!connection.isCallers)]
    const row = await identify(connection, values)
    const identity = { pid: row['pid'] as string, sessionId }
    undoOpening = restoring(row['before'] as string)
    // A session survives a promotion, but its tokens would still have the lead of the old timeline.
    if (row['standby'] === true) throw standbyError()
    // At the start of a connection the server sends the id of its process. A pooler sends an invented one.
    const isPooled = connection.serverPid !== identity.pid
    // The caller's one connection leaves no second one to prove it with.
    if (isPooled && connection.isCallers) throw new UnsupportedError(POOLER_REASON)
    if (isPooled) {
      await proveSession(connections, connection, identity)
      await proveReset(connections, connection)
    }
    const lead = await leadOf(connection)
    await connection.script(preparation(sessionId, lead))
    undoOpening += deallocation(sessionId)
    if (isPooled) {
      // Locks are taken only in the session in which the statements were prepared.
      const [pinged] = await connection.query(execution('ping', sessionId, [])).catch(rethrowElsewhere)
      if (pinged?.['pid'] !== identity.pid) throw new UnsupportedError(POOLER_REASON)
      await proveSession(connections, connection, identity, 1)
    }
    if (ended !== undefined) throw ended
    /** How many bytes of a statement `pg_stat_activity` shows. */
    const maxCommentBytes = Number(row['room'])
    return { connection, ...identity, maxCommentBytes, isPooled, lead, undoOpening }
  } catch (error) {
    // The first error is the one to report.
    await connection.end().catch(() => {})
    throw error
  }
}

async function identify(connection: DedicatedConnection, values: readonly string[]): Promise<Row> {
  try {
    const row = (await connection.query(advisoryStatements.identity, values))[0] as Row
    refuseOthers(row['version'])
    return row
  } catch (error) {
    if (sqlState(error) !== undefined) {
      // The first error is the one to report, if the server is PostgreSQL.
      const [row] = await connection.query(advisoryStatements.version).catch(() => [])
      if (row !== undefined) refuseOthers(row['version'])
    }
    throw error
  }
}

/** Servers that speak PostgreSQL's protocol, but whose session locks exclude nothing, or whose ids do not rise. */
function refuseOthers(version: unknown): void {
  const text = String(version)
  if (/^PostgreSQL \d/.test(text) && !/-YB-|Redshift|Greenplum/.test(text)) return
  throw new UnsupportedError(`${NOT_POSTGRES}: its version is "${text.slice(0, 100)}". Use another store`)
}

const NOT_POSTGRES = 'advisory locks and their fencing tokens need PostgreSQL, and this is another server'

/**
 * Rejects with `UnsupportedError` if a lock of one session does not exclude the other one, or is not visible to it.
 * Some servers and proxies accept `pg_try_advisory_lock` and do nothing.
 */
export async function proveExclusion(own: DedicatedConnection, other: DedicatedConnection): Promise<void> {
  const key = [randomBytes(8).readBigInt64BE().toString()]
  const ask = async (connection: DedicatedConnection, name: 'try_key' | 'see_key' | 'free_key', column: string) =>
    (await connection.query(advisoryStatements[name], key))[0]?.[column] === true
  const got = await ask(own, 'try_key', 'got')
  const isSeen = await ask(other, 'see_key', 'seen')
  const isShared = await ask(other, 'try_key', 'got')
  if (isShared) await ask(other, 'free_key', 'freed')
  const isFreed = await ask(own, 'free_key', 'freed')
  if (!got || !isSeen || isShared || !isFreed) throw new UnsupportedError(NO_EXCLUSION)
}

const NO_EXCLUSION =
  'a session lock that one connection has does not exclude another connection here, or is not visible to it: this ' +
  'server or proxy does not implement advisory locks, or the connections lead to different servers'

/**
 * By how much the tokens of this server are ahead, for each promotion of it or of a server that it replaced. See
 * advisory.sql. A service without a timeline has replicas that share its storage and do not lag. If the timeline cannot
 * be read for any other reason, the session is not opened: without this lead its tokens would be lower than those of
 * other sessions.
 */
async function leadOf(connection: DedicatedConnection): Promise<number> {
  const [row] = await connection.query(advisoryStatements.timeline).catch((error: unknown) => {
    const state = sqlState(error)
    if (state === '42501') throw new StoreError(NO_PRIVILEGE, { cause: safeCause(error), retryable: false })
    if (!NO_TIMELINE.includes(state ?? '')) throw error
    return []
  })
  const timeline = Number(row?.['timeline'] ?? 1)
  return (timeline - 1) * LEAD
}

/** No such function, no such type, not supported, or not in the required state (a standby was refused before). */
const NO_TIMELINE = ['42883', '42704', '0A000', '55000']

const NO_PRIVILEGE =
  'this role may not read the timeline of PostgreSQL, which fencing tokens need to rise over a failover: ' +
  'in this database, run GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) TO the role'

/** 11.5 days, as 10^12 microseconds. Tokens stay safe integers for 7,000 promotions. */
const LEAD = 1_000_000_000_000

/** A prepared statement that is missing shows that another session was reached. */
function rethrowElsewhere(error: unknown): never {
  throw sqlState(error) === '26000' ? new UnsupportedError(POOLER_REASON) : error
}

/**
 * Rejects with `UnsupportedError` behind a pooler in transaction mode. Such a pooler gives the session that has just
 * taken our lock to the next transaction of any client: two clients would hold one lock. While our connection is open
 * and idle, no other connection may reach its session, and ours must always reach the same one. Other traffic through
 * the pooler can hide a violation for a moment, so this is checked several times.
 */
async function proveSession(
  connections: PostgresConnections,
  own: DedicatedConnection,
  { pid, sessionId }: { readonly pid: string; readonly sessionId: string },
  rounds = PROOF_ROUNDS,
): Promise<void> {
  const witnesses = await Promise.all([1, 2].map(() => connections.dedicate({ onEnd: () => {} })))
  try {
    for (let round = 0; round < rounds; round += 1) {
      await Promise.all(witnesses.map((witness) => witness.script('BEGIN')))
      const seen = await Promise.all(witnesses.map(identityOf))
      const isShared = seen.some((row) => row?.['pid'] === pid || row?.['session'] === sessionId)
      const mine = isShared ? undefined : await identityOf(own)
      if (mine?.['pid'] !== pid || mine?.['session'] !== sessionId) throw new UnsupportedError(POOLER_REASON)
      for (const witness of witnesses) await witness.script('ROLLBACK')
      await sleep(PAUSE_MS)
    }
  } finally {
    // An error while a witness closes leaves nothing behind.
    await Promise.allSettled(witnesses.map((witness) => witness.end()))
  }
}

/**
 * Rejects with `UnsupportedError` behind a pooler that does not reset the session of a client that has disconnected: a
 * client that is killed would keep its locks until the pooler closes that session, which can take an hour.
 */
async function proveReset(connections: PostgresConnections, own: DedicatedConnection): Promise<void> {
  const key = [randomBytes(8).readBigInt64BE().toString()]
  const leaving = await connections.dedicate({ onEnd: () => {} })
  try {
    await leaving.query(advisoryStatements.try_key, key)
  } finally {
    await leaving.end()
  }
  for (let look = 0; look < RESET_LOOKS; look += 1) {
    if ((await own.query(advisoryStatements.see_key, key))[0]?.['seen'] !== true) return
    await sleep(PAUSE_MS * (look + 1))
  }
  // The next client probably gets that session.
  const next = await connections.dedicate({ onEnd: () => {} })
  await next.query(advisoryStatements.free_key, key).catch(() => {})
  await next.end().catch(() => {})
  throw new UnsupportedError(NO_RESET)
}

const RESET_LOOKS = 15

const NO_RESET =
  'the pooler in between does not reset the session of a client that has disconnected: a client that is killed would ' +
  'keep its locks. Set server_reset_query = DISCARD ALL (PgBouncer), or connect to PostgreSQL directly'

const identityOf = async (connection: DedicatedConnection): Promise<Row | undefined> =>
  (await connection.query(advisoryStatements.witness))[0]

export const PROOF_ROUNDS = 6
const PAUSE_MS = 8

export const POOLER_REASON =
  'advisory locks need a session of the server, but there is a pooler in transaction mode in between (PgBouncer): ' +
  'each statement may reach another session, and two clients would hold one lock. Connect to PostgreSQL directly, ' +
  'use a pool in session mode, or use the postgres driver'
