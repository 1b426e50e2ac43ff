import type { Claim, Driver, DriverListener, Grant, Refusal, StopListening } from '../driver.ts'
import type { HoldfastError } from '../errors.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Clock, Timer } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { CallDeadlines } from './call-deadlines.ts'

/** A claim that waits, as the listening sees it. */
export interface Waiter {
  readonly claim: Claim
  /** A hint to ask again. */
  wake(): void
  /** The store granted it by itself. */
  granted(grant: Grant): void
  /** It has come to the front of the process's own line and may ask. `before` was there until now. */
  lead(before: Waiter): void
  /**
   * What the store last said to it, or to those who asked before it in the same line: no, or nothing, which is an error. Undefined before the first
   * answer.
   */
  readonly outlook: Refusal | HoldfastError | undefined
  /** Since when those who led the line, up to it, have had no answer, on the monotonic clock. Undefined for the first, and once it has one. */
  readonly silentSinceMs: number | undefined
}

export interface WakeUpParts {
  readonly driver: Driver
  readonly clock: Clock
  readonly random: Random
  readonly calls: CallDeadlines
}

/** One subscription for all that wait or watch in this process. It begins with the first of them, outlives the last a little, and heals itself. */
export class WakeUps {
  /** Called when wake-ups cannot be listened to. */
  readonly onFailed = new Set<(error: unknown) => void>()
  readonly #parts: WakeUpParts
  readonly #waiters = new Map<string, Set<Waiter>>()
  readonly #waitersByClaim = new Map<string, Waiter>()
  readonly #leasesByClaim = new Map<string, (cause: Error) => void>()
  #begun: Promise<number | undefined> | undefined
  /** Since when wake-ups arrive, on the monotonic clock. */
  #sinceMs: number | undefined
  #stopListening: StopListening | undefined
  /** Which listening is meant: one that ended while it was still beginning is stopped as soon as it has begun. */
  #generation = 0
  #tries = 0
  #idleTimer: Timer | undefined
  #retryTimer: Timer | undefined
  #closed = false

  constructor(parts: WakeUpParts) {
    this.#parts = parts
  }

  /** Whether a message could come now. */
  get active(): boolean {
    return this.#begun !== undefined
  }

  /** True if the waiter may ask at once: where the store has no queue, only the first of this process contends. */
  join(waiter: Waiter): boolean {
    const { lockName, claimId } = waiter.claim
    const line = this.#waiters.get(lockName) ?? new Set()
    this.#waiters.set(lockName, line)
    line.add(waiter)
    this.#waitersByClaim.set(claimId, waiter)
    this.#idleTimer?.cancel()
    this.#idleTimer = undefined
    return this.#parts.driver.capabilities.queue || line.size === 1
  }

  leave(waiter: Waiter): void {
    const { lockName, claimId } = waiter.claim
    const line = this.#waiters.get(lockName)
    if (line === undefined || !line.has(waiter)) return
    const [first] = line
    line.delete(waiter)
    this.#waitersByClaim.delete(claimId)
    if (line.size === 0) this.#waiters.delete(lockName)
    if (first === waiter && !this.#parts.driver.capabilities.queue) {
      const [next] = line
      next?.lead(waiter)
    }
    if (this.#waiters.size === 0) this.#stopWhenIdle()
  }

  /** The one that asks for all of this process's waiters on a name, where the store has no queue. */
  first(lockName: string): Waiter | undefined {
    const [first] = this.#waiters.get(lockName) ?? []
    return first
  }

  /** Since when wake-ups arrive. Undefined while they do not, so that whoever waits has to poll. */
  get sinceMs(): number | undefined {
    return this.#sinceMs
  }

  /** To be told at once when the store itself ends a lease. Listens as long as somebody watches. Returns what ends the watching. */
  watchLoss(claimId: string, lost: (cause: Error) => void): () => void {
    this.#leasesByClaim.set(claimId, lost)
    void this.begin()
    return () => {
      this.#leasesByClaim.delete(claimId)
      if (this.#waiters.size === 0) this.#stopWhenIdle()
    }
  }

  /**
   * Makes sure that wake-ups arrive. Resolves with the moment (monotonic) since which they do, or with undefined where the
   * driver has none or could not listen just now.
   */
  begin(): Promise<number | undefined> {
    this.#begun ??= this.#begin()
    return this.#begun
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

  async #begin(): Promise<number | undefined> {
    const { driver, calls, clock } = this.#parts
    if (driver.listen === undefined || this.#closed) return undefined
    let disconnected = false
    const generation = this.#generation
    const listener: DriverListener = {
      concerns: (claimId) => this.#waitersByClaim.has(claimId) || this.#leasesByClaim.has(claimId),
      wake: (lockName, claimId) => this.wake(lockName, claimId),
      granted: (claimId, grant) => this.#waitersByClaim.get(claimId)?.granted(grant),
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
      this.#sinceMs = clock.now().monotonicMs
      return this.#sinceMs
    } catch (error) {
      this.#disconnected(error)
      return undefined
    }
  }

  /** Wake-ups may have been missed: listens again after a pause, and then everybody looks again. */
  #disconnected(cause: unknown): void {
    this.#stopListening = undefined
    this.#sinceMs = undefined
    if (this.#closed) return
    this.#tellFailed(cause)
    // Until then, whoever asks gets "not listening" and polls.
    this.#begun = Promise.resolve(undefined)
    this.#tries += 1
    this.#retryTimer?.cancel()
    this.#retryTimer = this.#parts.clock.setTimer(
      () => {
        this.#begun = undefined
        if (this.#waiters.size === 0 && this.#leasesByClaim.size === 0) return
        void this.begin().then((since) => {
          if (since !== undefined) for (const lockName of [...this.#waiters.keys()]) this.wake(lockName)
        })
      },
      backoffMs(RETRY, this.#tries, this.#parts.random),
    )
  }

  #tellFailed(error: unknown): void {
    for (const tell of this.onFailed) tell(error)
  }

  #stopWhenIdle(): void {
    if (this.#begun === undefined || this.#leasesByClaim.size > 0) return
    this.#idleTimer?.cancel()
    this.#idleTimer = this.#parts.clock.setTimer(() => {
      if (this.#waiters.size === 0 && this.#leasesByClaim.size === 0) void this.#end()
    }, LINGER_MS)
  }

  async #end(): Promise<void> {
    const stop = this.#stopListening
    this.#stopListening = undefined
    this.#begun = undefined
    this.#sinceMs = undefined
    this.#generation += 1
    await stop?.().catch((error: unknown) => this.#tellFailed(error))
  }

  #stop(stop: StopListening): void {
    stop().catch((error: unknown) => this.#tellFailed(error))
  }
}

const RETRY = { firstMs: 50, mostMs: 2_000 }

/** How long a subscription outlives its last waiter, so that a busy lock does not subscribe anew for every wait. */
const LINGER_MS = 1_000
