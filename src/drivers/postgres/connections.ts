/** What the drivers need of a client. Every call has a deadline, even if the socket never answers. */
export interface PostgresConnections {
  /** The database, as errors name it: a URL without its login. */
  readonly place: string
  /** Sends one statement on any connection. */
  query(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** As `query`, for a statement that the server refuses inside a transaction of the caller. */
  call(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** Like `call`, for a renewal. It does not wait for what the caller does with its own client. */
  renew(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** Like `renew`, for a release. */
  release(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** Whether a call would begin at once. A caller's client that cannot tell does not have it. */
  isFree?(): boolean
  /** Whether a second try may get another connection. */
  readonly isPool: boolean
  /** A connection that nothing else uses, outside the caller's pool where the client allows it. */
  dedicate(events: DedicatedEvents): Promise<DedicatedConnection>
  /** Closes what was opened here, never what the caller passed in. */
  close(): Promise<void>
}

export type Row = Readonly<Record<string, unknown>>

export interface DedicatedEvents {
  onNotification?(channel: string, payload: string): void
  /** Called once when the connection has ended, unless `end` was called before. */
  onEnd(cause: Error): void
  /** SQL that `end` runs on a connection of the caller, which stays open, to undo what was done on it. */
  undo?(): string
}

export interface DedicatedConnection {
  /** A `timeoutMs` of 0 waits without a limit. */
  query(text: string, values?: readonly (string | null)[], timeoutMs?: number): Promise<readonly Row[]>
  /** Sends several statements at once, without values. */
  script(text: string): Promise<void>
  /** The process id that the server, or a pooler in between, sent at the start of the connection. */
  readonly serverPid: string | undefined
  /** Whether the connection is the caller's own and stays open after `end`. */
  readonly isCallers: boolean
  /** Whether this connection keeps the process alive. */
  keepAlive(wanted: boolean): void
  end(): Promise<void>
}

/** A queue of one worker: starts each piece of work when the one before it has settled, even if that one failed. */
export type SerialQueue = <T>(work: () => Promise<T>) => Promise<T>

/** Work that finds the queue empty starts at once, in the same turn of the event loop. */
export function createSerialQueue(): SerialQueue {
  let last: Promise<unknown> | undefined
  return (work) => {
    const turn = last === undefined ? work() : last.then(work, work)
    last = turn
    const leave = (): void => {
      if (last === turn) last = undefined
    }
    turn.then(leave, leave)
    return turn
  }
}

/** A half-open connection neither answers nor fails. After this time its query fails, and a pool drops it. */
export const QUERY_MS = 10_000
export const SCRIPT_MS = 120_000
