/**
 * The one interface between what a lock means and where it is kept.
 *
 * Every call takes a list and gives a list of the same length and order, so that what a process asks for in one turn of
 * its event loop costs one round trip. A driver keeps leases, nothing else: it never sleeps, retries, batches or
 * renews by itself. Waiting, retrying and the heartbeat exist once, in `core/`.
 *
 * What a driver owes:
 * - The store's own clock decides expiry. No client's time is ever sent to it.
 * - A grant, its fencing token and its place in the store are one atomic step.
 * - An entry of an answer that is an `Error` means "unknown" for that entry; a rejected call means "unknown" for all.
 */
export interface Driver {
  /** One word, the same as in the import path and the docs: `memory`, `sqlite`, … */
  readonly name: string
  /** Where the store is, as errors name it: a URL without its login. */
  readonly place?: string
  readonly capabilities: Capabilities
  /**
   * The core sends a list of this many requests or more in two calls or more, each with at most twice as many. The
   * calls overlap: while the store works on one, the process handles the answers to another. A driver that splits the
   * list inside one call cannot do that, because a call has one answer.
   */
  readonly listSplit?: number
  /** The longest time to live that a claim may have, where that is less than the core's own bound. */
  readonly longestTtlMs?: number
  /** How a worker thread opens a driver of its own on the same store. Absent where that is not possible. */
  readonly reopen?: Reopen

  /**
   * A claim whose `claimId` already holds a lease gets that lease again: the same token, its time to live started anew. Another instance of the driver may
   * instead replace the lease by a new one, with a higher token.
   * A claim that is refused and has `waitMs` stands in the queue from then on, or keeps its place there for `waitMs` more.
   * Claims of one list are taken in their order.
   */
  acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]>

  /** Sets the lease to end `ttlMs` from now, later or sooner than before. Never re-creates one that has ended. */
  renew(renewals: readonly Renewal[]): Promise<readonly (RenewAnswer | Error)[]>

  /**
   * Ends a lease, or a place in the queue. True if a lease that had not ended was ended by this call. Without a
   * `fencingToken` it ends whatever the claim has: that is how a claim is withdrawn whose answer was never seen.
   */
  release(leases: readonly LeaseRef[]): Promise<readonly (boolean | Error)[]>

  /**
   * Leases and waiters that have not ended, in pages of whole lock names. A name with more of them than the driver shows
   * at once goes on on the next pages: its leases first, an exclusive one before all others, then its waiters. Rejects a
   * query that `checkInspectQuery` refuses.
   */
  inspect(query: InspectQuery): Promise<InspectPage>

  /**
   * Begins to tell of releases and losses. Resolves once nothing after this moment is missed. When the subscription
   * ends by itself, `disconnected` is called once, and the caller listens again.
   */
  listen?(listener: DriverListener): Promise<StopListening>

  /** One rate-limiting step (GCRA) each, on the store's clock; those on one name in the list's order. */
  consume?(requests: readonly RateRequest[]): Promise<readonly (RateAnswer | Error)[]>

  /** Gives back what the driver opened itself. Leases stay as they are. Every later call rejects. */
  close(): Promise<void>
}

export interface Capabilities {
  /** `ttl`: the store ends a lease by itself. `session`: it lasts as long as the connection does. */
  readonly expiry: 'ttl' | 'session'
  /** How far it excludes: the tasks of one process, the processes of one machine, or machines. */
  readonly scope: 'process' | 'machine' | 'network'
  /** Grants carry a token that rises with every grant of a lock name. */
  readonly fencing: boolean
  /** Takes claims of mode `shared`. */
  readonly shared: boolean
  /** Takes shared claims with a `limit`. */
  readonly limit: boolean
  /** Serves waiters first come, first served, over all processes. */
  readonly queue: boolean
  /** Has `listen`. */
  readonly wake: boolean
  /** Keeps metadata with a lease and shows it to others. */
  readonly metadata: boolean
  /** Has `consume`. */
  readonly rate: boolean
  /** Takes claims with `steal`. */
  readonly steal: boolean
  /** Takes claims with a `group`: grants all of them in one step, or none. */
  readonly groups: boolean
  /** Why it cannot do something, as the end of a sentence: what whoever asks for it all the same is told. */
  readonly reasons?: {
    readonly shared?: string
    readonly limit?: string
    readonly rate?: string
    readonly steal?: string
  }
}

export interface Claim {
  readonly lockName: string
  /** Unique to this acquisition, over all processes. It is what idempotence, renewal and release are judged by. */
  readonly claimId: string
  readonly holderId: string
  readonly mode: 'exclusive' | 'shared'
  /** Shared only: how many permits may be out at once, this claim's own included. Absent: any number. */
  readonly limit?: number
  /** How many permits this claim takes of its limit. */
  readonly permits: number
  readonly ttlMs: number
  readonly metadata?: Metadata
  /** How long the store keeps a place in its queue without hearing again. 0: answer at once, do not queue. */
  readonly waitMs: number
  /**
   * Exclusive only: in one step, every lease on the name is ended and this claim is granted, with a higher token, before all who wait, who keep
   * their places. Whoever held one is told that it was lost when it renews or releases, and through `listen` where the driver can.
   */
  readonly steal?: true
  /**
   * With `steal`: the largest fencing token that it may end. If the name has a lease with a larger one, the claim is refused, does not
   * queue, and ends nothing: whoever looked at the leases and then takes the lock must not take it from a newer holder.
   */
  readonly stealUpTo?: number
  /**
   * Claims of one list with the same `group` are granted in one step, or none of them is. The whole group is in the
   * list, at most 100 members next to each other. They are exclusive, each on a name of its own, and neither wait nor
   * steal. If one of them cannot be granted, all are refused, and nothing is written for any. If that is not known of
   * one, the answer is an error for all.
   *
   * A member that already has its lease, because an earlier answer was lost, counts as free. If its group is refused
   * nevertheless, its own answer is an error: its lease is still there, and has to be withdrawn.
   */
  readonly group?: string
}

export type Metadata = Readonly<Record<string, unknown>>

export type AcquireAnswer = Grant | Refusal

export interface Grant {
  readonly granted: true
  readonly fencingToken: number
  /** How long the lease lasts from the moment of the grant. */
  readonly ttlMs: number
  /** The store's clock at the first grant of this claim. */
  readonly acquiredAtMs: number
}

export interface Refusal {
  readonly granted: false
  /** Who holds it: one of the leases that stand in the way. */
  readonly holder?: LeaseRecord
  /** Nothing is in this claim's own way. It was refused because another one of its group was. */
  readonly free?: true
  /** How many waiters stand before this claim: exact up to 32, and at least 32 beyond that. Absent when it does not queue. */
  readonly ahead?: number
  /** When asking again may bring something new although nobody was woken, such as when a lease runs out. */
  readonly askAgainMs?: number
  /**
   * The store's clock at this answer. For drivers that hand grants over: a grant that was made before a later refusal has ended by then, and its
   * message may still be on its way. Without it a grant that is handed over counts as a hint to ask again.
   */
  readonly answeredAtMs?: number
}

export interface LeaseRef {
  readonly lockName: string
  readonly claimId: string
  readonly fencingToken?: number
}

export interface Renewal extends LeaseRef {
  readonly fencingToken: number
  readonly ttlMs: number
}

/** `held`: still ours, and the store has no expiry to move. */
export type RenewAnswer = 'renewed' | 'held' | 'lost'

export interface LeaseRecord {
  readonly lockName: string
  readonly claimId: string
  readonly holderId: string
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number
  readonly permits: number
  readonly fencingToken: number
  readonly acquiredAtMs: number
  /** Absent where a lease lasts as long as its session. */
  readonly expiresAtMs?: number
  readonly metadata?: Metadata
}

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
  /** Only lock names that begin with this. */
  readonly prefix?: string
  /** `next` of the page before. */
  readonly after?: string
  /**
   * How many lock names a page may hold, from 1 to 10,000.
   * @default 100
   */
  readonly pageSize?: number
}

export interface InspectPage {
  readonly leases: readonly LeaseRecord[]
  /** In the order in which they will be served. */
  readonly waiters: readonly WaiterRecord[]
  /** Absent on the last page. */
  readonly next?: string
}

export interface DriverListener {
  /**
   * Whether this claim waits here, or its lease is watched here. A driver that has to ask the store about a message asks this first, so that
   * messages about other claims cost nothing. Absent: any may.
   */
  concerns?(claimId: string): boolean
  /** A hint that asking again is worth while: for one claim, or for every claim on that lock name. */
  wake(lockName: string, claimId?: string): void
  /** The store has granted a waiting claim by itself. */
  granted(claimId: string, grant: Grant): void
  /**
   * The store has ended a lease by itself. With `session` expiry this process knows it, and the lease is lost at once.
   * Otherwise it is a hint: the holder renews the lease, and loses it if the store says so.
   */
  lost(claimId: string, cause: Error): void
  /** The subscription has ended; nothing more will come from it. */
  disconnected(cause: Error): void
}

export type StopListening = () => Promise<void>

export interface RateRequest {
  readonly name: string
  /** How many units it takes, all or none. 0: only looks. */
  readonly cost: number
  /**
   * From one to four. All of them must allow it, else none is charged. Requests on one name may have different limits:
   * each limit counts by itself. Requests with the very same object are found to be alike sooner.
   */
  readonly limits: readonly RateLimit[]
  /** Instead of a step, and with a cost of 0: changes what the store has of these limits on this name, and of no others. */
  readonly change?: RateChange
}

/**
 * `reset`: as if nothing had been taken, and no block. `blockMs`: no step under one of the limits is taken for so long
 * from now on, instead of the time of a block before it; 0 ends a block. A block changes nothing of what was taken.
 */
export type RateChange = 'reset' | { readonly blockMs: number }

/** The three together identify a limit: the same limit in two requests on one name has one state in the store. */
export interface RateLimit {
  /** How many per period, in the long run. */
  readonly limit: number
  readonly periodMs: number
  /** How many at once after a rest. So never more than `limit + burst` in any period. */
  readonly burst: number
}

export interface RateAnswer {
  readonly allowed: boolean
  /** What could still be taken now, under the tightest of the limits. */
  readonly remaining: number
  /** 0 when allowed. */
  readonly retryAfterMs: number
  /** Until every limit is as if nothing had been taken. */
  readonly resetAfterMs: number
  /** The same for each of the limits, in the request's order; a block is not part of it. */
  readonly usedMs: readonly number[]
  /** How long one of the limits is blocked for. Absent: none is. The other times are at least this, and nothing remains. */
  readonly blockedMs?: number
}

/** `(await import(module))[name](...args)` gives the driver; all of it can be posted to a thread. */
export interface Reopen {
  readonly module: string
  readonly name: string
  readonly args: readonly unknown[]
}
