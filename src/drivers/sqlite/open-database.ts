import { StoreError } from '../../core/errors.ts'
import type { SqliteDatabase, Statement } from './client.ts'
import { storeErrorFrom } from './errors.ts'
import { OpenFiles } from './open-files.ts'
import { type StatementName, statements } from './statements.ts'
import { IN_MEMORY } from './url.ts'

/**
 * Where a connection comes from: a path, which is opened again when it leads to another file, or a database that the
 * caller has opened.
 */
export type DatabaseSource = OpenedByPath | { readonly passedIn: SqliteDatabase }

export interface OpenedByPath {
  /** As the caller wrote it, with its links. */
  readonly path: string
  open(): Promise<SqliteDatabase>
}

/** An open database and its prepared statements. */
export class OpenDatabase {
  /** The path of the file itself, without links. */
  readonly path: string
  readonly passedIn: boolean
  readonly #database: SqliteDatabase
  readonly #asked: string
  readonly #statements: Record<keyof Statement, Map<StatementName, Statement>> = {
    all: new Map(),
    get: new Map(),
    run: new Map(),
  }
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

  /**
   * Prepared once for each of its methods: libsql ignores the values that it is given in a `get` after an `all` of the
   * same prepared statement, and reads the rows of another lock.
   */
  statement(name: StatementName, method: keyof Statement): Statement {
    const known = this.#statements[method].get(name)
    if (known !== undefined) return known
    const prepared = this.#database.prepare(statements[name]) as Statement
    this.#statements[method].set(name, prepared)
    return prepared
  }

  forgetStatements(): void {
    for (const prepared of Object.values(this.#statements)) prepared.clear()
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
        if (!String(rollbackError).includes('no transaction'))
          throw new AggregateError([error, rollbackError], String(error))
      }
      throw error
    }
  }

  /**
   * SQLite waits for a lock by blocking the thread. A connection that we opened never does. For a connection of the
   * caller, that is switched off for a moment and then restored.
   */
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
      // The reason may be temporary, such as a second link. Opening the file again reports it.
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

const timeoutOf = (row: unknown): unknown => (row as { timeout?: number }).timeout
