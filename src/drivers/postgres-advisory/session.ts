import { StoreError, UnsupportedError } from '../../core/errors.ts'
import { sleep } from '../../core/time/native-time.ts'
import { booleanArray, parseNumbers } from '../postgres/arrays.ts'
import type { PostgresConnections, Row } from '../postgres/connections.ts'
import { sqlState, storeErrorFrom } from '../postgres/errors.ts'
import { type BoardEntry, writeBoard } from './activity-comment.ts'
import { type OpenedSession, openPinned } from './session-opening.ts'
import { POOLER, PROOFS } from './session-proof.ts'
import { type Asking, advisoryStatements, execution, type PreparedName, unlocking, unpublishing } from './statements.ts'

export type { Asking } from './statements.ts'

/** A lease on an advisory lock, as the process that has it keeps it. */
export interface SessionLease extends BoardEntry {
  readonly key: string
  readonly fencingToken: number
  readonly acquiredAtMs: number
}

/** One pinned connection and the locks on it. Its end is the loss of all of them, at once. */
export class Session {
  readonly leases: ReadonlyMap<string, SessionLease>
  readonly #leases = new Map<string, SessionLease>()
  /** Of each key that is held here, by how many, and whether in shared mode. */
  readonly #keys = new Map<string, { count: number; readonly shared: boolean }>()
  readonly #opened: OpenedSession
  /** Perhaps held, perhaps not: a statement about them failed. */
  readonly #inDoubt: Asking[] = []
  #xid = '0'
  #lost: Error | undefined
  readonly #onLost: (session: Session, cause: Error) => void

  private constructor(opened: OpenedSession, onLost: (session: Session, cause: Error) => void) {
    this.leases = this.#leases
    this.#opened = opened
    this.#onLost = onLost
    opened.connection.keepAlive(false)
  }

  /** Rejects with `UnsupportedError` when the connection is not one session of the server. */
  static async open(
    connections: PostgresConnections,
    onLost: (session: Session, cause: Error) => void,
  ): Promise<Session> {
    let session: Session | undefined
    const opened = await openPinned(connections, {
      onEnd: (cause) => session?.lose(cause),
      undo: () => session?.undo(),
    })
    session = new Session(opened, onLost)
    return session
  }

  get pid(): string {
    return this.#opened.pid
  }

  get lost(): Error | undefined {
    return this.#lost
  }

  /**
   * Whether the server would let this session have the lock although another lease on it excludes that: it counts, and
   * asks nobody.
   */
  excludes({ key, shared }: Asking): boolean {
    const held = this.#keys.get(key)
    return held !== undefined && !(held.shared && shared)
  }

  /**
   * Asks for locks and does not wait: one answer each, in order. No two may have the same key, nor one that this
   * session `excludes`.
   */
  async try(asking: readonly Asking[]): Promise<readonly (SessionLease | undefined)[]> {
    const [first, ...others] = asking
    if (first === undefined) return []
    if (others.length === 0) return [await this.#take(first, false)]
    const keys = `{${asking.map(({ key }) => key).join(',')}}`
    const values = [keys, booleanArray(asking.map(({ shared }) => shared)), this.#xid]
    const row = await this.#askFor(asking, 'take_list', values)
    refuseLate(row)
    const got = new Set(parseNumbers(row['got'] as string | null))
    return asking.map((each, index) => (got.has(index + 1) ? this.#granted(each, row) : undefined))
  }

  /**
   * Stands in the server's own queue. Answers when its turn has come; `cancelWait` of another session is the only other
   * way out.
   */
  async wait(asking: Asking): Promise<SessionLease> {
    return (await this.#take(asking, true)) as SessionLease
  }

  /**
   * Takes another session out of the queue. A connection that is merely closed would stand there until the server looks
   * after it.
   */
  async cancelWait(of: Session): Promise<void> {
    await this.#opened.connection.query(advisoryStatements.cancel, [of.pid])
  }

  /**
   * For each whether the server knew of it. If not, the connection is ended: what else it is believed to hold cannot be
   * relied on either.
   */
  async unlock(leases: readonly SessionLease[]): Promise<boolean[]> {
    for (const lease of leases) this.#forget(lease)
    let released: boolean[]
    try {
      released = await this.#unlock(leases)
    } catch (error) {
      // Nothing was done, and they are held on.
      if (isInFailedTransaction(error)) {
        for (const lease of leases) this.#remember(lease)
        throw error
      }
      // The session has ended, and the leases with it. Without an answer in time it may go on at the server's side,
      // which is not known.
      if (this.#lost !== undefined && !isTimeout(error)) return leases.map(() => false)
      // Some of them may be held on, by nobody who knows of it.
      for (const lease of leases) this.#inDoubt.push(lease)
      this.#destroy(storeErrorFrom(error))
      throw error
    }
    if (!released.every(Boolean)) {
      this.#destroy(new StoreError('the server did not know of a lock that this connection was granted'))
    }
    return released
  }

  /** Resolves if the connection, and with it every lock on it, is still there. */
  async prove(): Promise<void> {
    await this.#ask('still', [])
  }

  async locks(keys: readonly string[] | undefined): Promise<readonly Row[]> {
    const { connection, word } = this.#opened
    const text = execution('locks', word, [keys === undefined ? null : `{${keys.join(',')}}`])
    return connection.query(`${this.#board([])}${text}`)
  }

  /** Every lock on it is given back, by the end of the connection. Nobody is told. */
  async end(): Promise<void> {
    this.#lost ??= new StoreError('the connection was closed')
    // A process that waits for this must not end in the middle of it.
    this.#opened.connection.keepAlive(true)
    const ending = this.#close()
    this.#clear()
    await ending
  }

  /** On a connection that goes on: exactly what was done by this session. */
  undo(): string {
    const published = this.#xid === '0' ? '' : unpublishing(this.#xid)
    return `${unlocking([...this.#leases.values(), ...this.#inDoubt])}${published}${this.#opened.undoOpening}`
  }

  lose(cause: Error): void {
    if (this.#lost !== undefined) return
    this.#lost = cause
    this.#onLost(this, cause)
    this.#clear()
  }

  async #take(asking: Asking, waits: boolean): Promise<SessionLease | undefined> {
    const values = [asking.key, String(asking.shared), String(waits), this.#xid]
    const row = await this.#askFor([asking], 'take', values, waits ? 0 : undefined)
    refuseLate(row)
    return row['xid'] === null ? undefined : this.#granted(asking, row)
  }

  async #unlock(leases: readonly SessionLease[]): Promise<boolean[]> {
    const [first, ...others] = leases
    if (first !== undefined && others.length === 0) {
      return [(await this.#ask('unlock', [first.key, String(first.shared)]))['released'] === true]
    }
    const keys = `{${leases.map(({ key }) => key).join(',')}}`
    const row = await this.#ask('unlock_list', [keys, booleanArray(leases.map(({ shared }) => shared))])
    const released = new Set(parseNumbers(row['released'] as string | null))
    return leases.map((_, index) => released.has(index + 1))
  }

  #granted(asking: Asking, row: Row): SessionLease {
    this.#xid = row['xid'] as string
    const lease = { ...asking, fencingToken: Number(row['token']), acquiredAtMs: Number(row['acquired_at']) }
    this.#remember(lease)
    return lease
  }

  #remember(lease: SessionLease): void {
    this.#leases.set(lease.claimId, lease)
    const held = this.#keys.get(lease.key)
    if (held === undefined) this.#keys.set(lease.key, { count: 1, shared: lease.shared })
    else held.count += 1
  }

  #forget({ claimId, key }: SessionLease): void {
    this.#leases.delete(claimId)
    const held = this.#keys.get(key)
    if (held === undefined) return
    held.count -= 1
    if (held.count === 0) this.#keys.delete(key)
  }

  #clear(): void {
    this.#leases.clear()
    this.#keys.clear()
  }

  /** Asks for locks. When that fails, what the statement has got of them is given back, or the session is ended. */
  async #askFor(
    asking: readonly Asking[],
    name: 'take' | 'take_list',
    values: readonly string[],
    timeoutMs?: number,
  ): Promise<Row> {
    try {
      return await this.#ask(name, values, asking, timeoutMs)
    } catch (error) {
      // A cancel that comes just after a lock was got ends the statement, not the lock.
      if (this.#lost === undefined && !isInFailedTransaction(error)) await this.#giveBackExtra(asking)
      throw error
    }
  }

  /** A statement behind this connection's board. Whatever leaves the connection in doubt ends it. */
  async #ask(
    name: PreparedName,
    values: readonly string[],
    asking: readonly Asking[] = [],
    timeoutMs?: number,
  ): Promise<Row> {
    if (this.#lost !== undefined) throw storeErrorFrom(this.#lost)
    const { connection, word, pid } = this.#opened
    try {
      const text = `${this.#board(asking)}${execution(name, word, values)}`
      const [row] = await connection.query(text, undefined, timeoutMs)
      if (row?.['pid'] === pid) return row
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

  #board(asking: readonly Asking[]): string {
    const { room } = this.#opened
    return writeBoard(this.#leases.size === 0 ? asking : [...asking, ...[...this.#leases.values()].reverse()], room)
  }

  /**
   * A statement that fails in its middle has got some of its locks: they belong to the session, no rollback gives them
   * back.
   */
  async #giveBackExtra(asking: readonly Asking[]): Promise<void> {
    const { connection, word } = this.#opened
    const isHeld = ({ key }: Asking): boolean => this.#keys.has(key)
    try {
      const mine = new Set((await connection.query(advisoryStatements.mine)).map((row) => row['key']))
      const extra = asking.filter(({ key }) => mine.has(key))
      // One more of a shared lock that is held anyway cannot be told from none.
      if (extra.some(isHeld)) throw new StoreError('it is not known which locks were got')
      const values = [`{${extra.map(({ key }) => key).join(',')}}`, booleanArray(extra.map(({ shared }) => shared))]
      if (extra.length > 0) await connection.query(execution('unlock_list', word, values))
    } catch (error) {
      for (const each of asking) if (!isHeld(each)) this.#inDoubt.push(each)
      this.#destroy(storeErrorFrom(error))
    }
  }

  #destroy(cause: Error): void {
    // Its end is what counts, and the socket's own end stands behind it.
    void this.#close().catch(() => {})
    this.lose(cause)
  }

  /** Behind a pooler the server's side goes on, and need not be reset. */
  async #close(): Promise<void> {
    const { connection, isPooled } = this.#opened
    if (isPooled) await Promise.race([this.#unlockAll(), sleep(UNLOCK_ALL_MS, undefined, { ref: false })])
    await connection.end()
  }

  async #unlockAll(): Promise<void> {
    const { connection, pid } = this.#opened
    for (let tries = 0; tries < PROOFS; tries += 1) {
      const rows = await connection.query(advisoryStatements.unlock_all, [pid]).catch(() => undefined)
      if (rows === undefined || rows.length > 0) return
    }
  }
}

/**
 * On a connection of the caller's: a transaction id that was drawn before the lock was got may be lower than one of a
 * holder in between.
 */
function refuseLate(row: Row): void {
  if (row['too_late'] !== true) return
  throw new StoreError(
    'this connection is inside a transaction of yours that has written something, or taken a lock before: the fencing token of a lock taken ' +
      'there could be lower than one that was given before. End the transaction first, give the driver a pool, or use lockInTransaction ' +
      'on another connection',
    { retryable: false },
  )
}

/** The caller's transaction has failed: the server does nothing until it has ended. */
const isInFailedTransaction = (error: unknown): boolean => sqlState(error) === '25P02'

const isTimeout = (error: unknown): boolean =>
  error instanceof StoreError || (error instanceof Error && error.message === 'Query read timeout')

const UNLOCK_ALL_MS = 1_000
