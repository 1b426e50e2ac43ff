import { ttlMsFrom } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { isStorable } from '../../core/names.ts'
import { optionNames } from '../../core/options.ts'
import { everything } from '../everything.ts'
import { Instance } from '../instance.ts'
import { INSTANCE_OPTIONS, type InstanceOptions } from '../instance-options.ts'
import { Closable } from '../primitive.ts'
import { argumentsFrom, checkRequest } from './arguments.ts'
import { domException } from './dom-exception.ts'
import { Requests } from './requests.ts'
import { snapshot } from './snapshot.ts'
import type { LockGrantedCallback, LockManagerSnapshot, LockOptions } from './types.ts'

export { Lock } from './lock.ts'
export type {
  LockGrantedCallback,
  LockInfo,
  LockManagerSnapshot,
  LockMode,
  LockOptions,
} from './types.ts'

export interface WebLocksOptions extends InstanceOptions {
  /**
   * The beginning of the lock names in the store. Managers with the same prefix on one store share their locks, like
   * pages of one origin. At most 100 characters.
   *
   * @default 'web:'
   */
  prefix?: string
  /**
   * The time to live of a lease. A heartbeat renews it while the lock is held. The lock of a process that died stays
   * held for this long.
   *
   * @default 10
   */
  timeoutSeconds?: number
}

const OPTIONS = optionNames<WebLocksOptions>({ ...INSTANCE_OPTIONS, prefix: true, timeoutSeconds: true })

/**
 * Returns a `LockManager` with the Web Locks API of `navigator.locks`, on any store. Code that was written for browsers
 * runs with it across machines. Opens nothing yet.
 *
 * @throws `InvalidArgumentError`, `UnsupportedError`
 *
 * @example
 * ```ts
 * const locks = webLocks({ url: 'redis://localhost:6379' })
 * await locks.request('report', async () => { await createReport() })
 * ```
 */
export function webLocks(options: WebLocksOptions = {}): LockManager {
  return createManager(options)
}

let createManager: (options: WebLocksOptions) => LockManager

/**
 * The `LockManager` of the W3C specification. `webLocks` makes one. `clientId`, `on`, `close` and `closed` are not part
 * of the specification.
 *
 * @example
 * ```ts
 * const locks = webLocks({ url: 'redis://localhost:6379' })
 * await locks.request('report', { ifAvailable: true }, async (lock) => {
 *   if (lock !== null) await createReport(lock.fencingToken)
 * })
 * ```
 */
export class LockManager extends Closable {
  static {
    createManager = (options) => new LockManager(INTERNAL, options)
    for (const operation of ['request', 'query'] as const) {
      Object.defineProperty(LockManager.prototype, operation, { enumerable: true })
    }
    Object.defineProperty(LockManager.prototype, Symbol.toStringTag, { value: 'LockManager', configurable: true })
    Object.defineProperty(LockManager, 'length', { value: 0, configurable: true })
  }

  readonly #instance: Instance
  readonly #requests: Requests
  readonly #prefix: string

  private constructor(secret: symbol, options: WebLocksOptions) {
    if (secret !== INTERNAL) throw new TypeError('Illegal constructor')
    const instance = new Instance('LockManager', options, everything, OPTIONS)
    super(instance)
    this.#instance = instance
    const { prefix = 'web:', timeoutSeconds = 10 } = options
    this.#prefix = checkPrefix(prefix)
    this.#requests = new Requests({ instance, prefix, ttlMs: ttlMsFrom('timeoutSeconds', timeoutSeconds) })
  }

  /**
   * Asks for the lock and calls `callback` with it when it is granted. With `ifAvailable`, calls it with `null` if the
   * lock is not free. The lock is held until the promise that the callback returns has settled. Then the lock is
   * released, and this settles in the same way. It waits without limit; `signal` ends the wait.
   *
   * It never throws. It rejects:
   * - with a `TypeError` for arguments of the wrong type;
   * - with a `DOMException` named `NotSupportedError` for a name that begins with "-", for options that exclude each
   *   other, and for what the driver cannot do;
   * - with the reason of `signal` if it aborted before the lock was granted;
   * - with a `DOMException` named `AbortError` as soon as the lock is stolen, lost because its lease could not be
   *   renewed (its `cause` is then a `LeaseLostError`), or taken away by `close`;
   * - with a `StoreError` if asking the store again cannot help; with `ifAvailable`, also if the store does not answer.
   *   All other requests wait until it does;
   * - with an `OverloadError` if too many requests are in flight;
   * - with a `DOMException` named `InvalidStateError` after `close`.
   */
  request<T>(name: string, callback: LockGrantedCallback<T>): Promise<Awaited<T>>
  request<T>(name: string, options: LockOptions, callback: LockGrantedCallback<T>): Promise<Awaited<T>>
  async request(name: unknown, second: unknown, ...rest: unknown[]): Promise<unknown> {
    const requests = this.#requests
    const request = argumentsFrom(name, second, rest)
    this.#assertOpen()
    checkRequest(request.name, request.options)
    return requests.run(request)
  }

  /**
   * Resolves with the held locks and the waiting requests of all clients under this manager's prefix. It reflects
   * everything that this manager asked for before. It may be out of date when it arrives.
   *
   * @throws `StoreError` if the store did not answer
   * @throws a `DOMException` named `InvalidStateError` after `close`
   */
  async query(): Promise<LockManagerSnapshot> {
    const requests = this.#requests
    this.#assertOpen()
    await requests.order.settled()
    const holder = await this.#instance.open()
    const { pending, longNames } = requests
    return snapshot({ holder, prefix: this.#prefix, pending, longNames })
  }

  /** What `query` shows as the client of this manager's locks. It is the `holderId`. */
  get clientId(): string {
    return this.#instance.holderId
  }

  /**
   * Does what happens when a page goes away: waiting requests end, held locks are released, and their promises reject
   * with an `AbortError`. Closes the store if this manager opened it. Later calls reject with an `InvalidStateError`.
   */
  override close(): Promise<void> {
    return super.close()
  }

  #assertOpen(): void {
    if (this.#instance.closed) throw domException('InvalidStateError', 'this LockManager is closed')
  }
}

const INTERNAL = Symbol('internal')

function checkPrefix(prefix: unknown): string {
  if (typeof prefix !== 'string' || prefix.length > MAX_PREFIX_LENGTH || !isStorable(prefix)) {
    throw new InvalidArgumentError(
      'prefix',
      prefix,
      `text of at most ${MAX_PREFIX_LENGTH} characters, without NUL and lone surrogates`,
    )
  }
  return prefix
}

const MAX_PREFIX_LENGTH = 100
