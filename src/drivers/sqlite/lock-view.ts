import type { LockShare } from '../../core/lock-share.ts'
import type { SqliteConnection } from './connection.ts'
import { type Front, frontOf, heldBeside, largestLimit, MAX_AHEAD, type Row, waitersOf } from './rows.ts'

/**
 * What one transaction has read about a lock. All claims of a list on one name, such as those of many waiters that
 * renew their places, share one read. The cost of a read does not grow with the number of leases or waiters.
 */
export class LockView {
  readonly #connection: SqliteConnection
  readonly #lockName: string
  readonly #nowMs: number
  #rows: readonly Row[] | undefined
  #most = 0
  #held: readonly LockShare[] | undefined
  #largest = 0
  #holder: Row | undefined
  #front: Front | undefined

  constructor(connection: SqliteConnection, lockName: string, nowMs: number) {
    this.#connection = connection
    this.#lockName = lockName
    this.#nowMs = nowMs
  }

  /** A claim was granted. */
  granted(): void {
    this.#rows = undefined
    this.#held = undefined
    this.#holder = undefined
    this.#front = undefined
  }

  /** A claim was added to the end of the queue. */
  joined(): void {
    if (this.#rows !== undefined && this.#rows.length < this.#most) this.#rows = undefined
    if (this.#front !== undefined && this.#front.waiters < MAX_AHEAD) this.#front = undefined
  }

  /** The first waiters of the queue, at most `most` of them. */
  waiters(most: number): readonly Row[] {
    if (this.#rows !== undefined && (most <= this.#most || this.#rows.length < this.#most))
      return this.#rows.slice(0, most)
    const rows = waitersOf(this.#connection, this.#lockName, this.#nowMs, most)
    if (rows.some((row) => row.expires_at_ms > this.#nowMs + row.wait_ms)) this.clamp()
    this.#rows = rows
    this.#most = most
    return rows
  }

  /** The leases that are held, combined into one, as far as they matter to these claims. */
  held(candidates: readonly LockShare[]): readonly LockShare[] {
    const largest = largestLimit(candidates)
    if (this.#held !== undefined && largest <= this.#largest) return this.#held
    const { held, isAhead } = heldBeside(this.#connection, this.#lockName, this.#nowMs, largest)
    if (isAhead) this.clamp()
    this.#held = held
    this.#largest = largest
    return held
  }

  /** One of the leases. */
  get holder(): Row | undefined {
    this.#holder ??= this.#connection.get('holder', this.#lockName, this.#nowMs) as Row | undefined
    return this.#holder
  }

  get front(): Front {
    this.#front ??= frontOf(this.#connection, this.#lockName, this.#nowMs)
    return this.#front
  }

  /**
   * Shortens rows that were written while the clock was ahead. They would last until the clock reaches that time again.
   * They end as if they had been written now, which is later than any client trusts them.
   */
  clamp(): void {
    this.#connection.run('clamp_leases', this.#nowMs, this.#lockName, this.#nowMs)
    this.#connection.run('clamp_waiters', this.#nowMs, this.#lockName, this.#nowMs)
  }
}

/** The views of one transaction. */
export class LockViews {
  readonly #connection: SqliteConnection
  readonly #views = new Map<string, LockView>()

  constructor(connection: SqliteConnection) {
    this.#connection = connection
  }

  of(lockName: string, nowMs: number): LockView {
    const known = this.#views.get(lockName) ?? new LockView(this.#connection, lockName, nowMs)
    this.#views.set(lockName, known)
    return known
  }
}
