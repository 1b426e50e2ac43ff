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
    const row = (await connection.query(advisoryStatements.identity, values))[0] as Row
    const identity = { pid: row['pid'] as string, sessionId }
    undoOpening = restoring(row['before'] as string)
    // A session survives a promotion, but its tokens would still have the lead of the old timeline.
    if (row['standby'] === true) throw standbyError()
    // At the start of a connection the server sends the id of its process. A pooler sends an invented one.
    const isPooled = connection.serverPid !== identity.pid
    // The caller's one connection leaves no second one to prove it with.
    if (isPooled && connection.isCallers) throw new UnsupportedError(POOLER_REASON)
    if (isPooled) await proveSession(connections, connection, identity)
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

const identityOf = async (connection: DedicatedConnection): Promise<Row | undefined> =>
  (await connection.query(advisoryStatements.witness))[0]

export const PROOF_ROUNDS = 6
const PAUSE_MS = 8

export const POOLER_REASON =
  'advisory locks need a session of the server, but there is a pooler in transaction mode in between (PgBouncer): ' +
  'each statement may reach another session, and two clients would hold one lock. Connect to PostgreSQL directly, ' +
  'use a pool in session mode, or use the postgres driver'
