import type { Lease } from '../../core/lease/lease.ts'

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

  /** Aborts, with a `LeaseLostError` as its reason, when the lock is stolen or lost before the callback has ended. */
  get signal(): AbortSignal {
    return this.#lease.signal
  }

  /** Rises with every grant of this name. Pass it to what you write to. */
  get fencingToken(): number {
    return this.#lease.fencingToken
  }
}

const INTERNAL = Symbol('internal')
