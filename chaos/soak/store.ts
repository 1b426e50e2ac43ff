import type { Draw } from '../draw.ts'

/** What the store has at one moment. */
export interface StoreSample {
  /** Redis: used_memory. PostgreSQL: the size of all tables of Holdfast, with their indexes. */
  bytes: number
  /** Private memory of all processes of the server. Linux only. */
  processBytes: number
  /** Keys, or rows that are not dead. */
  entries: number
  /** Rows that a vacuum has yet to remove. */
  dead: number
  connections: number
  /** The size of each table. */
  tables?: Record<string, number>
}

/** The server of a soak. */
export interface SoakStore extends AsyncDisposable {
  readonly url: string
  readonly version: string
  readonly pid: number
  sample(): Promise<StoreSample>
  /** How many connections of clients are open at the server. */
  connections(): Promise<number>
  /** Ends connections of the client. Returns which ones. */
  cut(draw: Draw): Promise<string>
  /**
   * Call it when everything has been released or has expired, and all connections are closed. Returns what is there
   * although it must not be, and what stays.
   */
  left(): Promise<Left>
}

export interface Left {
  /** Leases, waiters, keys and rows that must not be there. */
  wrong: string[]
  /** What is there, and may be. */
  stays: string[]
}
