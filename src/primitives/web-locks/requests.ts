import type { ClaimRequest, Holder } from '../../core/claim/holder.ts'
import { AbortedError, ClosedError, LeaseLostError, StoreError, UnsupportedError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import { backoffMs } from '../../core/time/backoff.ts'
import type { Clock } from '../../core/time/clock.ts'
import { pause } from '../../core/time/pause.ts'
import type { Random } from '../../core/time/random.ts'
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
  readonly clock: Clock
  readonly random: Random
}

/** The specification's "request a lock": from the arguments, which have been checked, to the promise's end. */
export class Requests {
  readonly order = new RequestOrder()
  readonly #parts: RequestsParts
  /** Those that wait, in the order in which they were made: all that is known of them where the store has no queue. */
  readonly #pending = new Set<Omit<LockInfo, 'clientId'>>()

  readonly #long = new Set<{ readonly lockName: string; readonly name: string }>()

  constructor(parts: RequestsParts) {
    this.#parts = parts
  }

  /** By lock name, those that are too long to be told by it, of whatever is under way or held. */
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
    // Between the grant and this it may have run out, or been stolen.
    ending.checkHeld(lease)
    try {
      const result = await Promise.race([invoke(callback, createLock(name, mode, lease)), ending.tooEarly])
      ending.checkHeld(lease)
      await this.#release(lockName, lease, ending)
      // The release may find out that the store had ended it before.
      if (lease.lossError !== undefined) throw ending.lost(lease)
      return result
    } finally {
      if (lease.held) await this.#release(lockName, lease, ending)
    }
  }

  /** Undefined: it is not available. `isBehind`: another request of this manager waits for the name. */
  async #acquire(
    claim: ClaimRequest,
    ending: Ending,
    { isBehind, asked }: { isBehind: boolean; asked: () => void },
  ): Promise<HeldLease | undefined> {
    const { signal } = claim
    const ifAvailable = claim.waitMs === 0
    const holder = this.#parts.instance.holder ?? (await this.#open(claim))
    const { queue, steal } = holder.store.driver.capabilities
    // Without a queue the store does not know of those who wait here.
    if (ifAvailable && isBehind && !queue) return undefined
    signal?.throwIfAborted()
    asked()
    for (;;) {
      const result = await holder.acquire({ ...claim, watchesLoss: steal }, ending.ended)
      if (result.granted) return result.lease
      // Nobody waits for so long; if somebody does, it waits again.
      if (ifAvailable) return undefined
    }
  }

  /** A store that is down need not be down for ever, and whoever may wait for the lock may wait for the store. */
  async #open({ waitMs, signal, watcher }: ClaimRequest): Promise<Holder> {
    const { instance, clock, random } = this.#parts
    for (let tries = 1; ; tries += 1) {
      try {
        return await instance.open()
      } catch (error) {
        if (waitMs === 0 || !(error instanceof StoreError) || !error.retryable) throw error
        watcher?.unanswered()
        await pause(clock, backoffMs(REOPEN, tries, random), signal)
        signal?.throwIfAborted()
      }
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

  /** A release that the store did not answer is sent again in the background. */
  async #release(lockName: string, lease: HeldLease, ending?: Ending): Promise<void> {
    if (ending !== undefined) ending.isOver = true
    await this.order.after(lockName, lease[Symbol.asyncDispose]())
  }
}

/** What ends a lock before its callback has: it is stolen, lost, or closed. */
class Ending {
  /** Rejects; or stays as it is for ever. */
  readonly tooEarly: Promise<never>
  /** From here on it is the request itself that ends the lease. */
  isOver = false
  readonly #name: string
  #reject!: (reason: DOMException) => void

  constructor(name: string) {
    this.#name = name
    this.tooEarly = new Promise((_, reject) => {
      this.#reject = reject
    })
    // Where nobody asks any more, it is nobody's unhandled rejection.
    this.tooEarly.catch(() => {})
  }

  readonly ended = (lease: HeldLease): void => {
    if (!this.isOver) this.#reject(this.lost(lease))
  }

  /** Asked before the callback and when it is done: the time may have run out although no timer has told so yet. */
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

/** As WebIDL invokes a callback that returns a promise: what it throws is a rejection, what it returns is resolved. */
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
const REOPEN = { firstMs: 50, maxMs: 2_000 }
