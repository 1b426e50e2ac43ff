import type { ClaimRequest } from '../../core/claim/holder.ts'
import { AbortedError, ClosedError, LeaseLostError, UnsupportedError } from '../../core/errors.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import type { Instance } from '../instance.ts'
import { type Arguments, argumentsFrom, checkRequest, domException, type RequestOptions } from './arguments.ts'
import {
  createLock,
  type LockGrantedCallback,
  type LockManagerSnapshot,
  type WebLockInfo,
  type WebLockOptions,
} from './lock.ts'
import { storedName } from './names.ts'
import { RequestOrder } from './order.ts'
import { snapshot } from './snapshot.ts'

export interface LockManagerParts {
  readonly instance: Instance
  readonly prefix: string
  readonly ttlMs: number
}

/** The only way to make a `LockManager`. */
export let createLockManager: (parts: LockManagerParts) => LockManager

/**
 * The `LockManager` of the W3C specification, and nothing else. See `WebLocks`, which makes one.
 *
 * @example
 * ```ts
 * await using web = new WebLocks({ url: 'redis://localhost:6379' })
 * await web.locks.request('report', { ifAvailable: true }, async (lock) => {
 *   if (lock !== null) await createReport(lock.fencingToken)
 * })
 * ```
 */
export class LockManager {
  static {
    createLockManager = (parts) => new LockManager(INTERNAL, parts)
    // The shape of an interface that WebIDL describes. A class differs in these points.
    for (const [operation, length] of [
      ['request', 2],
      ['query', 0],
    ] as const) {
      Object.defineProperty(LockManager.prototype, operation, { enumerable: true })
      Object.defineProperty(LockManager.prototype[operation], 'length', { value: length })
      Object.setPrototypeOf(LockManager.prototype[operation], Function.prototype)
    }
    Object.defineProperty(LockManager.prototype, Symbol.toStringTag, { value: 'LockManager', configurable: true })
    Object.defineProperty(LockManager, 'length', { value: 0, configurable: true })
  }

  readonly #parts: LockManagerParts
  readonly #order = new RequestOrder()
  /** The waiting requests in their order. Without a queue, the store does not know them. */
  readonly #pending = new Set<Omit<WebLockInfo, 'clientId'>>()
  /** The resource names that are too long for a lock name, of all requests in flight and held locks. */
  readonly #long = new Set<{ readonly lockName: string; readonly name: string }>()

  private constructor(secret: symbol, parts: LockManagerParts) {
    if (secret !== INTERNAL) throw new TypeError('Illegal constructor')
    this.#parts = parts
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
   * - with a `DOMException` named `AbortError` as soon as the lock is taken by `steal`, lost because its lease could
   *   not be renewed (its `cause` is then a `LeaseLostError`), or taken away by `WebLocks.close`;
   * - with a `StoreError` if asking the store again cannot help; with `ifAvailable`, also if the store does not answer.
   *   All other requests wait until it does;
   * - with an `OverloadError` if too many requests are in flight;
   * - with a `DOMException` named `InvalidStateError` after `close`.
   */
  request<T>(name: string, callback: LockGrantedCallback<T>): Promise<Awaited<T>>
  request<T>(name: string, options: WebLockOptions, callback: LockGrantedCallback<T>): Promise<Awaited<T>>
  async request(...args: unknown[]): Promise<unknown> {
    // First: it rejects for any other `this`.
    const { instance } = this.#parts
    const request = argumentsFrom(args)
    assertOpen(instance)
    checkRequest(request.name, request.options)
    const stored = storedName(this.#parts.prefix, request.name)
    if (stored.metadata === undefined) return this.#request(request, stored)
    const long = { lockName: stored.lockName, name: request.name }
    this.#long.add(long)
    return this.#request(request, stored).finally(() => this.#long.delete(long))
  }

  /**
   * Resolves with the held locks and the waiting requests of all clients under this manager's prefix. It reflects
   * everything that this manager asked for before. It may be out of date when it arrives.
   *
   * @throws `StoreError` if the store did not answer
   * @throws a `DOMException` named `InvalidStateError` after `close`
   */
  async query(): Promise<LockManagerSnapshot> {
    const { instance, prefix } = this.#parts
    assertOpen(instance)
    await this.#order.settled()
    const longNames = new Map([...this.#long].map(({ lockName, name }) => [lockName, name]))
    return snapshot({ holder: await instance.open(), prefix, pending: this.#pending, longNames })
  }

  /** "Request a lock" of the specification: from the checked arguments to the settled promise. */
  async #request({ name, options, callback }: Arguments, stored: ReturnType<typeof storedName>): Promise<unknown> {
    const { lockName } = stored
    const { mode, ifAvailable, signal } = options
    const ending = new Ending(name)
    const request = { name, mode }
    const isBehind = ifAvailable && [...this.#pending].some((each) => each.name === name)
    this.#pending.add(request)
    const lease = await this.#order
      .run(lockName, { signal, waits: !ifAvailable }, async ({ asked, placed, unanswered }) => {
        const withdrawing = (work: Promise<void>): void => void this.#order.after(lockName, work)
        const claim = { ...this.#claim(stored, options), watcher: { placed, unanswered, withdrawing } }
        return this.#acquire(claim, ending, { isBehind, asked })
      })
      .catch((error: unknown) => {
        throw asRejection(error, signal)
      })
      .finally(() => this.#pending.delete(request))
    if (lease === undefined) return invoke(callback, null)
    if (signal?.aborted) {
      void this.#release(lockName, lease)
      throw signal.reason
    }
    // Since the grant, the lease may have expired or been force-released.
    ending.checkHeld(lease)
    try {
      const result = await Promise.race([invoke(callback, createLock(name, mode, lease)), ending.tooEarly])
      ending.checkHeld(lease)
      await this.#release(lockName, lease, ending)
      // The release may find out that the store had ended the lease before.
      if (lease.stopReason !== undefined) throw ending.lost(lease)
      return result
    } finally {
      if (lease.held) await this.#release(lockName, lease, ending)
    }
  }

  /** Undefined: the lock is not available. `isBehind`: another request of this manager waits for the name. */
  async #acquire(
    claim: ClaimRequest,
    ending: Ending,
    { isBehind, asked }: { isBehind: boolean; asked: () => void },
  ): Promise<LeaseUse | undefined> {
    const { signal } = claim
    const ifAvailable = claim.patienceMs === 0
    const { instance } = this.#parts
    // A request that may wait for the lock also waits for a store that is down.
    const holder = instance.holder ?? (await instance.openFor(claim, claim.watcher?.unanswered))
    signal?.throwIfAborted()
    const { queue, force } = holder.capabilities
    // Without a queue the store does not know the requests that wait here.
    if (ifAvailable && isBehind && !queue) return undefined
    asked()
    for (;;) {
      const use = await holder.acquire({ ...claim, listensForLoss: force === 'claim' }, (end) => {
        if (!(end instanceof LeaseUse)) return undefined
        end.onEnd = () => ending.ended(end)
        return end
      })
      if (use !== undefined) return use
      if (ifAvailable) return undefined
      // The waiting time of 285,000 years is over: wait again.
    }
  }

  #claim(stored: ReturnType<typeof storedName>, { mode, ifAvailable, steal, signal }: RequestOptions): ClaimRequest {
    return {
      ...stored,
      mode,
      ttlMs: this.#parts.ttlMs,
      patienceMs: ifAvailable ? 0 : FOR_EVER_MS,
      heartbeat: true,
      minHoldMs: 0,
      maxHoldMs: Number.POSITIVE_INFINITY,
      ...(signal && { signal }),
      ...(steal && { forceUpTo: Number.MAX_SAFE_INTEGER }),
    }
  }

  /** Never throws. A release that the store did not answer is sent again in the background. */
  async #release(lockName: string, lease: LeaseUse, ending?: Ending): Promise<void> {
    if (ending !== undefined) ending.isOver = true
    await this.#order.release(lockName, () => lease[Symbol.asyncDispose](), this.#parts.instance.clock)
  }
}

/** The end of a lock before its callback has ended: it is taken by `steal`, lost or closed. */
class Ending {
  /** Rejects or stays pending. */
  readonly tooEarly: Promise<never>
  /** True once the request itself releases the lease. */
  isOver = false
  readonly #name: string
  #reject!: (reason: DOMException) => void

  constructor(name: string) {
    this.#name = name
    this.tooEarly = new Promise((_, reject) => {
      this.#reject = reject
    })
    // A rejection that comes after the request has settled is not an unhandled one.
    this.tooEarly.catch(() => {})
  }

  readonly ended = (lease: LeaseUse): void => {
    if (!this.isOver) this.#reject(this.lost(lease))
  }

  /** Called before and after the callback: the lease may have expired although no timer has fired yet. */
  checkHeld(lease: LeaseUse): void {
    if (!lease.held) throw this.lost(lease)
  }

  lost({ lockName, fencingToken, stopReason }: LeaseUse): DOMException {
    const closed = stopReason?.cause instanceof ClosedError ? new ClosedError('the locks were closed') : undefined
    const cause =
      closed ?? stopReason ?? new LeaseLostError(lockName, fencingToken, 'it had ended before it was given back')
    return domException('AbortError', `the lock "${this.#name}" was lost: ${cause.message}`, cause)
  }
}

/** As WebIDL invokes a callback that returns a promise: an exception becomes a rejection. */
async function invoke<Given>(callback: (lock: Given) => unknown, lock: Given): Promise<unknown> {
  return callback(lock)
}

function asRejection(error: unknown, signal: AbortSignal | undefined): unknown {
  if (error instanceof AbortedError && signal !== undefined) return signal.reason
  if (error instanceof ClosedError) return domException('AbortError', 'the locks were closed', error)
  if (error instanceof UnsupportedError) return domException('NotSupportedError', error.message, error)
  return error
}

const FOR_EVER_MS = Number.MAX_SAFE_INTEGER

function assertOpen({ closed }: Instance): void {
  if (closed) throw domException('InvalidStateError', 'these locks are closed')
}

const INTERNAL = Symbol('internal')
