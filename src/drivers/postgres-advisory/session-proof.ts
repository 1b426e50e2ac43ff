import { UnsupportedError } from '../../core/errors.ts'
import { sleep } from '../../core/time/native-time.ts'
import type { DedicatedConnection, PostgresConnections, Row } from '../postgres/connections.ts'
import { advisoryStatements } from './statements.ts'

/** The process of a session at the server, and an id that no other session has. */
export interface SessionIdentity {
  readonly pid: string
  readonly sessionId: string
}

/**
 * Rejects with `UnsupportedError` behind a pooler in transaction mode. Such a pooler gives the session that has just
 * taken our lock to the next transaction of any client: two clients would hold one lock. While our connection is open
 * and idle, no other connection may reach its session, and ours must always reach the same one. Other traffic through
 * the pooler can hide a violation for a moment, so this is checked several times.
 */
export async function proveSession(
  connections: PostgresConnections,
  own: DedicatedConnection,
  { pid, sessionId }: SessionIdentity,
  rounds = PROOF_ROUNDS,
): Promise<void> {
  const witnesses = await Promise.all([1, 2].map(() => connections.dedicate({ onEnd: () => {} })))
  try {
    for (let round = 0; round < rounds; round += 1) {
      const seen = await Promise.all(
        witnesses.map(async (witness) => {
          await witness.script('BEGIN')
          return identityOf(witness)
        }),
      )
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
