import { ClosedError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { type Turns, turnsOf } from '../../core/time/turns.ts'
import { MAX_BUSY_MS, untilFree } from './busy.ts'
import type { DatabaseSource, OpenDatabase, OpenedByPath } from './open-database.ts'
import { MovedError } from './open-files.ts'
import { openAndPrepare } from './prepare.ts'
import type { StatementName } from './statements.ts'

/** One connection: its statements, its transactions, and what goes wrong with them. */
export class SqliteConnection {
  /** Told when the path led to another file than the one that was opened, and that one has been opened. */
  onReopened: (() => void) | undefined
  readonly #source: DatabaseSource
  readonly #clock: Clock
  #path: string
  /** Undefined when it was closed because it had moved, and could not be opened again yet. */
  #opened: OpenDatabase | undefined
  #reopening: Promise<void> | undefined
  #closed = false
  readonly #turns: Turns
  /** Transactions that wait for the event loop's next turn, in the order in which they were asked for. */
  readonly #line: (() => void)[] = []

  static async open(source: DatabaseSource, clock: Clock): Promise<SqliteConnection> {
    return new SqliteConnection(source, clock, await openAndPrepare(source, clock))
  }

  private constructor(source: DatabaseSource, clock: Clock, opened: OpenDatabase) {
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
    return this.#clock.now().monotonicMs + MAX_BUSY_MS
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

  get #current(): OpenDatabase {
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

const MAX_REOPENINGS = 3
