import type { Lease } from '../../core/lease/lease.ts'

export type LockMode = 'exclusive' | 'shared'

/** Makes a `Lock`: nobody else can. */
export let createLock: (name: string, mode: LockMode, lease: Lease) => Lock

/**
 * What a callback is given. Its name and mode stay readable after the lock was released.
 *
 * `signal` and `fencingToken` are not of the specification: over a network a lock can be lost, and a resource that is written to can refuse the writes of
 * somebody who has not noticed.
 */
export class Lock {
  static {
    createLock = (name, mode, lease) => new Lock(INTERNAL, name, mode, lease)
    for (const attribute of ['name', 'mode'] as const) {
      Object.defineProperty(Lock.prototype, attribute, { enumerable: true })
    }
    Object.defineProperty(Lock.prototype, Symbol.toStringTag, { value: 'Lock', configurable: true })
    // As that of every interface that cannot be constructed.
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

  /** Aborts, with a `LeaseLostError` as its reason, when the lock is stolen or lost in another way before the callback has ended. */
  get signal(): AbortSignal {
    return this.#lease.signal
  }

  /** Rises with every grant of this name. */
  get fencingToken(): number {
    return this.#lease.fencingToken
  }
}

const INTERNAL = Symbol('internal')
