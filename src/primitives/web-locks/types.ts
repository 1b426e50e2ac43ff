import type { Lock, LockMode } from './lock.ts'

export type { LockMode } from './lock.ts'

/** The types have the names of the specification, so that code written for browsers finds them. */

export interface LockOptions {
  /** @default 'exclusive' */
  mode?: LockMode | undefined
  /**
   * Calls the callback with `null` if the lock is not free. Not together with `steal` or `signal`.
   *
   * @default false
   */
  ifAvailable?: boolean | undefined
  /**
   * Takes the lock from its holder, before all waiters. Exclusive only. Not together with `ifAvailable` or `signal`.
   *
   * @default false
   */
  steal?: boolean | undefined
  /** Ends the wait. It has no effect once the lock is granted. */
  signal?: AbortSignal | undefined
}

/** The lock is held until the returned promise has settled. `null` only for a request with `ifAvailable`. */
export type LockGrantedCallback<T> = (lock: Lock | null) => T

export interface LockInfo {
  name: string
  mode: LockMode
  /** The client that holds the lock or waits for it: its `holderId`. */
  clientId: string
}

export interface LockManagerSnapshot {
  /** In the order of the grants. On Redis Cluster and Redlock, where servers grant independently, by their clocks. */
  held: LockInfo[]
  /** In the order of the requests: exact per name and per client, otherwise by the store's clock. */
  pending: LockInfo[]
}
