/** All that the drivers need of a client. Every call has a deadline, whatever the socket does. */
export interface PostgresConnections {
  /** Which database, as errors name it: a URL without its login. */
  readonly place: string
  /** One statement on any connection. */
  query(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** The same for one that the server refuses inside a transaction of the caller's. */
  call(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** Whether another try may come to another connection. */
  readonly several: boolean
  /** A connection that nobody else uses, outside the caller's pool where the client allows it. */
  dedicate(events: DedicatedEvents): Promise<DedicatedConnection>
  /** Ends what was opened here; never what the caller passed in. */
  close(): Promise<void>
}

export type Row = Readonly<Record<string, unknown>>

export interface DedicatedEvents {
  onNotification?(channel: string, payload: string): void
  /** Once, when the connection has ended, unless `end` was called before. */
  onEnd(cause: Error): void
  /** Where the connection is the caller's own and goes on: SQL that undoes what was done on it, run by `end`. */
  undo?(): string
}

export interface DedicatedConnection {
  /** `timeoutMs` 0: as long as it takes. */
  query(text: string, values?: readonly (string | null)[], timeoutMs?: number): Promise<readonly Row[]>
  /** A statement that is sent often: prepared where the connection is ours. */
  queryOften(text: string, values: readonly (string | null)[]): Promise<readonly Row[]>
  /** Several statements at once, without values. */
  script(text: string): Promise<void>
  /** Whom the connection was told at its start that it talks to. Behind a pooler that is nobody of the server's. */
  readonly serverPid: string | undefined
  /** The caller's own connection, which goes on after `end`. */
  readonly isCallers: boolean
  /** The process may end although this connection is open, or may not. */
  keepAlive(wanted: boolean): void
  end(): Promise<void>
}
