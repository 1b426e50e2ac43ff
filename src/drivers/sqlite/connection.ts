import { ClosedError, StoreError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { setImmediate } from '../../core/time/native-time.ts'
import { type Turns, turnsOf } from '../../core/time/turns.ts'
import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { SqliteDatabase, Statement } from './client.ts'
import { isBusy, storeErrorFrom } from './errors.ts'
import { refusePlace } from './file.ts'
import { MovedError, OpenFiles } from './open-files.ts'

/** `HOLD`, in the file's header: how we know a file of ours from somebody else's. */
const APPLICATION_ID = 0x484f4c44
const FORMAT = 3
/**
 * How long to try for the write lock before the store counts as unavailable. A transaction of ours takes well under a
 * millisecond.
 */
export const BUSY_BOUND_MS = 2_000

/**
 * Where a connection comes from: a path that we open, and open again when it leads to another file, or a database that
 * the caller has open.
 */
export type DatabaseSource = OpenedByPath | { readonly passedIn: SqliteDatabase }

interface OpenedByPath {
  /** As it was asked for, with its links. */
  readonly path: string
  open(): Promise<SqliteDatabase>
}

/** One connection: its statements, its transactions, and what goes wrong with them. */
export class SqliteConnection {
  /** Told when the path led to another file than the one that was opened, and that one has been opened. */
  onReopened: (() => void) | undefined
  readonly #source: DatabaseSource
  readonly #clock: Clock
  #path: string
  /** Undefined when it was closed because it had moved, and could not be opened again yet. */
  #opened: Opened | undefined
  #reopening: Promise<void> | undefined
  #closed = false
  readonly #turns: Turns
  /** Transactions that wait for the event loop's next turn, in the order in which they were asked for. */
  readonly #line: (() => void)[] = []

  static async open(source: DatabaseSource, clock: Clock): Promise<SqliteConnection> {
    return new SqliteConnection(source, clock, await openAndPrepare(source, clock))
  }

  private constructor(source: DatabaseSource, clock: Clock, opened: Opened) {
    this.#source = source
    this.#clock = clock
    this.#turns = turnsOf(clock)
    this.#path = opened.path
    this.#opened = opened
  }

  /** Of the file itself, without links. */
  get path(): string {
    return this.#path
  }

  all(name: StatementName, ...values: (string | number | null)[]): unknown[] {
    return this.#current.statement(name).all(...values)
  }

  /** The first row, or undefined. */
  get(name: StatementName, ...values: (string | number | null)[]): unknown {
    return this.#current.statement(name).get(...values)
  }

  /** How many rows it changed. */
  run(name: StatementName, ...values: (string | number | null)[]): number {
    return Number(this.#current.statement(name).run(...values).changes)
  }

  /**
   * One transaction, with the write lock from its beginning. While another process has that lock, it is tried for again
   * without blocking the event loop. `work` may run more than once; all but the last are rolled back.
   */
  write<T>(work: () => T, busyUntilMs?: number): Promise<T> {
    return this.#inLine(() => this.#inTransaction('BEGIN IMMEDIATE', work, busyUntilMs))
  }

  /** Until when a list that begins now may try for the write lock. */
  busyUntilMs(): number {
    return this.#clock.now().monotonicMs + BUSY_BOUND_MS
  }

  /** One transaction, so that all of it is seen as it was at one moment. */
  read<T>(work: () => T): Promise<T> {
    return this.#inLine(() => this.#inTransaction('BEGIN', work))
  }

  /** Changes with every commit of another connection, and costs a few microseconds to ask. */
  dataVersion(): number {
    const row = this.get('data_version') as { data_version: number } | undefined
    return row?.data_version ?? 0
  }

  /** Throws if others no longer see what is written here. */
  assertCurrent(): void {
    this.#current.assertCurrent()
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#opened?.forgetStatements()
    if ('open' in this.#source) this.#opened?.close()
  }

  get #current(): Opened {
    if (this.#closed) throw new ClosedError('the sqlite driver is closed')
    if (this.#opened === undefined) throw new MovedError(this.#path)
    return this.#opened
  }

  /**
   * A transaction runs without a pause. Many that are asked for at once would keep timers and sockets from being
   * served.
   */
  #inLine<T>(run: () => Promise<T>): Promise<T> {
    if (this.#line.length === 0 && !this.#owesTurn) return run()
    return new Promise((resolve) => {
      this.#line.push(() => resolve(run()))
      if (this.#line.length === 1) this.#turns.next(this.#goOn)
    })
  }

  readonly #goOn = (): void => {
    do this.#line.shift()?.()
    while (this.#line.length > 0 && !this.#owesTurn)
    if (this.#line.length > 0) this.#turns.next(this.#goOn)
  }

  get #owesTurn(): boolean {
    return this.#turns.owed(this.#clock.now().monotonicMs)
  }

  async #inTransaction<T>(begin: string, work: () => T, busyUntilMs?: number): Promise<T> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await untilFree(this.#clock, this.path, () => this.#current.transaction(begin, work), busyUntilMs)
      } catch (error) {
        if (!(error instanceof MovedError) || 'passedIn' in this.#source || tries === MAX_REOPENINGS) throw error
        await this.#reopen(this.#source)
      }
    }
  }

  #reopen(source: OpenedByPath): Promise<void> {
    this.#reopening ??= this.#openAnew(source).finally(() => {
      this.#reopening = undefined
    })
    return this.#reopening
  }

  async #openAnew(source: OpenedByPath): Promise<void> {
    if (this.#opened?.isCurrent()) return
    // Before the new one is opened: connections of one process share the index that is open, even if it was removed.
    this.#opened?.close()
    this.#opened = undefined
    const opened = await openAndPrepare(source, this.#clock)
    if (this.#closed) {
      opened.close()
      return
    }
    this.#path = opened.path
    this.#opened = opened
    this.onReopened?.()
  }
}

const IN_MEMORY = 'a SQLite database in memory excludes nobody; use memory: for that'

/** An open database and its prepared statements. */
class Opened {
  /** Of the file itself, without links. */
  readonly path: string
  readonly passedIn: boolean
  readonly #database: SqliteDatabase
  readonly #asked: string
  readonly #statements = new Map<string, Statement>()
  #files: OpenFiles | undefined

  constructor(database: SqliteDatabase, source: DatabaseSource) {
    this.#database = database
    this.passedIn = 'passedIn' in source
    const [main] = this.rows('PRAGMA database_list')
    this.path = (main?.['file'] ?? '') as string
    if (this.path === '') throw new StoreError(IN_MEMORY, { retryable: false })
    this.#asked = 'passedIn' in source ? this.path : source.path
  }

  exec(sql: string): void {
    this.#database.exec(sql)
  }

  rows(sql: string): Record<string, unknown>[] {
    return this.#database.prepare(sql).all() as Record<string, unknown>[]
  }

  statement(name: StatementName): Statement {
    const known = this.#statements.get(name)
    if (known !== undefined) return known
    const prepared = this.#database.prepare(statements[name]) as Statement
    this.#statements.set(name, prepared)
    return prepared
  }

  forgetStatements(): void {
    this.#statements.clear()
  }

  transaction<T>(begin: string, work: () => T): T {
    this.withoutBlocking(() => this.exec(begin))
    try {
      const result = work()
      // At the end: what is granted here is granted in the files that everybody else reads.
      this.assertCurrent()
      this.exec('COMMIT')
      return result
    } catch (error) {
      // A failed COMMIT can leave the transaction open; some errors (a full disk) have already rolled it back.
      try {
        this.exec('ROLLBACK')
      } catch (rollbackError) {
        if (!String(rollbackError).includes('no transaction'))
          throw new AggregateError([error, rollbackError], String(error))
      }
      throw error
    }
  }

  /**
   * SQLite waits for a lock by blocking the thread. Our own connection never does; a caller's gets its setting back.
   */
  withoutBlocking<T>(work: () => T): T {
    const timeoutMs = this.passedIn ? Number(this.statement('busy_timeout').all().map(timeoutOf)[0]) : 0
    if (timeoutMs === 0) return work()
    this.exec('PRAGMA busy_timeout = 0')
    try {
      return work()
    } finally {
      this.exec(`PRAGMA busy_timeout = ${timeoutMs}`)
    }
  }

  /** From now on, what is written has to be seen by everybody else. */
  watchFiles(): void {
    const [row] = this.rows('PRAGMA locking_mode')
    const hasIndex = row?.['locking_mode'] !== 'exclusive'
    this.#files = new OpenFiles(this.path, { asked: this.#asked, hasIndex })
  }

  assertCurrent(): void {
    this.#files?.assertCurrent()
  }

  isCurrent(): boolean {
    try {
      this.assertCurrent()
      return true
    } catch {
      // It may be a reason that passes, such as a second link; opening it again says so.
      return false
    }
  }

  close(): void {
    this.forgetStatements()
    try {
      this.#database.close()
    } catch (error) {
      throw storeErrorFrom(error, this.path)
    }
  }
}

async function openAndPrepare(source: DatabaseSource, clock: Clock): Promise<Opened> {
  const passedIn = 'passedIn' in source
  const database = passedIn ? source.passedIn : await source.open()
  try {
    const opened = new Opened(database, source)
    refusePlace(opened.path)
    await prepare(opened, clock)
    return opened
  } catch (error) {
    if (!passedIn) database.close()
    throw error
  }
}

/**
 * No flush for every commit: a machine that crashes takes all holders of its locks with it. And a write-ahead log that
 * a long transaction of another program has made grow is cut to its usual size again.
 */
const SETTINGS = `PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = ${4 * 1_024 * 1_024}`

/**
 * Makes a file ours, or finds that it is. A database that was passed in has tables and settings of its own, which stay
 * as they are.
 */
async function prepare(opened: Opened, clock: Clock): Promise<void> {
  const isReady = await untilFree(clock, opened.path, () => {
    if (!opened.passedIn) opened.exec('PRAGMA busy_timeout = 0')
    // In one transaction, or tables that another process is just making would look like another program's.
    const ready = opened.transaction('BEGIN', () => formatOf(opened) === FORMAT)
    const [mode] = opened.withoutBlocking(() => opened.rows('PRAGMA journal_mode = WAL'))
    if (mode?.['journal_mode'] !== 'wal') {
      throw new StoreError(
        `the database ${opened.path} cannot be put into WAL mode: it stays in mode ${mode?.['journal_mode']}, as in the middle of a transaction`,
      )
    }
    if (!opened.passedIn) opened.exec(SETTINGS)
    // The first read in this mode opens the files beside the database.
    opened.rows(statements.format_table)
    opened.watchFiles()
    return ready
  })
  if (isReady) return
  await untilFree(clock, opened.path, () =>
    opened.transaction('BEGIN IMMEDIATE', () => {
      // Somebody else may have been quicker, with a newer version.
      const version = formatOf(opened)
      if (version === FORMAT) return
      if (version === 1) opened.exec(readProtocol('sqlite/upgrade-2.sql'))
      if (version === 2) opened.exec(readProtocol('sqlite/upgrade-3.sql'))
      opened.exec(readProtocol('sqlite/schema.sql'))
      if (!opened.passedIn) opened.exec(`PRAGMA application_id = ${APPLICATION_ID}`)
    }),
  )
}

/** The version of the tables; undefined if there are none and they may be made. Throws for what must not be touched. */
function formatOf(opened: Opened): number | undefined {
  const { path, passedIn } = opened
  if (opened.rows(statements.format_table).length > 0) {
    const version = Number(opened.rows(statements.format)[0]?.['version'] ?? 0)
    if (version <= FORMAT) return version
    throw new StoreError(
      `the lock file ${path} has format ${version}, and this version of Holdfast knows ${FORMAT}; upgrade Holdfast`,
      { retryable: false },
    )
  }
  const [{ application_id: id } = { application_id: 0 }] = opened.rows('PRAGMA application_id')
  const tables = opened.rows("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1")
  if (!passedIn && id !== APPLICATION_ID && (id !== 0 || tables.length > 0)) {
    throw new StoreError(`the file ${path} is a database of another program; choose another path for the locks`, {
      retryable: false,
    })
  }
  return undefined
}

/** Tries until nobody else has the lock that it needs; `attempt` has changed nothing when it fails for that reason. */
async function untilFree<T>(
  clock: Clock,
  path: string,
  attempt: () => T,
  untilMs = clock.now().monotonicMs + BUSY_BOUND_MS,
): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return attempt()
    } catch (error) {
      if (!isBusy(error) || clock.now().monotonicMs >= untilMs) throw storeErrorFrom(error, path)
      await pause(clock, tries)
    }
  }
}

/**
 * At first only until the event loop has come round: a transaction of another process is over by then, most of the
 * time.
 */
function pause(clock: Clock, tries: number): Promise<void> {
  if (tries <= SPINS) return new Promise((resolve) => setImmediate(resolve))
  return new Promise((resolve) => {
    clock.setTimer(resolve, 1 + (tries % 3), true)
  })
}

const timeoutOf = (row: unknown): unknown => (row as { timeout?: number }).timeout

const SPINS = 16
const MAX_REOPENINGS = 3

export type StatementName = keyof typeof statements

const statements = {
  ...namedStatements<
    | 'format_table'
    | 'format'
    | 'now'
    | 'sweep_leases'
    | 'sweep_waiters'
    | 'sweep_rates'
    | 'lease'
    | 'held'
    | 'holder'
    | 'next_end'
    | 'leases_from'
    | 'newer_lease'
    | 'waiters_from'
    | 'waiters_of'
    | 'front_of'
    | 'ahead_of'
    | 'clamp_leases'
    | 'clamp_waiters'
    | 'next_token'
    | 'restore_counter'
    | 'insert_lease'
    | 'insert_waiter'
    | 'keep_place'
    | 'delete_waiter'
    | 'set_end'
    | 'renew'
    | 'release'
    | 'withdraw'
    | 'end_leases'
    | 'rate'
    | 'set_rate'
    | 'delete_rate'
    | 'names'
  >(readProtocol('sqlite/statements.sql')),
  data_version: 'PRAGMA data_version',
  busy_timeout: 'PRAGMA busy_timeout',
}
