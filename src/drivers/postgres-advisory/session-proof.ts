import { UnsupportedError } from '../../core/errors.ts'
import { sleep } from '../../core/time/native-time.ts'
import type { DedicatedConnection, PostgresConnections, Row } from '../postgres/connections.ts'
import { advisoryStatements } from './statements.ts'

/** What a session has said of itself: its process at the server, and a word that nobody else has. */
export interface Identity {
  readonly pid: string
  readonly word: string
}

/**
 * A pooler in transaction mode gives the next transaction of anybody the connection that just took our lock: two
 * clients would hold one lock. While our connection is open and idle, nobody else may be able to get hold of the
 * server's side of it, and we must always reach the same one. Other traffic through the pooler may hide that for a
 * moment, so it is looked at several times.
 */
export async function proveSession(
  connections: PostgresConnections,
  own: DedicatedConnection,
  { pid, word }: Identity,
  rounds = PROOFS,
): Promise<void> {
  const witnesses = await Promise.all([1, 2].map(() => connections.dedicate({ onEnd: () => {} })))
  try {
    for (let round = 0; round < rounds; round += 1) {
      const seen = await Promise.all(
        witnesses.map(async (witness) => {
          await witness.script('BEGIN')
          return see(witness)
        }),
      )
      const isShared = seen.some((row) => row?.['pid'] === pid || row?.['session'] === word)
      const mine = isShared ? undefined : await see(own)
      if (mine?.['pid'] !== pid || mine?.['session'] !== word) throw new UnsupportedError(POOLER)
      for (const witness of witnesses) await witness.script('ROLLBACK')
      await sleep(PAUSE_MS)
    }
  } finally {
    // What they were for is known; an end that fails leaves nothing behind.
    await Promise.allSettled(witnesses.map((witness) => witness.end()))
  }
}

const see = async (connection: DedicatedConnection): Promise<Row | undefined> =>
  (await connection.query(advisoryStatements.witness))[0]

/** How often it is looked at what a pooler does. */
export const PROOFS = 6
const PAUSE_MS = 8

export const POOLER =
  'advisory locks need a session of the server, but a pooler in transaction mode stands in between (PgBouncer): each statement may reach another ' +
  'session, and two clients would hold one lock. Connect to PostgreSQL itself, use a pool in session mode, or the postgres driver'
