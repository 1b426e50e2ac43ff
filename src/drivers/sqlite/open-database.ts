import { StoreError } from '../../core/errors.ts'
import { isA, messageOf } from '../../core/foreign-errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { SqliteDatabase, Statement } from './client.ts'
import { isBusy, isInTransaction, storeErrorFrom } from './errors.ts'
import { refusePlace } from './file.ts'
import { copyOf, markCopy, SecondCopyError } from './one-copy.ts'
import { watchFiles } from './open-files.ts'
import { Patience } from './patience.ts'
import { IN_MEMORY } from './url.ts'

/** Where a connection comes from. */
export interface DatabaseSource {
  /** As the caller wrote it, with its links. Absent for a database that the caller has opened. */
  readonly path?: string
  /** Called again when the path leads to another file. */
  open(): Promise<SqliteDatabase>
}

/** An open database and its prepared statements. */
export class OpenDatabase {
  /** The path of the file itself, without links. */
  readonly path: string
  readonly passedIn: boolean
  readonly #database: SqliteDatabase
  readonly #asked: string | undefined
  readonly #statements: Record<keyof Statement, Map<StatementName, Statement>> = {
    all: new Map(),
    get: new Map(),
    run: new Map(),
  }
  #unmark: (() => void) | undefined
  /** Throws if other processes no longer see what is written here. */
  assertCurrent = (): void => {}

  constructor(database: SqliteDatabase, asked: string | undefined) {
    this.#database = database
    this.#asked = asked
    this.passedIn = asked === undefined
    const [main] = this.rows('PRAGMA database_list')
    this.path = (main?.['file'] ?? '') as string
    if (this.path === '') throw new StoreError(IN_MEMORY, { retryable: false })
  }

  exec(sql: string): void {
    this.#database.exec(sql)
  }

  rows(sql: string): Record<string, unknown>[] {
    return this.#prepare(sql).all() as Record<string, unknown>[]
  }

  /** Once for each method: libsql ignores the values of a `get` after an `all` of one prepared statement. */
  statement(name: StatementName, method: keyof Statement): Statement {
    const known = this.#statements[method].get(name)
    if (known !== undefined) return known
    const prepared = this.#prepare(statements[name])
    this.#statements[method].set(name, prepared)
    return prepared
  }

  /** A database that was passed in may be set to read integers as BigInt. Ours all are safe integers. */
  #prepare(sql: string): Statement {
    const prepared = this.#database.prepare(sql) as Statement & IntegerSettings
    prepared.safeIntegers?.(false)
    prepared.setReadBigInts?.(false)
    return prepared
  }

  transaction<T>(begin: string, work: () => T): T {
    this.withoutBlocking(() => this.exec(begin))
    try {
      const result = work()
      // Just before the commit, so that a grant is written to the files that every other process reads.
      this.assertCurrent()
      this.exec('COMMIT')
      return result
    } catch (error) {
      // A failed COMMIT can leave the transaction open. Some errors, such as a full disk, have already rolled it back.
      try {
        this.exec('ROLLBACK')
      } catch (rollbackError) {
        if (!messageOf(rollbackError).includes('no transaction'))
          throw new AggregateError([error, rollbackError], messageOf(error))
      }
      throw error
    }
  }

  /** SQLite waits by blocking the thread. On a connection of the caller, that is switched off for a moment. */
  withoutBlocking<T>(work: () => T): T {
    const timeoutMs = this.passedIn ? Number(this.statement('busy_timeout', 'all').all().map(timeoutOf)[0]) : 0
    if (timeoutMs === 0) return work()
    this.exec('PRAGMA busy_timeout = 0')
    try {
      return work()
    } finally {
      this.exec(`PRAGMA busy_timeout = ${timeoutMs}`)
    }
  }

  /** From now on, what is written must be seen by every other process. */
  watchFiles(clock: Clock): void {
    const [row] = this.rows('PRAGMA locking_mode')
    if (row?.['locking_mode'] === 'exclusive') {
      throw new StoreError(`the database ${this.path} is in exclusive locking mode, which keeps other processes out`, {
        retryable: false,
      })
    }
    this.assertCurrent = watchFiles(this.path, this.#asked ?? this.path, clock)
    this.#unmark ??= markCopy(
      this.path,
      copyOf((sql) => this.rows(sql)),
    )
  }

  /** Never closes what the caller passed in. */
  close(): void {
    for (const prepared of Object.values(this.#statements)) prepared.clear()
    this.#unmark?.()
    try {
      if (!this.passedIn) this.#database.close()
    } catch (error) {
      throw storeErrorFrom(error, this.path)
    }
  }
}

/** Of libsql and better-sqlite3, and of `node:sqlite`. */
interface IntegerSettings {
  safeIntegers?(on: boolean): unknown
  setReadBigInts?(on: boolean): unknown
}

const timeoutOf = (row: unknown): unknown => (row as { timeout?: number }).timeout

/** Opens a database, and makes its tables if there are none. Throws a `StoreError` for a file that must not be used. */
export async function openAndPrepare(source: DatabaseSource, clock: Clock): Promise<OpenDatabase> {
  const database = await source.open()
  try {
    const opened = new OpenDatabase(database, source.path)
    refusePlace(opened.path)
    await prepare(opened, clock)
    return opened
  } catch (error) {
    if (isA(error, SecondCopyError)) keptOpen.push(database)
    else if (source.path !== undefined) database.close()
    throw error
  }
}

/** To close them would drop the locks of the other copy, and might remove the log that it writes to. */
const keptOpen: SqliteDatabase[] = []

/**
 * No flush for every commit: when a machine crashes, all holders of its locks die with it. And a write-ahead log that
 * grew because of a long transaction of another program is cut to its usual size again.
 */
const SETTINGS = `PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = ${4 * 1_024 * 1_024}`

/** Creates our tables, or finds them. The tables and settings of a database passed in are not changed. */
async function prepare(opened: OpenDatabase, clock: Clock): Promise<void> {
  const open = (): boolean => {
    if (!opened.passedIn) opened.exec('PRAGMA busy_timeout = 0')
    // In one transaction: otherwise tables that another process is creating would look like another program's.
    const ready = opened.transaction('BEGIN', () => isPrepared(opened))
    const [mode] = opened.withoutBlocking(() => opened.rows('PRAGMA journal_mode = WAL'))
    if (mode?.['journal_mode'] !== 'wal') {
      throw new StoreError(
        `the database ${opened.path} cannot be put into WAL mode: it stays in mode ${mode?.['journal_mode']}. ` +
          'Is a transaction open on it?',
      )
    }
    if (!opened.passedIn) opened.exec(SETTINGS)
    // The first read in this mode opens the files beside the database.
    opened.rows(statements.format_table)
    opened.watchFiles(clock)
    return ready
  }
  const mayPass = (error: unknown): boolean => isBusy(error) || (!opened.passedIn && isInTransaction(error))
  const patience = new Patience(clock)
  const isReady = await patience.untilFree(opened.path, open, { mayPass })
  if (isReady) return
  await patience.untilFree(opened.path, () =>
    opened.transaction('BEGIN IMMEDIATE', () => {
      // Another process may have been faster.
      if (isPrepared(opened)) return
      opened.exec(readProtocol('sqlite/schema.sql'))
      if (!opened.passedIn) opened.exec(`PRAGMA application_id = ${APPLICATION_ID}`)
    }),
  )
}

/** Whether the tables exist. False if they may be created. Throws if the file is not ours, or has another format. */
function isPrepared(opened: OpenDatabase): boolean {
  const { path, passedIn } = opened
  if (opened.rows(statements.format_table).length > 0) {
    const version = Number(opened.rows(statements.format)[0]?.['version'] ?? 0)
    if (version === FORMAT) return true
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
  return false
}

/** `HOLD`, in the file's header. It tells a file of ours from a database of another program. */
const APPLICATION_ID = 0x484f4c44
const FORMAT = 1

/** The statements of `protocol/sqlite/statements.sql`, and two pragmas. */
const statements = {
  ...namedStatements<SchemaName | LeaseName | QueueName | ForcedName | RateName>(readProtocol('sqlite/statements.sql')),
  data_version: 'PRAGMA data_version',
  busy_timeout: 'PRAGMA busy_timeout',
}

export type StatementName = keyof typeof statements
type SchemaName = 'format_table' | 'format' | 'now' | 'names' | 'next_token' | 'restore_counter'
type LeaseName = 'lease' | 'held' | 'holder' | 'next_end' | 'leases_from' | 'newer_lease' | LeaseChange
type LeaseChange = 'insert_lease' | 'set_end' | 'renew' | 'release' | 'withdraw' | 'sweep_leases' | AheadName
type AheadName = 'note_ahead' | 'end_ahead' | 'sweep_ahead'
type QueueName = 'waiters_from' | 'waiters_of' | 'front_of' | 'ahead_of' | QueueChange
type QueueChange = 'insert_waiter' | 'keep_place' | 'delete_waiter' | 'clamp_waiters' | 'sweep_waiters'
type ForcedName = 'end_leases' | 'note_forced_releases' | 'trim_forced_releases' | 'forced_releases_since'
type RateName = 'rate' | 'set_rate' | 'delete_rate' | 'rates_from' | 'sweep_rates'
