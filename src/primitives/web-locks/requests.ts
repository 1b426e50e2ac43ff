import type { ClaimRequest } from '../../core/claim/holder.ts'
import { AbortedError, ClosedError, LeaseLostError, UnsupportedError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import type { Instance } from '../instance.ts'
import type { Arguments, RequestOptions } from './arguments.ts'
import { domException } from './dom-exception.ts'
import { createLock } from './lock.ts'
import { lockNameOf, nameMetadata } from './names.ts'
import { RequestOrder } from './order.ts'
import type { LockInfo } from './types.ts'

export interface RequestsParts {
  readonly instance: Instance
  readonly prefix: string
  readonly ttlMs: number
}

/** "Request a lock" of the specification: from the checked arguments to the settled promise. */
export class Requests {
  readonly order = new RequestOrder()
  readonly #parts: RequestsParts
  /** The waiting requests in their order. Without a queue, the store does not know them. */
  readonly #pending = new Set<Omit<LockInfo, 'clientId'>>()

  readonly #long = new Set<{ readonly lockName: string; readonly name: string }>()

  constructor(parts: RequestsParts) {
    this.#parts = parts
  }

  /** The resource names that are too long for a lock name, by lock name, of all requests in flight and held locks. */
  get longNames(): ReadonlyMap<string, string> {
    return new Map([...this.#long].map(({ lockName, name }) => [lockName, name]))
  }

  get pending(): Iterable<Omit<LockInfo, 'clientId'>> {
    return this.#pending
  }

  run(request: Arguments): Promise<unknown> {
    const { prefix } = this.#parts
    const { name } = request
    if (nameMetadata(prefix, name) === undefined) return this.#run(request)
    const long = { lockName: lockNameOf(prefix, name), name }
    this.#long.add(long)
    return this.#run(request).finally(() => this.#long.delete(long))
  }

  async #run({ name, options, callback }: Arguments): Promise<unknown> {
    const { prefix } = this.#parts
    const { mode, ifAvailable, signal } = options
    const lockName = lockNameOf(prefix, name)
    const ending = new Ending(name)
    const request = { name, mode }
    const isBehind = ifAvailable && [...this.#pending].some((each) => each.name === name)
    this.#pending.add(request)
    const lease = await this.order
      .run(lockName, { signal, waits: !ifAvailable }, async ({ asked, placed, unanswered }) => {
        const withdrawing = (work: Promise<void>): void => void this.order.after(lockName, work)
        const claim = { ...this.#claim(name, lockName, options), watcher: { placed, unanswered, withdrawing } }
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
    // Since the grant, the lease may have expired or been stolen.
    ending.checkHeld(lease)
    try {
      const result = await Promise.race([invoke(callback, createLock(name, mode, lease)), ending.tooEarly])
      ending.checkHeld(lease)
      await this.#release(lockName, lease, ending)
      // The release may find out that the store had ended the lease before.
      if (lease.lossError !== undefined) throw ending.lost(lease)
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
  ): Promise<HeldLease | undefined> {
    const { signal } = claim
    const ifAvailable = claim.waitMs === 0
    const { instance } = this.#parts
    // A request that may wait for the lock also waits for a store that is down.
    const patience = { waitMs: claim.waitMs, signal, onOutage: claim.watcher?.unanswered }
    const holder = instance.holder ?? (await instance.openWithRetry(patience))
    signal?.throwIfAborted()
    // Only an abort ends the patience without a holder.
    if (holder === undefined) return undefined
    const { queue, steal } = holder.capabilities
    // Without a queue the store does not know the requests that wait here.
    if (ifAvailable && isBehind && !queue) return undefined
    asked()
    for (;;) {
      const result = await holder.acquire({ ...claim, watchesLoss: steal }, ending.ended)
      if (result.granted) return result.lease
      if (ifAvailable) return undefined
      // The waiting time of 285,000 years is over: wait again.
    }
  }

  #claim(name: string, lockName: string, { mode, ifAvailable, steal, signal }: RequestOptions): ClaimRequest {
    const { prefix, ttlMs } = this.#parts
    const metadata = nameMetadata(prefix, name)
    return {
      lockName,
      mode,
      ttlMs,
      waitMs: ifAvailable ? 0 : FOR_EVER_MS,
      heartbeat: true,
      minHoldMs: 0,
      maxHoldMs: Number.POSITIVE_INFINITY,
      ...(metadata && { metadata }),
      ...(signal && { signal }),
      ...(steal && { steal }),
    }
  }

  /** Never throws. A release that the store did not answer is sent again in the background. */
  async #release(lockName: string, lease: HeldLease, ending?: Ending): Promise<void> {
    if (ending !== undefined) ending.isOver = true
    await this.order.after(lockName, lease[Symbol.asyncDispose]())
  }
}

/** The end of a lock before its callback has ended: it is stolen, lost or closed. */
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

  readonly ended = (lease: HeldLease): void => {
    if (!this.isOver) this.#reject(this.lost(lease))
  }

  /** Called before and after the callback: the lease may have expired although no timer has fired yet. */
  checkHeld(lease: HeldLease): void {
    if (!lease.held) throw this.lost(lease)
  }

  lost({ lockName, fencingToken, lossError }: HeldLease): DOMException {
    const closed = lossError?.cause instanceof ClosedError ? new ClosedError('the manager was closed') : undefined
    const cause =
      closed ?? lossError ?? new LeaseLostError(lockName, fencingToken, 'it had ended before it was given back')
    return domException('AbortError', `the lock "${this.#name}" was lost: ${cause.message}`, cause)
  }
}

/** As WebIDL invokes a callback that returns a promise: an exception becomes a rejection. */
async function invoke<Given>(callback: (lock: Given) => unknown, lock: Given): Promise<unknown> {
  return callback(lock)
}

function asRejection(error: unknown, signal: AbortSignal | undefined): unknown {
  if (error instanceof AbortedError && signal !== undefined) return signal.reason
  if (error instanceof ClosedError) return domException('AbortError', 'the manager was closed', error)
  if (error instanceof UnsupportedError) return domException('NotSupportedError', error.message, error)
  return error
}

const FOR_EVER_MS = Number.MAX_SAFE_INTEGER
