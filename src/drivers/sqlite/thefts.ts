import type { LossListener } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { SqliteConnection } from './connection.ts'
import { storeErrorFrom } from './errors.ts'
import { readNow } from './rows.ts'

/** Reads which leases were ended by a claim that steals. While no other process writes, it reads one number. */
export class Thefts {
  readonly #connection: SqliteConnection
  #version: number | undefined
  #last = 0

  constructor(connection: SqliteConnection) {
    this.#connection = connection
    // Another file counts from the beginning.
    connection.onReopened.add(() => {
      this.#version = undefined
      this.#last = 0
    })
  }

  readonly look = async (listeners: ReadonlySet<LossListener>): Promise<void> => {
    for (const { id, claim_id: claimId, stolen_by: by } of this.#news()) {
      this.#last = id
      for (const listener of [...listeners]) listener.lost(claimId, new StoreError(`it was stolen by ${by}`))
    }
  }

  #news(): Theft[] {
    const connection = this.#connection
    try {
      // The number changes with commits of other connections. Core itself reports the thefts of this one.
      const version = connection.dataVersion()
      if (version === this.#version) return []
      const news = connection.all('stolen_since', this.#last, readNow(connection) - RECENT_MS) as Theft[]
      // Not before: a look that fails is repeated.
      this.#version = version
      return news
    } catch (error) {
      throw storeErrorFrom(error, connection.path)
    }
  }
}

interface Theft {
  readonly id: number
  readonly claim_id: string
  readonly stolen_by: string
}

/** A process begins to look when its leases are a second old. Older thefts concern none of them. */
const RECENT_MS = 10_000
