/** What the model knows of programs and stores. Times are those of the program's clock, in ms. */

/** What a program relies on: a lease that it has got and not ended, or a function that runs under one. */
export interface Use {
  /** The call, for people. */
  readonly what: string
  readonly on: number
  /** The `DistributedLock`, `ReadWriteLock`, … that made it. */
  readonly object: object
  readonly lockName: string
  readonly kind: 'exclusive' | 'reader' | 'permits'
  readonly permits: number
  readonly fencingToken: number
  /** It entered the lease of a function around it, or `reacquire: 'extend'` lets it share the lease of its instance. */
  readonly mayShare: boolean
  /** A function runs under it. */
  readonly runs: boolean
  /** It asked for a heartbeat, or has one by default. */
  readonly renews: boolean
  /** If it claimed its lease. */
  readonly minHoldMs: number
  /** The uses of the functions around it that have the same lease. They end first, or it ends with them. */
  readonly inside: readonly Use[]
  /** Whether the code can still think that it holds the lock, judged by `held` or by its `signal`. */
  believes(): boolean
  /** Its instance is being closed, and lets it go on until then. */
  keptUntilMs: number
  /** A call that ends the lease under it, or an end of the function that it was entered in, may put it out. */
  excused: boolean
  /** It is being handed over, if that is not refused. */
  leaving: boolean
  /** It was released, disposed of or handed over, or its function has ended. */
  ended: boolean
}

export interface Violation {
  readonly rule: Rule
  readonly text: string
}

export type Rule =
  | 'two are inside'
  | 'a loss is reported'
  | 'it keeps its lease'
  | 'a call under a lost lease rejects'
  | 'a release confirms'
  | 'tokens rise'
  | 'nothing waits that did not ask to'
  | 'everything settles'
  | 'nothing is left'
  | 'a shared lease is not shortened'
  | 'a lock is kept for minHoldSeconds'
  | 'a job runs once'
  | 'a limit is kept'
  | 'errors are expected'

/** A lease as the store knows it. */
export interface StoredLease {
  readonly lockName: string
  readonly fencingToken: number
  readonly claimId: string
  readonly exclusive: boolean
  readonly ttlMs: number
  readonly grantedMs: number
  minHoldMs: number
  expiresAtMs: number
  /** Until when its holder relies on it, at least. */
  trustedMs: number
  endedMs: number | undefined
  forced: boolean
  /** It may outlive its instance. */
  handedOver: boolean
  renewals: number
  overlapping: boolean
  /** Extensions in flight, and who else used the lease when they were asked for. */
  readonly extensions: Set<{ readonly ttlMs: number; readonly others: readonly Use[] }>
}

export interface ModelOptions {
  readonly nowMs: () => number
  /** The model sees every step of the store at its own time. Otherwise it sees them with their answers. */
  readonly exact: boolean
  /** Leases end by their TTL. */
  readonly expires: boolean
  /** The names that are claimed with `minHoldSeconds`. */
  readonly keptLonger: ReadonlySet<string>
  /** The names that are claimed with `maxHoldSeconds`. */
  readonly keptShorter: ReadonlySet<string>
  /** How close to the deadline of a lease an answer of the store may come too late to say something. */
  readonly slackMs: number
  /** How long a message to or from the store takes at most. */
  readonly latencyMs: number
}

export interface Ref {
  readonly lockName: string
  readonly fencingToken: number
}

export interface Granted extends Ref {
  readonly claimId: string
  readonly exclusive: boolean
  readonly ttlMs: number
  readonly sentMs: number
  /** The largest token of the name when the claim was sent. */
  readonly after: number
}

export const keyOf = ({ lockName, fencingToken }: Ref): string => `${lockName} ${fencingToken}`
/** 1 % + 2 ms are the margin that the library states. Timers may be early by some more. */
export const trusted = (sentMs: number, ttlMs: number): number => sentMs + ttlMs * 0.99 - 8
export const short = (token: number): string => `…${String(token).slice(-7)}`
