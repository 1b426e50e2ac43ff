import { ttlMsFrom } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import type { LockEvent, LockListener } from '../../core/events.ts'
import { isStorable } from '../../core/names.ts'
import { optionNames } from '../../core/options.ts'
import { systemClock } from '../../core/time/clock.ts'
import { systemRandom } from '../../core/time/random.ts'
import { everything } from '../everything.ts'
import { INSTANCE_OPTIONS, Instance, type InstanceOptions } from '../instance.ts'
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
   * What the lock names in the store begin with: managers with the same prefix on one store are what pages of one origin are to each other. `web:` if not
   * said; at most 100 characters.
   */
  prefix?: string
  /** The leases' time to live, which is how long the lock of a process that died stays held. Renewed while the lock is held. 10 if not said. */
  timeoutSeconds?: number
}

const OPTIONS = optionNames<WebLocksOptions>({ ...INSTANCE_OPTIONS, prefix: true, timeoutSeconds: true })

/**
 * The Web Locks API, as `navigator.locks` has it, over any store: code that was written for the one runs with the other, over machines. Opens nothing
 * yet. Throws `InvalidArgumentError`.
 */
export function webLocks(options: WebLocksOptions = {}): LockManager {
  return createManager(options)
}

let createManager: (options: WebLocksOptions) => LockManager

/** `LockManager` of the W3C's specification; `webLocks` makes one. What it has beyond that is `clientId`, `on`, `close` and `closed`. */
export class LockManager implements AsyncDisposable {
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
    this.#instance = new Instance('LockManager', options, everything, OPTIONS)
    const { prefix = 'web:', timeoutSeconds = 10, clock = systemClock, random = systemRandom } = options
    this.#prefix = checkPrefix(prefix)
    const ttlMs = ttlMsFrom('timeoutSeconds', timeoutSeconds)
    this.#requests = new Requests({ instance: this.#instance, prefix, ttlMs, clock, random })
  }

  /**
   * Asks for the lock, and calls back with it when it is granted; with `ifAvailable`, calls back with `null` if it is not free. The lock is held until what
   * the callback returns has settled. Resolves or rejects with that after the lock was given back. Waits without a limit; `signal` gives up waiting.
   *
   * Never throws, always rejects: with `TypeError` for arguments of the wrong kind; with a `DOMException` named `NotSupportedError` for a name that begins with
   * "-", for options that exclude each other, and for what the driver cannot do; with the signal's reason if it was aborted before the lock was granted;
   * with a `DOMException` named `AbortError` as soon as the lock is stolen, or lost because its lease could not be renewed (`cause` is the
   * `LeaseLostError` then), or taken away by `close`; with `StoreError` if the store cannot be asked at all, and, for `ifAvailable`, if it does not answer: everybody else waits
   * until it does; with `OverloadError` beyond the stated number of requests under way.
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
   * What is held and waited for under this manager's prefix, by every client of the store: a snapshot, which may be out of date when it arrives. It comes after
   * everything that this manager asked for before. Rejects with `StoreError` if the store did not answer.
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

  /** Returns what ends the listening. The same events are on the diagnostics channels `holdfast:<event>`. */
  on<E extends LockEvent>(event: E, listener: LockListener<E>): () => void {
    return this.#instance.events.on(event, listener)
  }

  get closed(): boolean {
    return this.#instance.closed
  }

  /**
   * As when a page goes away: requests that wait are given up, locks that are held are given back, and their promises reject with an `AbortError`. Closes the store
   * if this manager opened it. Later calls reject with an `InvalidStateError`.
   */
  close(): Promise<void> {
    return this.#instance.close()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
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
