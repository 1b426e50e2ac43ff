import type { Claim, Driver, DriverListener, Grant, Refusal, StopListening } from '../driver.ts'
import type { HoldfastError } from '../errors.ts'
import { isGrant, trimmed } from '../store-answers.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Clock, Timer } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { CallDeadlines } from './call-deadlines.ts'

/** A waiting claim. */
export interface Waiter {
  readonly claim: Claim
  /** A hint that another request may succeed. */
  wake(): void
  /** The store has granted the claim without a request. */
  granted(grant: Grant): void
  /** The claim is now the first in this process's own queue, after `previous`, and may send requests. */
  becameFirst(previous: Waiter): void
  /**
   * What the store last answered to this waiter, or to those that were first in the process's queue before it: a
   * refusal, or an error if it did not answer. Undefined before the first answer.
   */
  readonly lastAnswer: Refusal | HoldfastError | undefined
  /**
   * Since when, on the monotonic clock, neither this waiter nor those that were first before it have got an answer.
   * Undefined for a waiter that joined as the first, and from its first answer on.
   */
  readonly unansweredSinceMs: number | undefined
}

export interface WakeUpParts {
  readonly driver: Driver
  readonly clock: Clock
  readonly random: Random
  readonly calls: CallDeadlines
}

/**
 * One subscription to the store for all waiters and watched leases of this process. It opens with the first of them,
 * stays open for a while after the last one, and reopens when it breaks.
 */
export class WakeUps {
  /** Called when the subscription fails. */
  readonly onFailed = new Set<(error: unknown) => void>()
  readonly #parts: WakeUpParts
  /** The waiters of each lock name, in the order in which they joined. */
  readonly #waiters = new Map<string, Set<Waiter>>()
  readonly #waitersByClaim = new Map<string, Waiter>()
  readonly #leasesByClaim = new Map<string, (cause: Error) => void>()
  #subscribing: Promise<number | undefined> | undefined
  #subscribedAtMs: number | undefined
  #stopListening: StopListening | undefined
  /** Increases with every end, so that a subscription that ends while it still opens is stopped once it is open. */
  #generation = 0
  #tries = 0
  #idleTimer: Timer | undefined
  #retryTimer: Timer | undefined
  #closed = false

  constructor(parts: WakeUpParts) {
    this.#parts = parts
  }

  /** Whether a message may arrive now. */
  get active(): boolean {
    return this.#subscribing !== undefined
  }

  /** Returns whether the waiter may send requests. Where the store has no queue, only the first of this process may. */
  join(waiter: Waiter): boolean {
    const { lockName, claimId } = waiter.claim
    const queue = this.#waiters.get(lockName) ?? new Set()
    this.#waiters.set(lockName, queue)
    queue.add(waiter)
    this.#waitersByClaim.set(claimId, waiter)
    this.#idleTimer?.cancel()
    this.#idleTimer = undefined
    return this.#parts.driver.capabilities.queue || queue.size === 1
  }

  leave(waiter: Waiter): void {
    const { lockName, claimId } = waiter.claim
    const queue = this.#waiters.get(lockName)
    if (queue === undefined || !queue.has(waiter)) return
    const [first] = queue
    queue.delete(waiter)
    this.#waitersByClaim.delete(claimId)
    if (queue.size === 0) this.#waiters.delete(lockName)
    if (first === waiter && !this.#parts.driver.capabilities.queue) {
      const [next] = queue
      next?.becameFirst(waiter)
    }
    if (this.#waiters.size === 0) this.#stopWhenIdle()
  }

  /** The waiter that sends requests for all of this process's waiters on a name, where the store has no queue. */
  first(lockName: string): Waiter | undefined {
    const [first] = this.#waiters.get(lockName) ?? []
    return first
  }

  /** Since when wake-ups arrive, on the monotonic clock. Undefined while they do not: waiters then have to poll. */
  get subscribedAtMs(): number | undefined {
    return this.#subscribedAtMs
  }

  /**
   * Calls `lost` when the store reports that it has ended the lease. Keeps the subscription open. Returns a function
   * that stops watching.
   */
  watchLoss(claimId: string, lost: (cause: Error) => void): () => void {
    this.#leasesByClaim.set(claimId, lost)
    void this.subscribe()
    return () => {
      this.#leasesByClaim.delete(claimId)
      if (this.#waiters.size === 0) this.#stopWhenIdle()
    }
  }

  /**
   * Opens the subscription unless it is open. Resolves with `subscribedAtMs`, or with undefined if the driver has no
   * wake-ups or the subscription fails. Never rejects.
   */
  subscribe(): Promise<number | undefined> {
    this.#subscribing ??= this.#subscribe()
    return this.#subscribing
  }

  wake(lockName: string, claimId?: string): void {
    if (claimId !== undefined) {
      this.#waitersByClaim.get(claimId)?.wake()
      return
    }
    for (const waiter of [...(this.#waiters.get(lockName) ?? [])]) waiter.wake()
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#idleTimer?.cancel()
    this.#retryTimer?.cancel()
    await this.#end()
  }

  async #subscribe(): Promise<number | undefined> {
    const { driver, calls, clock } = this.#parts
    if (driver.listen === undefined || this.#closed) return undefined
    let disconnected = false
    const generation = this.#generation
    const listener: DriverListener = {
      concerns: (claimId) => this.#waitersByClaim.has(claimId) || this.#leasesByClaim.has(claimId),
      wake: (lockName, claimId) => this.wake(lockName, claimId),
      granted: (claimId, grant) => this.#granted(claimId, grant),
      lost: (claimId, cause) => this.#leasesByClaim.get(claimId)?.(cause),
      disconnected: (cause) => {
        if (disconnected) return
        disconnected = true
        this.#disconnected(cause)
      },
    }
    try {
      const listen = driver.listen.bind(driver)
      const stop = await calls.run(
        'listen',
        () => listen(listener),
        (stopLate) => this.#stop(stopLate),
      )
      if (disconnected) return undefined
      if (this.#closed || generation !== this.#generation) {
        this.#stop(stop)
        return undefined
      }
      this.#stopListening = stop
      this.#tries = 0
      this.#subscribedAtMs = clock.now().monotonicMs
      return this.#subscribedAtMs
    } catch (error) {
      this.#disconnected(error)
      return undefined
    }
  }

  /** What is not valid as an answer is not valid as a message either. It is a hint to ask. */
  #granted(claimId: string, grant: Grant): void {
    const waiter = this.#waitersByClaim.get(claimId)
    if (waiter === undefined) return
    if (isGrant(grant, this.#parts.driver.capabilities.fencing)) waiter.granted(trimmed(grant, waiter.claim))
    else waiter.wake()
  }

  /** Wake-ups may have been missed. Subscribes again after a pause, and then wakes every waiter. */
  #disconnected(cause: unknown): void {
    this.#stopListening = undefined
    this.#subscribedAtMs = undefined
    if (this.#closed) return
    this.#notifyFailed(cause)
    // Until the retry, `subscribe` reports that there is no subscription, and waiters poll.
    this.#subscribing = Promise.resolve(undefined)
    this.#tries += 1
    this.#retryTimer?.cancel()
    this.#retryTimer = this.#parts.clock.setTimer(
      () => {
        this.#subscribing = undefined
        if (this.#waiters.size === 0 && this.#leasesByClaim.size === 0) return
        void this.subscribe().then((subscribedAtMs) => {
          if (subscribedAtMs !== undefined) for (const lockName of [...this.#waiters.keys()]) this.wake(lockName)
        })
      },
      backoffMs(RETRY, this.#tries, this.#parts.random),
    )
  }

  #notifyFailed(error: unknown): void {
    for (const listener of this.onFailed) listener(error)
  }

  #stopWhenIdle(): void {
    if (this.#subscribing === undefined || this.#leasesByClaim.size > 0) return
    this.#idleTimer?.cancel()
    this.#idleTimer = this.#parts.clock.setTimer(() => {
      if (this.#waiters.size === 0 && this.#leasesByClaim.size === 0) void this.#end()
    }, IDLE_MS)
  }

  async #end(): Promise<void> {
    const stop = this.#stopListening
    this.#stopListening = undefined
    this.#subscribing = undefined
    this.#subscribedAtMs = undefined
    this.#generation += 1
    await stop?.().catch((error: unknown) => this.#notifyFailed(error))
  }

  #stop(stop: StopListening): void {
    stop().catch((error: unknown) => this.#notifyFailed(error))
  }
}

const RETRY = { firstMs: 50, maxMs: 2_000 }

/** How long a subscription outlives its last waiter, so that a busy lock does not subscribe again for every wait. */
const IDLE_MS = 1_000
