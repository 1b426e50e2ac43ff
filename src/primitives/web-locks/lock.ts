import type { Lease } from '../../core/lease/lease.ts'

/** `LockOptions` of the specification, and exported under that name. */
export interface WebLockOptions {
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

/** `LockInfo` of the specification, and exported under that name. */
export interface WebLockInfo {
  name: string
  mode: LockMode
  /** The client that holds the lock or waits for it: its `holderId`. */
  clientId: string
}

export interface LockManagerSnapshot {
  /** In the order of the grants. On Redis Cluster and Redlock, where servers grant independently, by their clocks. */
  held: WebLockInfo[]
  /** In the order of the requests: exact per name and per client, otherwise by the store's clock. */
  pending: WebLockInfo[]
}

export type LockMode = 'exclusive' | 'shared'

/** The only way to make a `Lock`. */
export let createLock: (name: string, mode: LockMode, lease: Lease) => Lock

/**
 * What a callback receives. Its name and mode stay readable after the release.
 *
 * `signal` and `fencingToken` are not part of the specification. Over a network a lock can be lost. A resource can then
 * reject the writes of a holder that has not noticed.
 */
export class Lock {
  static {
    createLock = (name, mode, lease) => new Lock(INTERNAL, name, mode, lease)
    for (const attribute of ['name', 'mode'] as const) {
      Object.defineProperty(Lock.prototype, attribute, { enumerable: true })
    }
    Object.defineProperty(Lock.prototype, Symbol.toStringTag, { value: 'Lock', configurable: true })
    // As for every interface that cannot be constructed.
    Object.defineProperty(Lock, 'length', { value: 0, configurable: true })
  }

  readonly #name: string
  readonly #mode: LockMode
  readonly #lease: Lease

  private constructor(secret: symbol, name: string, mode: LockMode, lease: Lease) {
    if (secret !== INTERNAL) throw new TypeError('Illegal constructor')
    this.#name = name
    this.#mode = mode
    this.#lease = lease
  }

  get name(): string {
    return this.#name
  }

  get mode(): LockMode {
    return this.#mode
  }

  /**
   * Aborts, with a `LeaseLostError` as its reason, when the lock is taken by `steal` or lost before the callback has
   * ended.
   */
  get signal(): AbortSignal {
    return this.#lease.signal
  }

  /** Rises with every grant of this name. Pass it to what you write to. */
  get fencingToken(): number {
    return this.#lease.fencingToken
  }
}

const INTERNAL = Symbol('internal')
