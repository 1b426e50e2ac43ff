/**
 * What the server sends to the page. Both sides import this file. Times are milliseconds on the store's clock. In rows
 * they are relative to `base`, which makes them half as long, and 0 means that there is none.
 */

/** What the page needs to know before anything else. */
export interface Welcome {
  readonly stores: readonly StoreInfo[]
  /** Whether this viewer may end leases by force, and under which name that is recorded. */
  readonly actions: boolean
  readonly user?: string
}

export interface StoreInfo {
  readonly name: string
  /** Absent until the store has been opened. */
  readonly driver?: string
  readonly can?: StoreAbilities
}

/** What a store can show. The page says so where it cannot. */
export interface StoreAbilities {
  readonly waiters: boolean
  readonly metadata: boolean
  readonly semaphores: boolean
  /** `no`: it has no rate limits. `unlisted`: it has some, but cannot list them. */
  readonly rates: 'listed' | 'unlisted' | 'no'
  readonly force: boolean
  readonly expiry: 'ttl' | 'session'
}

/** One step of one store: what has changed since the step before, or everything. */
export interface Step {
  readonly store: number
  /** The store's clock, as far as the server knows it. */
  readonly now: number
  /** Only on a full step, which replaces everything before it. */
  readonly full?: FullStep
  /** New rows, and rows that changed in more than their end. */
  readonly rows?: readonly Row[]
  /** Pairs of a row's id and its new end: renewals, which are most of all changes. */
  readonly ends?: readonly number[]
  /** Ids of rows that are gone. */
  readonly gone?: readonly number[]
  /** The newest bucket of figures. */
  readonly figures?: Bucket
  /** Why the store could not be read. Absent: it was read. */
  readonly error?: string
  /** The store has more leases and waiters than are shown. */
  readonly partial?: true
}

export interface FullStep {
  readonly base: number
  readonly info: StoreInfo
  readonly history: readonly Bucket[]
}

/** One lock in the list. Arrays instead of objects: 10,000 of them are sent at once. */
export type Row = readonly [
  id: number,
  name: string,
  kind: Kind,
  /** One of the holders. Empty: it is free, and claims wait for it. */
  holder: string,
  holders: number,
  permits: number,
  /** 0: no limit. */
  limit: number,
  /** Since when the oldest lease is held. 0: unknown. */
  since: number,
  /** When the first lease ends unless it is renewed. 0: with its session, or it is free. */
  end: number,
  waiters: number,
  /** Since when the first waiter waits. 0: there is none. */
  waitingSince: number,
  flags: number,
  /** Only of an election: its term and the published value. */
  term?: number,
  value?: string,
]

export const EXCLUSIVE = 0
export const SHARED = 1
export const SEMAPHORE = 2
export type Kind = typeof EXCLUSIVE | typeof SHARED | typeof SEMAPHORE

/** It is a part of a cycle of claims that wait for each other. */
export const DEADLOCKED = 1
export const ELECTION = 2

/** Five seconds of a store: when they began, what there was at their end, and what happened in them. */
export type Bucket = readonly [
  at: number,
  held: number,
  waiting: number,
  granted: number,
  released: number,
  expired: number,
  forceReleased: number,
]
export const BUCKET_MS = 5_000
export const HISTORY_MS = 3_600_000

/** Everything about one lock. */
export interface LockDetail {
  readonly name: string
  readonly now: number
  readonly leases: readonly LeaseDetail[]
  /** The first ones of the queue. */
  readonly waiters: readonly WaiterDetail[]
  readonly waiterCount: number
  readonly spans: readonly Span[]
  /** When the store was not watched. What happened then is unknown. */
  readonly gaps: readonly (readonly [from: number, to: number])[]
  readonly watchedSince: number
  readonly forcedReleases: readonly ForcedReleaseDetail[]
  /** Claims that wait for each other, this lock among them. */
  readonly cycle: readonly CycleStep[]
}

export interface LeaseDetail {
  readonly holder: string
  readonly shared: boolean
  readonly permits: number
  readonly limit?: number
  readonly token: number
  /** Only without a token, which another client does not have: tells its lease from those of others. */
  readonly mark?: string
  readonly since?: number
  readonly end?: number
  readonly metadata?: string
  /** Lock names that claims inside its callback wait for. */
  readonly waitsFor: readonly string[]
}

export interface WaiterDetail {
  readonly holder: string
  readonly shared: boolean
  readonly permits: number
  readonly since: number
}

/** One lease in the timeline. */
export interface Span {
  readonly holder: string
  readonly token: number
  readonly shared: boolean
  readonly from: number
  /** Absent: it is held. */
  readonly to?: number
  readonly end?: SpanEnd
  /** How long its claim waited, if it was seen in the queue. */
  readonly waited?: number
  /** Who ended it by force, and why. */
  readonly by?: string
  readonly reason?: string
}

/** `passed`: released, and the next waiter got it. `unknown`: it was not watched, or a release looks like a loss. */
export type SpanEnd = 'released' | 'passed' | 'expired' | 'force-released' | 'unknown'

export interface ForcedReleaseDetail {
  readonly by: string
  readonly reason: string
  readonly at: number
  readonly ended: readonly string[]
}

export interface CycleStep {
  readonly waiter: string
  readonly lock: string
  readonly blocker: string
}

/** The wait-for graph: holders wait for locks, which are held by holders. */
export interface WaitGraph {
  readonly nodes: readonly GraphNode[]
  readonly edges: readonly GraphEdge[]
  readonly cycles: readonly (readonly CycleStep[])[]
  /** How many locks have waiters that are not in `nodes`. */
  readonly more: number
}

export interface GraphNode {
  readonly id: string
  readonly kind: 'lock' | 'holder'
  readonly label: string
  readonly inCycle: boolean
  /** Of a lock: how many wait for it. */
  readonly waiters?: number
}

export interface GraphEdge {
  readonly from: string
  readonly to: string
  readonly kind: 'waits' | 'held'
  readonly inCycle: boolean
}

export interface RateList {
  readonly rates: readonly RateDetail[]
  /** False: there are more. */
  readonly complete: boolean
}

export interface RateDetail {
  readonly name: string
  readonly limit: number
  readonly periodMs: number
  readonly burst: number
  /** After how long its full capacity is back. */
  readonly usedMs: number
  readonly blockedMs: number
}

/** Ends the leases with these tokens or marks, and no newer one. */
export interface ForceReleaseRequest {
  readonly store: number
  readonly name: string
  readonly tokens: readonly number[]
  readonly marks?: readonly string[]
  readonly reason: string
}

export type ForceReleaseAnswer = { readonly ended: number } | { readonly error: string }
