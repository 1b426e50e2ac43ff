import type { Clock } from '../../core/clock.ts'
import { ClosedError, StoreError } from '../../core/errors.ts'
import { namedStatements, readProtocol } from './sql-file.ts'
import type { SqliteDatabase, SqliteStatement } from './sqlite-client.ts'
import { isBusy, storeErrorFrom } from './sqlite-errors.ts'

/** `HOLD`, in the file's header: how we know a file of ours from somebody else's. */
const APPLICATION_ID = 0x484f4c44
const SCHEMA_VERSION = 1
/** How long to try for the write lock before the store counts as unavailable. A transaction of ours takes well under a millisecond. */
export const BUSY_BOUND_MS = 2_000

export type StatementName = Parameters<SqliteConnection['all']>[0]

/** One connection: its statements, its transactions, and what goes wrong with them. */
export class SqliteConnection {
  readonly path: string
  readonly #database: SqliteDatabase
  readonly #clock: Clock
  readonly #statements = new Map<string, SqliteStatement>()
  #closed = false

  constructor(database: SqliteDatabase, clock: Clock) {
    this.#database = database
    this.#clock = clock
    const [main] = database.prepare('PRAGMA database_list').all() as { file: string }[]
    this.path = main?.file ?? ''
    if (this.path === '') throw new StoreError('a SQLite database in memory excludes nobody; use memory: for that')
  }

  /** Makes a file ours, or finds that it is. `foreignTables`: the caller handed us a database of its own, with tables of its own. */
  async prepare({ foreignTables }: { foreignTables: boolean }): Promise<void> {
    this.#guard(() => {
      // Only while opening: it blocks the thread, and another process may be just making the same file.
      this.#database.exec(`PRAGMA busy_timeout = ${BUSY_BOUND_MS}`)
      if (!foreignTables) this.#assertOurs()
      this.#database.exec('PRAGMA journal_mode = WAL')
      // No flush for every commit: a machine that crashes takes all holders of its locks with it.
      if (!foreignTables) this.#database.exec('PRAGMA synchronous = NORMAL')
    })
    await this.write(() => {
      if (!foreignTables) this.#assertOurs()
      this.#database.exec(readProtocol('sqlite/schema.sql'))
      if (!foreignTables) this.#database.exec(`PRAGMA application_id = ${APPLICATION_ID}`)
    })
    this.#guard(() => this.#database.exec('PRAGMA busy_timeout = 0'))
  }

  all(name: keyof typeof statements, ...values: (string | number | null)[]): unknown[] {
    return this.#statement(name).all(...values)
  }

  /** How many rows it changed. */
  run(name: keyof typeof statements, ...values: (string | number | null)[]): number {
    return Number(this.#statement(name).run(...values).changes)
  }

  /**
   * One transaction, with the write lock from its beginning. While another process has that lock, it is tried for again without
   * blocking the event loop; nothing of `work` has run then.
   */
  async write<T>(work: () => T): Promise<T> {
    const untilMs = this.#clock.now().monotonicMs + BUSY_BOUND_MS
    for (let tries = 1; ; tries += 1) {
      this.#assertOpen()
      try {
        this.#database.exec('BEGIN IMMEDIATE')
      } catch (error) {
        if (!isBusy(error) || this.#clock.now().monotonicMs >= untilMs) throw storeErrorFrom(error, this.path)
        await this.#pause(tries)
        continue
      }
      return this.#guard(() => this.#finish(work))
    }
  }

  read<T>(work: () => T): T {
    this.#assertOpen()
    return this.#guard(work)
  }

  /** Changes with every commit of another connection, and costs a few microseconds to ask. */
  dataVersion(): number {
    const [row] = this.all('data_version') as { data_version: number }[]
    return row?.data_version ?? 0
  }

  close(closeDatabase: boolean): void {
    if (this.#closed) return
    this.#closed = true
    this.#statements.clear()
    if (closeDatabase) this.#guard(() => this.#database.close())
  }

  #finish<T>(work: () => T): T {
    try {
      const result = work()
      this.#database.exec('COMMIT')
      return result
    } catch (error) {
      // A failed COMMIT can leave the transaction open; some errors (a full disk) have already rolled it back.
      try {
        this.#database.exec('ROLLBACK')
      } catch (rollbackError) {
        if (!String(rollbackError).includes('no transaction'))
          throw new AggregateError([error, rollbackError], String(error))
      }
      throw error
    }
  }

  #assertOurs(): void {
    const [{ application_id: id } = { application_id: 0 }] = this.#pragma('application_id')
    const [{ user_version: version } = { user_version: 0 }] = this.#pragma('user_version')
    const tables = this.#database.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").all()
    if (id !== APPLICATION_ID && (id !== 0 || tables.length > 0)) {
      throw new StoreError(`the file ${this.path} is a database of another program; choose another path for the locks`)
    }
    if ((version ?? 0) > SCHEMA_VERSION) {
      throw new StoreError(
        `the lock file ${this.path} has format ${version}, and this version of Holdfast knows ${SCHEMA_VERSION}; upgrade it`,
      )
    }
  }

  #pragma(name: string): Record<string, number>[] {
    return this.#database.prepare(`PRAGMA ${name}`).all() as Record<string, number>[]
  }

  #statement(name: keyof typeof statements): SqliteStatement {
    const known = this.#statements.get(name)
    if (known !== undefined) return known
    const prepared = this.#database.prepare(statements[name])
    this.#statements.set(name, prepared)
    return prepared
  }

  #guard<T>(work: () => T): T {
    try {
      return work()
    } catch (error) {
      throw storeErrorFrom(error, this.path)
    }
  }

  /** At first only until the event loop has come round: a transaction of another process is over by then, most of the time. */
  #pause(tries: number): Promise<void> {
    if (tries <= SPINS) return new Promise((resolve) => setImmediate(resolve))
    return new Promise((resolve) => {
      this.#clock.setTimer(resolve, 1 + (tries % 3), true)
    })
  }

  #assertOpen(): void {
    if (this.#closed) throw new ClosedError('the sqlite driver is closed')
  }
}

const SPINS = 16

const statements = {
  ...namedStatements<
    | 'now'
    | 'sweep_leases'
    | 'sweep_waiters'
    | 'sweep_rates'
    | 'leases_of'
    | 'waiters_of'
    | 'waiter'
    | 'count_ahead'
    | 'next_token'
    | 'last_token'
    | 'restore_counter'
    | 'insert_lease'
    | 'insert_waiter'
    | 'keep_place'
    | 'delete_waiter'
    | 'set_end'
    | 'renew'
    | 'release'
    | 'withdraw'
    | 'rate'
    | 'set_rate'
    | 'names'
  >(readProtocol('sqlite/statements.sql')),
  data_version: 'PRAGMA data_version',
}
