import type { Lock, LockMode } from './lock.ts'

export type { LockMode } from './lock.ts'

/** The names of the specification, so that code which imports types from there finds them here. */

export interface LockOptions {
  /** `exclusive` if not said. */
  mode?: LockMode | undefined
  /** Calls back with `null` at once if the lock cannot be had without waiting. Not together with `steal` or `signal`. */
  ifAvailable?: boolean | undefined
  /** Takes the lock from whoever holds it, and before all who wait. Exclusive only; not together with `ifAvailable` or `signal`. */
  steal?: boolean | undefined
  /** Gives up waiting. Once the lock is granted it means nothing any more. */
  signal?: AbortSignal | undefined
}

/** Holds the lock until what it returns has settled. `null` only for a request with `ifAvailable`. */
export type LockGrantedCallback<T> = (lock: Lock | null) => T

export interface LockInfo {
  name: string
  mode: LockMode
  /** Who holds or waits: the other instance's `holderId`. */
  clientId: string
}

export interface LockManagerSnapshot {
  /** In the order in which they were granted. On Redis Cluster and Redlock, where servers grant beside each other, as their clocks have it. */
  held: LockInfo[]
  /** In the order in which they were made: exactly so for each name and for each client, by the store's clock otherwise. */
  pending: LockInfo[]
}
