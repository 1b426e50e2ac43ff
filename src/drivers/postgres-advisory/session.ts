import { StoreError, UnsupportedError } from '../../core/errors.ts'
import { isA, messageOf } from '../../core/foreign-errors.ts'
import { settlesWithin } from '../../core/time/abort.ts'
import { systemClock } from '../../core/time/clock.ts'
import { booleanArray, parseNumbers } from '../postgres/arrays.ts'
import type { PostgresConnections, Row } from '../postgres/connections.ts'
import { sqlState, storeErrorFrom } from '../postgres/errors.ts'
import { writeActivityComment } from './activity-comment.ts'
import { HeldLocks, type LockRequest, type SessionLease } from './held-locks.ts'
import { type OpenedSession, openSession, POOLER_REASON, PROOF_ROUNDS, proveExclusion } from './open-session.ts'
import { advisoryStatements, execution, type PreparedName, unlocking, unpublishing, waiting } from './statements.ts'

/** A pinned connection and the locks on it. When it ends, all of them are lost at once. */
export class Session {
  readonly #held = new HeldLocks()
  readonly #opened: OpenedSession
  /** Locks that the session may or may not have, because a statement about them failed. */
  readonly #inDoubt = new Set<LockRequest>()
  /** The transaction id of the last grant, which is published for `inspect`. */
  #xid = '0'
  #lost: Error | undefined
  /** The key that it waited for last, if it was granted. */
  waitedFor: string | undefined
  readonly #onLost: (session: Session, cause: Error) => void

  private constructor(opened: OpenedSession, onLost: (session: Session, cause: Error) => void) {
    this.#opened = opened
    this.#onLost = onLost
    opened.connection.keepAlive(false)
  }

  /** Rejects with `UnsupportedError` if the connection is not one session of the server. */
  static async open(
    connections: PostgresConnections,
    onLost: (session: Session, cause: Error) => void,
  ): Promise<Session> {
    let session: Session | undefined
    const opened = await openSession(connections, {
      onEnd: (cause) => session?.lose(cause),
      undo: () => session?.undo(),
    })
    session = new Session(opened, onLost)
    return session
  }

  /** Rejects with `UnsupportedError` if locks of this session do not exclude the other one. */
  proveExclusion(other: Session): Promise<void> {
    return proveExclusion(this.#opened.connection, other.#opened.connection)
  }

  get pid(): string {
    return this.#opened.pid
  }

  get leases(): ReadonlyMap<string, SessionLease> {
    return this.#held.leases
  }

  get lost(): Error | undefined {
    return this.#lost
  }

  /** Requests locks without waiting. Returns one answer each, in order. */
  async try(requests: readonly LockRequest[]): Promise<(SessionLease | undefined)[]> {
    const answers: (SessionLease | undefined)[] = requests.map(() => undefined)
    let left = [...requests.entries()]
    while (left.length > 0) {
      // A statement can have a key only once. So further requests for the same key come later.
      const round = new Map<string, [index: number, request: LockRequest]>()
      const later: typeof left = []
      for (const each of left) {
        const [index, request] = each
        const own = this.leases.get(request.claimId)
        if (own !== undefined) answers[index] = own
        else if (round.has(request.key)) later.push(each)
        // The server grants a session the same lock any number of times. So exclusion within it is decided here.
        else if (!this.#held.excludes(request)) round.set(request.key, each)
      }
      const tried = [...round.values()]
      const leases = await this.#tryOnce(tried.map(([, request]) => request))
      for (const [at, [index]] of tried.entries()) answers[index] = leases[at]
      left = later
    }
    return answers
  }

  async #tryOnce(requests: readonly LockRequest[]): Promise<readonly (SessionLease | undefined)[]> {
    const [first, ...others] = requests
    if (first === undefined) return []
    if (others.length === 0) return [await this.#take(first, false)]
    const row = await this.#request(requests, () => this.#send('take_list', [...listOf(requests), this.#xid]))
    refuseLate(row)
    const got = new Set(parseNumbers(row['got'] as string | null))
    return requests.map((each, index) => (got.has(index + 1) ? this.#granted(each, row) : undefined))
  }

  /** Waits in the server's own queue. Ends only with the grant, or when another session calls `cancelWait`. */
  async wait(request: LockRequest): Promise<SessionLease> {
    // A lock that this session has waited for changes hands often: one statement is faster. The server logs it as an
    // error if that takes seconds.
    const isBusy = this.waitedFor === request.key
    this.waitedFor = undefined
    const beganMs = systemClock.now().monotonicMs
    const soon = isBusy ? await this.#take(request, true).catch(rethrowUnlessSlow) : undefined
    const lease = soon ?? (await this.#waitInSlices(request, systemClock.now().monotonicMs - beganMs))
    this.waitedFor = request.key
    return lease
  }

  async #waitInSlices(request: LockRequest, waitedMs: number): Promise<SessionLease> {
    const first = waiting(request, waitedMs)
    const values = [request.key, String(request.shared), null, this.#xid]
    const row = await this.#request([request], () => this.#send('take', values, { first }))
    return this.#granted(request, row)
  }

  /** Removes another session from the queue. Closing its connection would leave it there until the server notices. */
  async cancelWait(of: Session): Promise<void> {
    await this.#send('cancel', [of.pid])
  }

  /** Returns whether the server had each lock. If not, all locks are in doubt, and the connection is ended. */
  async unlock(leases: readonly SessionLease[]): Promise<boolean[]> {
    for (const lease of leases) this.#held.remove(lease)
    let released: boolean[]
    try {
      released = await this.#doubting(leases, () => this.#unlock(leases))
    } catch (error) {
      // Nothing was done, and they are still held.
      if (isInFailedTransaction(error)) {
        for (const lease of leases) this.#held.add(lease)
        throw error
      }
      // The session has ended, and the leases with it. After a timeout that is not known: it may live on at the server.
      if (this.#lost !== undefined && !isTimeout(error)) return leases.map(() => false)
      // The server may still hold some of them, although this process does not count them any more.
      for (const lease of leases) this.#inDoubt.add(lease)
      this.#destroy(storeErrorFrom(error))
      throw error
    }
    if (!released.every(Boolean)) {
      this.#destroy(new StoreError(UNLOCKED))
    }
    return released
  }

  /**
   * Resolves if the connection, and with it every lock on it, still exists. True: some client wants a lease ended, so
   * look with `releaseRequests`. A connection of the caller may be inside a transaction, and never says so. There the
   * application can have released the locks, for example all of the session. Then they are lost.
   */
  async prove(): Promise<boolean> {
    if (!this.#opened.connection.isCallers) return (await this.#send('prove', []))['raised'] === true
    const { lacks } = await this.#send('lacks', listOf([...this.leases.values()]))
    if (lacks === true) this.#destroy(new StoreError(UNLOCKED))
    return false
  }

  locks(keys: readonly string[] | undefined): Promise<readonly Row[]> {
    const values = [keys === undefined ? null : `{${keys.join(',')}}`]
    return this.#query(execution('locks', this.#opened.sessionId, values))
  }

  /** By how much its tokens are ahead. */
  get lead(): number {
    return this.#opened.lead
  }

  /** Which leases other clients want ended, and the role that asks. An error does not end the session. */
  async releaseRequests(): Promise<ReadonlyMap<string, string>> {
    const rows = await this.#query(advisoryStatements.release_requests)
    return new Map(rows.map((row) => [String(row['key']), String(row['role'])]))
  }

  /** Releases every lock by ending the connection, without a call of `onLost`. */
  async end(): Promise<void> {
    this.#lost ??= new StoreError('the connection was closed')
    // A process that awaits this must not exit before it is done.
    this.#opened.connection.keepAlive(true)
    const closing = this.#close()
    this.#held.clear()
    await closing
  }

  /** SQL that undoes exactly what this session did, for a connection that stays open. */
  undo(): string {
    const published = this.#xid === '0' ? '' : unpublishing(this.#xid)
    return `${unlocking([...this.leases.values(), ...this.#inDoubt])}${published}${this.#opened.undoOpening}`
  }

  lose(cause: Error): void {
    if (this.#lost !== undefined) return
    this.#lost = cause
    this.#onLost(this, cause)
    this.#held.clear()
  }

  async #take(request: LockRequest, waits: boolean): Promise<SessionLease | undefined> {
    const values = [request.key, String(request.shared), String(waits), this.#xid]
    const row = await this.#request([request], () => this.#send('take', values, waits ? { timeoutMs: 0 } : undefined))
    refuseLate(row)
    return row['xid'] === null ? undefined : this.#granted(request, row)
  }

  async #unlock(leases: readonly SessionLease[]): Promise<boolean[]> {
    const [first, ...others] = leases
    if (first !== undefined && others.length === 0) {
      return [(await this.#send('unlock', [first.key, String(first.shared)]))['released'] === true]
    }
    const row = await this.#send('unlock_list', listOf(leases))
    const released = new Set(parseNumbers(row['released'] as string | null))
    return leases.map((_, index) => released.has(index + 1))
  }

  #granted(request: LockRequest, row: Row): SessionLease {
    this.#xid = row['xid'] as string
    const lease = { ...request, fencingToken: Number(row['token']), acquiredAtMs: Number(row['acquired_at']) }
    this.#held.add(lease)
    return lease
  }

  /** Requests locks. If that fails, the locks that the statement has taken are released, or the session is ended. */
  async #request(requests: readonly LockRequest[], statement: () => Promise<Row>): Promise<Row> {
    try {
      return await this.#doubting(requests, statement)
    } catch (error) {
      // A cancel that arrives just after a lock was taken ends the statement, but not the lock.
      if (this.#lost === undefined && !isInFailedTransaction(error)) await this.#releaseExtra(requests)
      throw error
    }
  }

  /** Locks are in doubt while a statement about them is in flight: if the session ends then, they are undone. */
  async #doubting<T>(locks: readonly LockRequest[], statement: () => Promise<T>): Promise<T> {
    for (const lock of locks) this.#inDoubt.add(lock)
    const forget = (): void => {
      if (this.#lost === undefined) for (const lock of locks) this.#inDoubt.delete(lock)
    }
    return statement().finally(forget)
  }

  /**
   * Sends a statement behind the activity comment. Every statement needs it: the server shows only the last one, and
   * without it others see none of the leases.
   *
   * Locks in doubt are listed, too. This statement may be shown after one that is in flight has taken its locks. Others
   * are shown only those that the server knows of.
   */
  #query(text: string, timeoutMs?: number): Promise<readonly Row[]> {
    const { connection, maxCommentBytes } = this.#opened
    const comment = writeActivityComment([...this.leases.values(), ...this.#inDoubt].reverse(), maxCommentBytes)
    return connection.query(`${comment}${text}`, undefined, timeoutMs)
  }
  /** An error that leaves the connection in doubt ends it. `first`: SQL that is sent before, and may take any time. */
  async #send(
    name: PreparedName,
    values: readonly (string | null)[],
    { timeoutMs, first }: { timeoutMs?: number | undefined; first?: string } = NO_TERMS,
  ): Promise<Row> {
    if (this.#lost !== undefined) throw storeErrorFrom(this.#lost)
    const { sessionId, pid } = this.#opened
    try {
      if (first !== undefined) await this.#query(first, 0)
      const [row] = await this.#query(execution(name, sessionId, values), timeoutMs)
      if (row?.['pid'] === pid) return row
    } catch (error) {
      // 57P..: the server is ending the session.
      if (sqlState(error)?.startsWith('57P') ?? true) this.#destroy(storeErrorFrom(error))
      // 26000: the statement is not prepared. This session has prepared it, so another one was reached.
      if (sqlState(error) !== '26000') throw error
    }
    throw this.#lostElsewhere()
  }

  #lostElsewhere(): Error {
    // Where there is no pooler, other code has discarded the statement, and the locks with it.
    const { isCallers } = this.#opened.connection
    const gone = isCallers ? new StoreError(UNLOCKED) : new UnsupportedError(POOLER_REASON)
    this.#destroy(gone)
    return gone
  }

  /** A statement that fails halfway has taken some of its locks. They are the session's, so no rollback ends them. */
  async #releaseExtra(requests: readonly LockRequest[]): Promise<void> {
    try {
      const own = new Set((await this.#query(advisoryStatements.own_locks)).map((row) => row['key']))
      const extra = requests.filter(({ key }) => own.has(key))
      // A second lock on a key that is held in shared mode cannot be told from none.
      if (extra.some((each) => this.#held.has(each))) throw new StoreError('it is not known which locks were taken')
      if (extra.length > 0) await this.#query(execution('unlock_list', this.#opened.sessionId, listOf(extra)))
    } catch (error) {
      for (const each of requests) if (!this.#held.has(each)) this.#inDoubt.add(each)
      this.#destroy(storeErrorFrom(error))
    }
  }

  #destroy(cause: Error): void {
    // The loss counts from now. If closing fails, the end of the socket still ends the session.
    void this.#close().catch(() => {})
    this.lose(cause)
  }

  /** Behind a pooler the server's side stays open, and the pooler may not reset it. So its locks are released first. */
  async #close(): Promise<void> {
    const { connection, isPooled } = this.#opened
    if (isPooled) await settlesWithin(systemClock, MAX_UNLOCK_MS, this.#unlockAll())
    await connection.end()
  }

  async #unlockAll(): Promise<void> {
    const { connection, pid } = this.#opened
    for (let tries = 0; tries < PROOF_ROUNDS; tries += 1) {
      const rows = await connection.query(advisoryStatements.unlock_all, [pid]).catch(() => undefined)
      if (rows === undefined || rows.length > 0) return
    }
  }
}

/** The first parameters of `take_list` and `unlock_list`. */
const listOf = (locks: readonly LockRequest[]): string[] => [
  `{${locks.map(({ key }) => key).join(',')}}`,
  booleanArray(locks.map(({ shared }) => shared)),
]

/** On a connection of the caller: an id drawn before the lock was taken may be below that of another holder. */
function refuseLate(row: Row): void {
  if (row['too_late'] !== true) return
  throw new StoreError(
    'this connection is inside a transaction of yours that has written something, or taken a lock before: the ' +
      'fencing token of a lock taken there could be lower than one that was given before. End the transaction first, ' +
      'give the driver a pool, or use lockInTransaction on another connection',
    { retryable: false },
  )
}

/** The caller's transaction has failed. The server does nothing until it is ended. */
const isInFailedTransaction = (error: unknown): boolean => sqlState(error) === '25P02'

/** Another slice of the wait is due: nothing has failed. */
function rethrowUnlessSlow(error: unknown): undefined {
  if (sqlState(error) !== '55P03') throw error
}

const isTimeout = (error: unknown): boolean => isA(error, StoreError) || messageOf(error) === 'Query read timeout'

const UNLOCKED =
  'the connection no longer has a lock that it was granted: other code has released it there, for example with ' +
  'pg_advisory_unlock_all() or DISCARD ALL. Give the driver a connection or a pool of its own'

/** As a constant: most statements have none. */
const NO_TERMS = {}

const MAX_UNLOCK_MS = 1_000
