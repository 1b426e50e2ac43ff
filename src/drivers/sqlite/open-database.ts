import { StoreError } from '../../core/errors.ts'
import type { SqliteDatabase, Statement } from './client.ts'
import { storeErrorFrom } from './errors.ts'
import { OpenFiles } from './open-files.ts'
import { type StatementName, statements } from './statements.ts'
import { IN_MEMORY } from './url.ts'

/**
 * Where a connection comes from: a path that we open, and open again when it leads to another file, or a database that
 * the caller has open.
 */
export type DatabaseSource = OpenedByPath | { readonly passedIn: SqliteDatabase }

export interface OpenedByPath {
  /** As it was asked for, with its links. */
  readonly path: string
  open(): Promise<SqliteDatabase>
}

/** An open database and its prepared statements. */
export class OpenDatabase {
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

const timeoutOf = (row: unknown): unknown => (row as { timeout?: number }).timeout
