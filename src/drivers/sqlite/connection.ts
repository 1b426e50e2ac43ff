import { ClosedError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { type Turns, turnsOf } from '../../core/time/turns.ts'
import { MovedError } from './file.ts'
import { type DatabaseSource, type OpenDatabase, openAndPrepare, type StatementName } from './open-database.ts'
import { Patience, type Wait } from './patience.ts'

/** One connection: its statements and its transactions. It opens the file again when the path leads to another one. */
export class SqliteConnection {
  /** Called after the path led to another file than before, and that file was opened. */
  onReopened = (): void => {}
  readonly #source: DatabaseSource
  readonly #clock: Clock
  readonly #patience: Patience
  #path: string
  /** Undefined after it was closed because the file had moved, until the path is opened again. */
  #opened: OpenDatabase | undefined
  #reopening: Promise<void> | undefined
  #closed = false
  readonly #turns: Turns
  /** Transactions that wait for the next turn of the event loop, in the order of the calls. */
  readonly #queue: (() => void)[] = []

  static async open(source: DatabaseSource, clock: Clock): Promise<SqliteConnection> {
    return new SqliteConnection(source, clock, await openAndPrepare(source, clock))
  }

  private constructor(source: DatabaseSource, clock: Clock, opened: OpenDatabase) {
    this.#source = source
    this.#clock = clock
    this.#patience = new Patience(clock)
    this.#turns = turnsOf(clock)
    this.#path = opened.path
    this.#opened = opened
  }

  /** The path of the file itself, without links. */
  get path(): string {
    return this.#path
  }

  all(name: StatementName, ...values: (string | number | null)[]): unknown[] {
    return this.#current.statement(name, 'all').all(...values)
  }

  /** The first row, or undefined. */
  get(name: StatementName, ...values: (string | number | null)[]): unknown {
    return this.#current.statement(name, 'get').get(...values)
  }

  /** Returns how many rows were changed. */
  run(name: StatementName, ...values: (string | number | null)[]): number {
    return Number(this.#current.statement(name, 'run').run(...values).changes)
  }

  /**
   * Runs one transaction that has the write lock from its beginning. While another process has that lock, it tries
   * again without blocking the event loop, as `wait` says. `work` may run more than once; all runs but the last are
   * rolled back.
   */
  write<T>(work: () => T, wait?: Wait): Promise<T> {
    return this.#inOrder(() => this.#inTransaction('BEGIN IMMEDIATE', work, wait))
  }

  /** Runs one transaction, so that all reads see the same state. */
  read<T>(work: () => T): Promise<T> {
    return this.#inOrder(() => this.#inTransaction('BEGIN', work))
  }

  /** Changes with every commit of another connection. Reading it takes a few microseconds. */
  dataVersion(): number {
    const row = this.get('data_version') as { data_version: number } | undefined
    return row?.data_version ?? 0
  }

  /** The monotonic clock of the machine, which all of its processes share. Whole milliseconds. */
  monotonicMs(): number {
    return Math.floor(this.#clock.now().monotonicMs)
  }

  /** Throws if other processes no longer see what is written here. */
  assertCurrent(): void {
    this.#current.assertCurrent()
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#opened?.close()
  }

  get #current(): OpenDatabase {
    if (this.#closed) throw new ClosedError('the sqlite driver is closed')
    if (this.#opened === undefined) throw new MovedError(this.#path)
    return this.#opened
  }

  /** A transaction blocks the event loop. Many at once would delay timers and sockets, so they take turns. */
  #inOrder<T>(run: () => Promise<T>): Promise<T> {
    if (this.#queue.length === 0 && !this.#turnIsDue) return run()
    return new Promise((resolve) => {
      this.#queue.push(() => resolve(run()))
      if (this.#queue.length === 1) this.#turns.next(this.#runQueue)
    })
  }

  readonly #runQueue = (): void => {
    do this.#queue.shift()?.()
    while (this.#queue.length > 0 && !this.#turnIsDue)
    if (this.#queue.length > 0) this.#turns.next(this.#runQueue)
  }

  get #turnIsDue(): boolean {
    return this.#turns.owed(this.#clock.now().monotonicMs)
  }

  async #inTransaction<T>(begin: string, work: () => T, wait?: Wait): Promise<T> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#patience.untilFree(this.path, () => this.#current.transaction(begin, work), wait)
      } catch (error) {
        const canReopen = error instanceof MovedError && this.#source.path !== undefined
        if (!canReopen || tries === MAX_REOPENINGS) throw error
        this.#reopening ??= this.#reopen().finally(() => {
          this.#reopening = undefined
        })
        await this.#reopening
      }
    }
  }

  async #reopen(): Promise<void> {
    // Before the new one is opened, because connections of one process share an open index, even a removed one.
    this.#opened?.close()
    this.#opened = undefined
    const opened = await openAndPrepare(this.#source, this.#clock)
    if (this.#closed) {
      opened.close()
      return
    }
    this.#path = opened.path
    this.#opened = opened
    this.onReopened()
  }
}

const MAX_REOPENINGS = 3
