import { randomBytes } from 'node:crypto'
import { StoreError, UnsupportedError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import type { DedicatedConnection, PostgresConnections, Row } from '../postgres/connections.ts'
import { sqlState, standbyError } from '../postgres/errors.ts'
import { POOLER_REASON, proveSession } from './session-proof.ts'
import { advisoryStatements, deallocation, execution, preparation, restoring } from './statements.ts'

/** A connection that is proved to be one session of the server, with its settings and prepared statements. */
export interface OpenedSession {
  readonly connection: DedicatedConnection
  readonly pid: string
  /** Random: no other session has it. */
  readonly sessionId: string
  /** How many bytes of a statement `pg_stat_activity` shows. */
  readonly maxCommentBytes: number
  /** There is a pooler in between, which is proved to keep the session for this connection. */
  readonly isPooled: boolean
  /** By how much its tokens are ahead. */
  readonly lead: number
  /** SQL that undoes the opening, for a connection that stays open. */
  readonly undoOpening: string
}

export interface OpeningEvents {
  onEnd(cause: Error): void
  /** SQL that undoes everything of the session. Undefined until the session is open. */
  undo(): string | undefined
}

/** Rejects with `UnsupportedError` when the connection is not one session of the server. */
export async function openSession(connections: PostgresConnections, events: OpeningEvents): Promise<OpenedSession> {
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
    return { connection, ...identity, maxCommentBytes: Number(row['room']), isPooled, lead, undoOpening }
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
