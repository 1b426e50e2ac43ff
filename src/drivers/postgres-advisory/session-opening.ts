import { randomBytes } from 'node:crypto'
import { StoreError, UnsupportedError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import type { DedicatedConnection, PostgresConnections, Row } from '../postgres/connections.ts'
import { sqlState, standbyError } from '../postgres/errors.ts'
import { POOLER, proveSession } from './session-proof.ts'
import { advisoryStatements, deallocation, execution, preparation, restoring } from './statements.ts'

/** A connection that was proved to be one session of the server, with its settings made and its statements prepared. */
export interface OpenedSession {
  readonly connection: DedicatedConnection
  readonly pid: string
  /** One that no other session has. */
  readonly word: string
  /** How much of a statement others can see, in bytes. */
  readonly room: number
  /** Something stands in between, which was proved to keep the session for us alone. */
  readonly isPooled: boolean
  /** On a connection that goes on: SQL that undoes the opening. */
  readonly undoOpening: string
}

export interface OpeningEvents {
  onEnd(cause: Error): void
  /** What has to be undone of the session once it is open; the opening itself is known here. */
  undo(): string | undefined
}

/** Rejects with `UnsupportedError` when the connection is not one session of the server. */
export async function openPinned(connections: PostgresConnections, events: OpeningEvents): Promise<OpenedSession> {
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
    const word = randomBytes(9).toString('hex')
    const row = (await connection.query(advisoryStatements.identity, [word, String(!connection.isCallers)]))[0] as Row
    const identity = { pid: row['pid'] as string, word }
    undoOpening = restoring(row['before'] as string)
    // A session survives the promotion, and its tokens would have the lead of the timeline before.
    if (row['standby'] === true) throw standbyError()
    // The server itself says at the start of a connection who serves it; a pooler makes something up.
    const isPooled = connection.serverPid !== identity.pid
    // The one connection that there is cannot be proved by others.
    if (isPooled && connection.isCallers) throw new UnsupportedError(POOLER)
    if (isPooled) await proveSession(connections, connection, identity)
    await connection.script(preparation(word, await leadOf(connection)))
    undoOpening += deallocation(word)
    if (isPooled) {
      // Where it was prepared, and nowhere else, will locks be taken.
      const [still] = await connection.query(execution('still', word, [])).catch(unlessElsewhere)
      if (still?.['pid'] !== identity.pid) throw new UnsupportedError(POOLER)
      await proveSession(connections, connection, identity, 1)
    }
    if (ended !== undefined) throw ended
    return { connection, ...identity, room: Number(row['room']), isPooled, undoOpening }
  } catch (error) {
    // The error that is told is the one that came first.
    await connection.end().catch(() => {})
    throw error
  }
}

/**
 * What the tokens of a server are ahead by for each time that it, or one that it took the place of, was promoted. See
 * advisory.sql. A service that does not know its timeline has replicas that share its storage, and do not lag. Where
 * it could not be asked for any other reason, the session is not opened: without the lead that others have, its tokens
 * would be lower than theirs.
 */
async function leadOf(connection: DedicatedConnection): Promise<number> {
  const [row] = await connection.query(advisoryStatements.timeline).catch((error: unknown) => {
    const state = sqlState(error)
    if (state === '42501') throw new StoreError(NO_RIGHT, { cause: safeCause(error), retryable: false })
    if (!NO_TIMELINE.includes(state ?? '')) throw error
    return []
  })
  const timeline = Number(row?.['timeline'] ?? 1)
  return (timeline - 1) * LEAD
}

/** No such function, no such type, not supported, and not in the state for it (a standby was refused before). */
const NO_TIMELINE = ['42883', '42704', '0A000', '55000']

const NO_RIGHT =
  'this role may not ask PostgreSQL for its timeline, which fencing tokens need to rise over a failover: ' +
  'in this database, run GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) TO the role'

/** 11.5 days, as 10^12 microseconds. So many promotions that tokens were no safe integers any more would be 7,000. */
const LEAD = 1_000_000_000_000

function unlessElsewhere(error: unknown): never {
  throw sqlState(error) === '26000' ? new UnsupportedError(POOLER) : error
}
