/** The few methods of the package pg that the drivers call, so that no version of its types is required. */

/** A `Pool` of pg. */
export interface PgPool {
  query(config: PgQuery): Promise<PgResult>
  connect(): Promise<PgPoolClient>
  end(): Promise<void>
  on(event: 'error', listener: (error: Error) => void): unknown
  readonly totalCount: number
}

/** A `Client` of pg that the caller has connected. */
export interface PgClient {
  query(config: PgQuery): Promise<PgResult>
  on(event: 'notification', listener: (message: PgNotification) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  on(event: 'end', listener: () => void): unknown
  removeListener(event: string, listener: (event: Error & PgNotification) => void): unknown
  getTransactionStatus?(): string | null
}

export interface PgPoolClient extends PgClient {
  release(destroy?: boolean | Error): void
}

export interface PgQuery {
  text: string
  values?: (string | null)[]
  query_timeout?: number
  name?: string
}

export interface PgResult {
  readonly rows: readonly unknown[]
}

export interface PgNotification {
  readonly channel: string
  readonly payload?: string | undefined
}

/** The socket of a pg client, which has no method of its own for what is done with it. */
export interface WithSocket {
  readonly connection?: { readonly stream?: { ref?(): void; unref?(): void; destroy?(): void } }
}
