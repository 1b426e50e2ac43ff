/**
 * Keeps leases in one kind of store. This is the only interface between what a lock means and where it is stored.
 *
 * Every method takes a list and resolves with a list of the same length and order, so that all requests that a process
 * makes in one turn of its event loop cost one round trip. Waiting, batching, deadlines, the heartbeat, and the retries
 * after contention or an outage exist once, in `core/`.
 *
 * A driver must guarantee:
 * - The store's clock decides expiry. Only durations are sent to the store, never a client's time.
 * - A grant, its fencing token and its record in the store are one atomic step.
 * - An `Error` as an entry of an answer means that the outcome of that entry is unknown. A rejected call means the same
 *   for all of its entries. An unknown outcome must never be reported as a refusal or a loss.
 * - An error of a client library is wrapped in a `StoreError`, with a `cause` that holds no password.
 *
 * A driver never waits for a lock to become free, and never retries a claim because it was refused. It may repeat a
 * request, a bounded number of times or for a bounded time, if it failed for a transient reason other than contention.
 * The drivers of this package do so when
 * - another process has the write lock of the SQLite file, or the file was replaced;
 * - a Redis server does not have the script cached, a Cluster slot has moved, or the client reconnects;
 * - PostgreSQL has closed an idle connection, or a pooler does not know a prepared statement;
 * - another client has proposed a higher fencing token to the nodes of Redlock;
 * - the store refuses a list because of one entry: the entries are then sent separately.
 *
 * The caller's deadline for the call runs during these repeats. A client library that sends a command again after a
 * reconnect may execute it twice. A driver must answer with an `Error` where it cannot tell the first answer from the
 * second: the second release of a lease, for example, returns `false` although the first one succeeded.
 */
export interface Driver {
  /** One word, the same as in the import path and the docs: `memory`, `sqlite`, … Used in error messages. */
  readonly name: string
  /** Where the store is, for error messages: a URL without user name and password. */
  readonly place?: string
  readonly capabilities: Capabilities
  /** What only some drivers can do or need. Most drivers have none. */
  readonly extensions?: DriverExtensions

  /**
   * Grants each claim or refuses it, in the order of the list.
   *
   * A claim whose `claimId` already has a lease gets that lease again: the same fencing token, and its TTL starts
   * again. If the claim was granted through another instance of the driver, the driver may instead replace the lease
   * with a new one that has a higher token.
   *
   * A refused claim with `waiterTtlMs` above 0 is added to the queue, or keeps its place there for that long again.
   *
   * `call.secret` is new with every call. A driver that announces grants through messages which other clients could
   * forge stores it with the queued claims, and has the store prove each grant by it: see `DriverListener.granted`.
   */
  acquire(claims: readonly Claim[], call: AcquireCall): Promise<readonly (AcquireAnswer | Error)[]>

  /**
   * Sets each lease to end `ttlMs` from now, which may be later or sooner than before. Compares claim and fencing
   * token, and never re-creates a lease that has ended.
   */
  renew(renewals: readonly Renewal[]): Promise<readonly (RenewAnswer | Error)[]>

  /**
   * Ends each lease or place in the queue. The answer is `true` if this call ended a lease that had not ended before.
   * With a `fencingToken`, only the lease with that token is ended. Without one, everything that the claim has in the
   * store is removed: the core withdraws a claim that way when it never got the answer.
   */
  release(leases: readonly LeaseRef[]): Promise<readonly (boolean | Error)[]>

  /**
   * Lists the leases and waiters that have not ended, in pages. A page contains all leases and waiters of its lock
   * names. Only a name with more of them than the driver returns at once continues on the following pages: its leases
   * first, an exclusive one before all others, then its waiters.
   *
   * @throws `InvalidArgumentError` for a query that `checkInspectQuery` rejects
   */
  inspect(query: InspectQuery): Promise<InspectPage>

  /**
   * Starts to report wake-ups, grants and losses. Resolves when the subscription is active, so that nothing after that
   * is missed, with a function that ends the subscription. If the subscription breaks, the driver calls `disconnected`
   * once, and the core calls `listen` again. The core listens only while a claim of this process waits, or while it
   * holds a lease whose loss it has to learn of at once, and for a second after that.
   */
  listen?(listener: DriverListener): Promise<StopListening>

  /**
   * Executes one rate-limiting step (GCRA) for each request, on the store's clock. Requests for one name are executed
   * in the order of the list.
   */
  consume?(requests: readonly RateRequest[]): Promise<readonly (RateAnswer | Error)[]>

  /** Closes the connections that the driver has opened. Does not end any lease. Every later call rejects. */
  close(): Promise<void>
}

/** What a driver supports. A constant: it is the same before and after the driver has connected. */
export interface Capabilities {
  /** What ends a lease in the store: the end of its TTL (`ttl`), or the end of the connection (`session`). */
  readonly expiry: 'ttl' | 'session'
  /** Who excludes each other: the tasks of one process, the processes of one machine, or machines in a network. */
  readonly scope: 'process' | 'machine' | 'network'
  /** A grant has a fencing token, which rises with every grant of a lock name. */
  readonly fencing: boolean
  /** Supports claims with mode `shared`. */
  readonly shared: boolean
  /** Supports shared claims with a `limit`. */
  readonly limit: boolean
  /** Serves waiters first come, first served, across all processes. */
  readonly queue: boolean
  /** Has `listen`. */
  readonly wake: boolean
  /** Stores metadata with a lease and returns it to other clients. */
  readonly metadata: boolean
  /** Has `consume`. */
  readonly rate: boolean
  /**
   * How a client can end leases that it does not hold: with a claim that has `forceUpTo`, with the extension
   * `forceRelease`, or not at all.
   */
  readonly force: 'claim' | 'call' | false
  /** Supports claims with a `group`: grants all of them in one step, or none. */
  readonly groups: boolean
  /** Why something is not supported. It becomes the end of the `UnsupportedError`'s message, after a colon. */
  readonly reasons?: {
    readonly shared?: string
    readonly limit?: string
    readonly rate?: string
    readonly force?: string
  }
}

/** One call of `acquire`. */
export interface AcquireCall {
  /** A random text that no other client knows. */
  readonly secret: string
}

/** A request for a lock. */
export interface Claim {
  readonly lockName: string
  /** Unique to this acquisition, across all processes. A repeated acquire, a renewal and a release refer to it. */
  readonly claimId: string
  readonly holderId: string
  readonly mode: 'exclusive' | 'shared'
  /** Shared only: how many permits may be held at once, including those of this claim. Absent: any number. */
  readonly limit?: number
  /** How many permits the claim needs. */
  readonly permits: number
  readonly ttlMs: number
  readonly metadata?: Metadata
  /** How long the store keeps the claim in its queue without another request. 0: the claim is not queued. */
  readonly waiterTtlMs: number
  /**
   * In one step, ends every lease on the name and grants this claim with a higher token, before all waiters. Only for
   * exclusive claims. The waiters keep their places. The previous holders are answered `lost` when they renew and
   * `false` when they release, and are notified through `listen` if the driver can do that.
   *
   * The number is the largest fencing token of a lease that the claim may end. If the name has a lease with a larger
   * token, the claim is refused, is not queued, and ends nothing. So a client that inspected the leases before does not
   * take the lock from a newer holder.
   */
  readonly forceUpTo?: number
  /**
   * Claims of one list with the same `group` are granted in one step, or none of them is. All members of a group are in
   * the same list, next to each other, at most 100 of them. They are exclusive, have different lock names, and neither
   * wait nor have `forceUpTo`. If one of them cannot be granted, all are refused and nothing is written for any of
   * them. If the outcome of one is unknown, the answer is an `Error` for all.
   *
   * A member that already has its lease, because an earlier answer was lost, counts as free. If its group is refused
   * nevertheless, its answer is an `Error`: its lease still exists and has to be withdrawn.
   */
  readonly group?: string
}

/** A JSON object, which the store returns unchanged. */
export type Metadata = Readonly<Record<string, unknown>>

export type AcquireAnswer = Grant | Refusal

export interface Grant {
  readonly granted: true
  readonly fencingToken: number
  /**
   * The TTL of the lease, counted from the grant. A grant in a message may be shorter than its claim asked for: at most
   * what is left of the waiter's own TTL, so that a dead waiter delays the queue no longer than that.
   */
  readonly ttlMs: number
  /** The store's clock at the first grant of this claim. */
  readonly acquiredAtMs: number
}

export interface Refusal {
  readonly granted: false
  /** One of the leases that conflict with the claim. Absent if the store does not show it. */
  readonly holder?: LeaseRecord
  /** The claim has no conflict of its own: it was refused because another member of its group was. */
  readonly free?: true
  /** The number of waiters before this claim: exact up to 32, at least 32 beyond that. Absent if it is not queued. */
  readonly ahead?: number
  /** After how long a repeated request may succeed without a wake-up, for example because a lease will have expired. */
  readonly askAgainMs?: number
  /**
   * The store's clock at this answer. Needed by drivers that call `DriverListener.granted`: if the store has refused
   * the claim after a grant, that grant is over, although its message may still arrive. Without this field, a reported
   * grant is only a hint to ask again.
   */
  readonly answeredAtMs?: number
}

/** Identifies a lease. Without a `fencingToken`: all that the claim has in the store. */
export interface LeaseRef {
  readonly lockName: string
  readonly claimId: string
  readonly fencingToken?: number
}

export interface Renewal extends LeaseRef {
  readonly fencingToken: number
  readonly ttlMs: number
}

/**
 * The outcome of a renewal. `renewed`: the lease ends `ttlMs` from now. `held`: the lease still exists, and the store
 * has no expiry to extend. `lost`: the lease has ended.
 */
export type RenewAnswer = 'renewed' | 'held' | 'lost'

/** A lease in the store. Times are on the store's clock, in milliseconds since 1970. */
export interface LeaseRecord {
  readonly lockName: string
  readonly claimId: string
  readonly holderId: string
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number
  readonly permits: number
  readonly fencingToken: number
  readonly acquiredAtMs: number
  /** Absent if the lease lasts as long as its session. */
  readonly expiresAtMs?: number
  readonly metadata?: Metadata
  /** The session that the lease ends with, as the store names it. All leases of a session end together. */
  readonly session?: string
}

/** A queued claim in the store. */
export interface WaiterRecord {
  readonly lockName: string
  readonly claimId: string
  readonly holderId: string
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number
  readonly permits: number
  readonly waitingSinceMs: number
}

export interface InspectQuery {
  /** Only this lock name. */
  readonly lockName?: string
  /** Only lock names that begin with this text. */
  readonly prefix?: string
  /** `next` of the previous page. */
  readonly after?: string
  /**
   * The maximum number of lock names on a page, from 1 to 10,000.
   * @default 100
   */
  readonly pageSize?: number
}

export interface InspectPage {
  readonly leases: readonly LeaseRecord[]
  /** For each lock name, in the order in which they will be served. */
  readonly waiters: readonly WaiterRecord[]
  /** Pass it as `after` to get the next page. Absent on the last page. */
  readonly next?: string
}

/** What a driver reports of waiting claims and of leases. All methods are synchronous. */
export interface DriverListener {
  /**
   * A hint that another request may succeed: for one claim, or for every claim on the lock name. Only a hint for one
   * claim can have a proof.
   */
  wake(target: { readonly claimId: string } | { readonly lockName: string }, isProvedBy?: IsProvedBy): void
  /** The store has granted a waiting claim without a request. */
  granted(claimId: string, grant: Grant, isProvedBy?: IsProvedBy): void
  /**
   * The store has ended a lease, of this process or of another one. With `session` expiry the lease is lost at once.
   * With `ttl` expiry this is a hint: the holder renews the lease, and loses it if the store answers `lost`.
   */
  lost(claimId: string, cause: Error): void
  /** The subscription has broken and reports nothing more. */
  disconnected(cause: Error): void
}

/**
 * Whether a message proves that it was made by the store, about the call with this secret. The core ignores a message
 * that no call of the claim proves. Absent: no other client could have sent the message, or it costs one request.
 */
export type IsProvedBy = (secret: string) => boolean

/** Ends a subscription. */
export type StopListening = () => Promise<void>

export interface RateRequest {
  readonly name: string
  /** How many units to take: all of them or none. 0: nothing is taken or written, and the answer shows the state. */
  readonly cost: number
  /**
   * One to four limits. Units are taken only if all of them allow it. Requests for one name may have different limits,
   * because each limit has its own state. Reuse the same array for the same limits: it is recognised faster.
   */
  readonly limits: readonly RateLimit[]
  /** Changes the state of these limits for this name, and of no others, instead of taking units. `cost` must be 0. */
  readonly change?: RateChange
}

/**
 * Resets or blocks limits. `reset`: removes all consumption and every block. `blockMs`: refuses every step under one of
 * the limits for this long from now; it replaces an earlier block, and 0 ends it. A block does not change the
 * consumption.
 */
export type RateChange = 'reset' | { readonly blockMs: number }

/**
 * The three fields together identify a limit: requests for one name that contain the same limit share its state in the
 * store.
 */
export interface RateLimit {
  /** The number of units per period, in the long run. */
  readonly limit: number
  readonly periodMs: number
  /** The number of units that can be taken at once after a pause. At most `limit + burst` are taken in any period. */
  readonly burst: number
}

export interface RateAnswer {
  readonly allowed: boolean
  /** The number of units that could be taken now under the strictest limit. */
  readonly remaining: number
  /** After how long the same request can be allowed. 0 when allowed. */
  readonly retryAfterMs: number
  /** After how long every limit has its full capacity again. */
  readonly resetAfterMs: number
  /**
   * For each limit, in the order of the request: after how long it has its full capacity again. Blocks are not
   * included.
   */
  readonly usedMs: readonly number[]
  /** How long one of the limits is still blocked. The other times are then at least this long, and `remaining` is 0. */
  readonly blockedMs?: number
}

/**
 * What only some drivers can do or need. Each member is optional. Without it, the core does without, or rejects the
 * call with `UnsupportedError`.
 */
export interface DriverExtensions {
  /**
   * For a driver whose claims cannot have `forceUpTo`: ends leases of other clients, as `inspect` returned them.
   * Compares claim and fencing token, and touches no other lease. For each, `true` if this call ended it, `false` if it
   * had ended before or has a newer token. An `Error`: it was not ended, or that is unknown.
   *
   * It may take up to 15 s, which is longer than other calls: it may have to wait for the holders.
   */
  forceRelease?(leases: readonly LeaseRecord[], options: ForceOptions): Promise<readonly (boolean | Error)[]>

  /**
   * Lists the limits of which something is in use, in pages, for code that shows them to people. `consume` with a cost
   * of 0 returns how much. A limit that has just run out may be listed.
   *
   * @throws `InvalidArgumentError` for a query that `checkInspectQuery` rejects
   */
  inspectRates?(query: RatesQuery): Promise<RatesPage>

  /** How a worker thread opens its own driver for the same store. */
  readonly reopen?: Reopen

  /**
   * The part of the store that answers requests about this lock name, for a store of several servers. Requests for
   * different parts never share a call, so a server that hangs does not cost the others their answers.
   */
  partOf?(lockName: string): string | number | undefined

  /**
   * The core sends a list of this many requests or more in two calls or more, each with at most twice as many. The
   * calls overlap: while the store works on one, the process handles the answers to another.
   */
  readonly listSplit?: number

  /** The longest TTL that a claim may have, if that is shorter than the core's own limit of one year. */
  readonly longestTtlMs?: number
}

export interface ForceOptions {
  /** Who does it and why, for the record. */
  readonly by: string
  /**
   * For `session` expiry: if the holder does not let go, ends its session, and with it all leases of that session.
   */
  readonly endSession: boolean
}

export type RatesQuery = Omit<InspectQuery, 'lockName'>

export interface RatesPage {
  readonly rates: readonly RateRecord[]
  /** Pass it as `after` to get the next page. Absent on the last page. */
  readonly next?: string
}

/** A limit in the store, and the name that it is used with. */
export interface RateRecord {
  readonly name: string
  readonly limit: RateLimit
}

/** `(await import(module))[name](...args)` creates the driver. All fields can be posted to a thread. */
export interface Reopen {
  readonly module: string
  readonly name: string
  readonly args: readonly unknown[]
}
