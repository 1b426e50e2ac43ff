import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { StoreError, UnsupportedError } from '../../core/errors.ts'
import { booleanArray, parseBooleans } from './postgres-arrays.ts'
import { type BoardEntry, writeBoard } from './postgres-board.ts'
import type { DedicatedConnection, PostgresConnections, Row } from './postgres-client.ts'
import { sqlState, storeErrorFrom } from './postgres-errors.ts'
import { withoutComments } from './postgres-migrate.ts'
import { namedStatements, readProtocol } from './sql-file.ts'

type StatementName =
  | 'identity'
  | 'witness'
  | 'try'
  | 'wait'
  | 'unlock'
  | 'unlock_all'
  | 'still'
  | 'cancel'
  | 'mine'
  | 'locks'
  | 'lock_in_transaction'
  | 'try_in_transaction'

export const advisoryStatements = namedStatements<StatementName>(withoutComments(readProtocol('postgres/advisory.sql')))

/** A lease on an advisory lock, as the process that has it keeps it. */
export interface SessionLease extends BoardEntry {
  readonly key: string
  readonly fencingToken: number
  readonly acquiredAtMs: number
}

/** Somebody who asks, before there is a token. */
export interface Asking extends BoardEntry {
  readonly key: string
}

/** One pinned connection and the locks on it. Its end is the loss of all of them, at once. */
export class Session {
  readonly leases = new Map<string, SessionLease>()
  readonly #connection: DedicatedConnection
  readonly #pid: string
  readonly #room: number
  readonly #word: string
  readonly #isPooled: boolean
  readonly #undoOpening: string
  /** Perhaps held, perhaps not: a statement about them failed. */
  readonly #inDoubt: Asking[] = []
  #xid = '0'
  #lost: Error | undefined
  readonly #onLost: (session: Session, cause: Error) => void

  private constructor(
    connection: DedicatedConnection,
    { identity, word, isPooled, undoOpening }: Opened,
    onLost: (session: Session, cause: Error) => void,
  ) {
    this.#connection = connection
    this.#pid = identity['pid'] as string
    this.#room = Number(identity['room'])
    this.#word = word
    this.#isPooled = isPooled
    this.#undoOpening = undoOpening
    this.#onLost = onLost
    connection.keepAlive(false)
  }

  /** Rejects with `UnsupportedError` when the connection is not one session of the server. */
  static async open(
    connections: PostgresConnections,
    onLost: (session: Session, cause: Error) => void,
  ): Promise<Session> {
    let session: Session | undefined
    let ended: Error | undefined
    let undoOpening = ''
    const connection = await connections.dedicate({
      onEnd(cause) {
        ended = cause
        session?.lose(cause)
      },
      undo: () => session?.undo() ?? undoOpening,
    })
    try {
      const word = randomBytes(9).toString('hex')
      const values = [word, String(!connection.isCallers)]
      const identity = (await connection.query(advisoryStatements.identity, values))[0] as Row
      undoOpening = restoring(identity['before'] as string)
      // The server itself says at the start of a connection who serves it; a pooler makes something up.
      const isPooled = connection.serverPid !== identity['pid']
      // The one connection that there is cannot be proved by others.
      if (isPooled && connection.isCallers) throw new UnsupportedError(POOLER)
      if (isPooled) await proveSession(connections, connection, identity, word, PROOFS)
      await connection.script(preparation(word))
      undoOpening += deallocation(word)
      if (isPooled) {
        // Where it was prepared, and nowhere else, will locks be taken.
        const [still] = await connection.query(execution('still', word, [])).catch(unlessElsewhere)
        if (still?.['pid'] !== identity['pid']) throw new UnsupportedError(POOLER)
        await proveSession(connections, connection, identity, word, 1)
      }
      if (ended !== undefined) throw ended
      session = new Session(connection, { identity, word, isPooled, undoOpening }, onLost)
      return session
    } catch (error) {
      await connection.end().catch(() => {})
      throw error
    }
  }

  get pid(): string {
    return this.#pid
  }

  get lost(): Error | undefined {
    return this.#lost
  }

  /** Asks for locks and does not wait: one answer each, in order. No two may have the same key, nor one that is held here exclusively. */
  async try(asking: readonly Asking[]): Promise<readonly (SessionLease | undefined)[]> {
    const keys = `{${asking.map(({ key }) => key).join(',')}}`
    const held = new Set([...this.leases.values()].map(({ key }) => key))
    try {
      const values = [keys, booleanArray(asking.map(({ shared }) => shared)), this.#xid]
      return this.#granted(asking, await this.#ask('try', values, asking))
    } catch (error) {
      if (this.#lost === undefined) await this.#giveBackExtra(asking, held)
      throw error
    }
  }

  /** Stands in the server's own queue. Answers when its turn has come; `cancelWait` of another session is the only other way out. */
  async wait(asking: Asking): Promise<SessionLease> {
    const held = new Set([...this.leases.values()].map(({ key }) => key))
    try {
      const row = await this.#ask('wait', [asking.key, String(asking.shared), this.#xid], [asking], 0)
      const [lease] = this.#granted([asking], row)
      return lease as SessionLease
    } catch (error) {
      // A cancel that comes just after the lock was got ends the statement, not the lock.
      if (this.#lost === undefined) await this.#giveBackExtra([asking], held)
      throw error
    }
  }

  /** Takes another session out of the queue. A connection that is merely closed would stand there until the server looks after it. */
  async cancelWait(of: Session): Promise<void> {
    await this.#connection.query(advisoryStatements.cancel, [of.#pid])
  }

  /** For each whether the server knew of it. If not, the connection is ended: what else it is believed to hold cannot be relied on either. */
  async unlock(leases: readonly SessionLease[]): Promise<boolean[]> {
    for (const { claimId } of leases) this.leases.delete(claimId)
    const keys = `{${leases.map(({ key }) => key).join(',')}}`
    let row: Row
    try {
      row = await this.#ask('unlock', [keys, booleanArray(leases.map(({ shared }) => shared))], [])
    } catch (error) {
      // The session has ended, and the leases with it. Without an answer in time it may go on at the server's side, which is not known.
      if (this.#lost !== undefined && !isTimeout(error)) return leases.map(() => false)
      // Some of them may be held on, by nobody who knows of it.
      this.#inDoubt.push(...leases)
      this.#destroy(storeErrorFrom(error))
      throw error
    }
    const released = parseBooleans(row['released'] as string)
    if (!released.every(Boolean)) {
      this.#destroy(new StoreError('the server did not know of a lock that this connection was granted'))
    }
    return released
  }

  /** Resolves if the connection, and with it every lock on it, is still there. */
  async prove(): Promise<void> {
    await this.#ask('still', [], [])
  }

  async locks(keys: readonly string[] | undefined): Promise<readonly Row[]> {
    const text = `${writeBoard(this.#entries([]), this.#room)}${advisoryStatements.locks}`
    return this.#connection.query(text, [keys === undefined ? null : `{${keys.join(',')}}`])
  }

  /** Every lock on it is given back, by the end of the connection. Nobody is told. */
  async end(): Promise<void> {
    this.#lost ??= new StoreError('the connection was closed')
    // A process that waits for this must not end in the middle of it.
    this.#connection.keepAlive(true)
    const ending = this.#close()
    this.leases.clear()
    await ending
  }

  /** On a connection that goes on: exactly what was done by this session. */
  undo(): string {
    const published = this.#xid === '0' ? '' : unpublishing(this.#xid)
    return `${unlocking([...this.leases.values(), ...this.#inDoubt])}${published}${this.#undoOpening}`
  }

  /** Behind a pooler the server's side goes on, and need not be reset. */
  async #close(): Promise<void> {
    if (this.#isPooled) await Promise.race([this.#unlockAll(), sleep(UNLOCK_ALL_MS, undefined, { ref: false })])
    await this.#connection.end()
  }

  async #unlockAll(): Promise<void> {
    for (let tries = 0; tries < PROOFS; tries += 1) {
      const rows = await this.#connection.query(advisoryStatements.unlock_all, [this.#pid]).catch(() => undefined)
      if (rows === undefined || rows.length > 0) return
    }
  }

  lose(cause: Error): void {
    if (this.#lost !== undefined) return
    this.#lost = cause
    this.#onLost(this, cause)
    this.leases.clear()
  }

  #destroy(cause: Error): void {
    void this.#close().catch(() => {})
    this.lose(cause)
  }

  #granted(asking: readonly Asking[], row: Row): (SessionLease | undefined)[] {
    const got = parseBooleans(row['got'] as string)
    if (row['xid'] !== null) this.#xid = row['xid'] as string
    const fencingToken = Number(row['token'])
    const acquiredAtMs = Number(row['acquired_at'])
    return asking.map((claim, index) => {
      if (!got[index]) return undefined
      const lease = { ...claim, fencingToken, acquiredAtMs }
      this.leases.set(claim.claimId, lease)
      return lease
    })
  }

  /** A statement behind this connection's board. Whatever leaves the connection in doubt ends it. */
  async #ask(
    name: 'try' | 'wait' | 'unlock' | 'still',
    values: readonly string[],
    asking: readonly Asking[],
    timeoutMs?: number,
  ): Promise<Row> {
    if (this.#lost !== undefined) throw storeErrorFrom(this.#lost)
    const board = writeBoard(this.#entries(asking), this.#room)
    try {
      const [row] = await this.#connection.query(`${board}${execution(name, this.#word, values)}`, undefined, timeoutMs)
      if (row?.['pid'] === this.#pid) return row
      throw new UnsupportedError(POOLER)
    } catch (error) {
      // This session has prepared it: whoever does not know of it is another one.
      if (sqlState(error) === '26000' || error instanceof UnsupportedError) {
        const pooler = new UnsupportedError(POOLER)
        this.#destroy(pooler)
        throw pooler
      }
      // 57P..: the server says that it is ending the session.
      if (sqlState(error)?.startsWith('57P') ?? true) this.#destroy(storeErrorFrom(error))
      throw error
    }
  }

  #entries(asking: readonly Asking[]): BoardEntry[] {
    return [...asking, ...[...this.leases.values()].reverse()]
  }

  /** A statement that fails in its middle has got some of its locks: they belong to the session, no rollback gives them back. */
  async #giveBackExtra(asking: readonly Asking[], held: ReadonlySet<string>): Promise<void> {
    try {
      const mine = new Set((await this.#connection.query(advisoryStatements.mine)).map((row) => row['key']))
      const extra = asking.filter(({ key }) => mine.has(key))
      // One more of a shared lock that is held anyway cannot be told from none.
      if (extra.some(({ key }) => held.has(key))) throw new StoreError('it is not known which locks were got')
      const values = [`{${extra.map(({ key }) => key).join(',')}}`, booleanArray(extra.map(({ shared }) => shared))]
      if (extra.length > 0) await this.#connection.query(advisoryStatements.unlock, values)
    } catch (error) {
      this.#inDoubt.push(...asking.filter(({ key }) => !held.has(key)))
      this.#destroy(storeErrorFrom(error))
    }
  }
}

interface Opened {
  readonly identity: Row
  readonly word: string
  /** Something stands in between, which was proved to keep the session for us alone. */
  readonly isPooled: boolean
  readonly undoOpening: string
}

const isTimeout = (error: unknown): boolean =>
  error instanceof StoreError || (error instanceof Error && error.message === 'Query read timeout')

/** Prepared once for each session: with a board in front of it, hardly a text is sent twice, and planning would take longer than the locks. */
const PREPARED = ['try', 'wait', 'unlock', 'still'] as const
const preparation = (word: string): string =>
  PREPARED.map((name) => `PREPARE holdfast_${name}_${word} AS ${advisoryStatements[name]};`).join('\n')

const deallocation = (word: string): string => PREPARED.map((name) => `DEALLOCATE holdfast_${name}_${word};`).join('\n')

const literal = (text: string): string => `'${text.replaceAll("'", "''")}'`

/** `before`: what the settings of a session were, as JSON. */
const restoring = (before: string): string =>
  `SELECT set_config(key, value, false) FROM json_each_text(${literal(before)});\n`

const unlocking = (locks: readonly Asking[]): string =>
  locks
    .map(({ key, shared }) => `SELECT pg_advisory_unlock${shared ? '_shared' : ''}(${literal(key)}::bigint);\n`)
    .join('')

const unpublishing = (xid: string): string =>
  `SELECT pg_advisory_unlock_shared((x >> 32)::integer, ((x << 32) >> 32)::integer) FROM (SELECT ${literal(xid)}::bigint) AS last (x);\n`

function unlessElsewhere(error: unknown): never {
  throw sqlState(error) === '26000' ? new UnsupportedError(POOLER) : error
}

/** Values are lists of numbers and truth values, so nothing in them can be taken for SQL. */
function execution(name: (typeof PREPARED)[number], word: string, values: readonly string[]): string {
  for (const value of values) assert(/^[-0-9a-z,{}]*$/.test(value), `not a list of numbers: ${value}`)
  return `EXECUTE holdfast_${name}_${word}${values.length === 0 ? '' : `(${values.map((value) => `'${value}'`).join(', ')})`}`
}

/**
 * A pooler in transaction mode gives the next transaction of anybody the connection that just took our lock: two clients would hold one lock. While our
 * connection is open and idle, nobody else may be able to get hold of the server's side of it, and we must always reach the same one. Other traffic through
 * the pooler may hide that for a moment, so it is looked at several times.
 */
async function proveSession(
  connections: PostgresConnections,
  own: DedicatedConnection,
  { pid }: Row,
  word: string,
  rounds: number,
): Promise<void> {
  const witnesses = await Promise.all([1, 2].map(() => connections.dedicate({ onEnd: () => {} })))
  const see = async (connection: DedicatedConnection) => (await connection.query(advisoryStatements.witness))[0]
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
    for (const witness of witnesses) await witness.end().catch(() => {})
  }
}

const PROOFS = 6
const PAUSE_MS = 8
const UNLOCK_ALL_MS = 1_000

const POOLER =
  'advisory locks need a session of the server, but a pooler in transaction mode stands in between (PgBouncer): each statement may reach another ' +
  'session, and two clients would hold one lock. Connect to PostgreSQL itself, use a pool in session mode, or the postgres driver'
