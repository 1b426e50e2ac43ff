import type { StopListening } from '../driver.ts'
import { AFTER_OUTAGE, backoffMs } from '../time/backoff.ts'
import type { Clock, Timer } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Calls } from './calls.ts'

export interface SubscriptionParts {
  readonly clock: Clock
  readonly random: Random
  readonly calls: Calls
}

interface SubscriptionUse {
  /** Subscribes at the driver. Undefined if the driver cannot. */
  open: ((disconnected: (cause: Error) => void) => Promise<StopListening>) | undefined
  isNeeded(): boolean
  /** It broke and is open again. Messages may have been missed. */
  reopened(): void
  failed(error: unknown): void
}

/** One subscription to the store: it stays open for a while after it was needed last, and reopens when it breaks. */
export class Subscription {
  readonly #parts: SubscriptionParts
  readonly #use: SubscriptionUse
  #opening: Promise<number | undefined> | undefined
  #openedAtMs: number | undefined
  #stop: StopListening | undefined
  /** Increases with every end, so that a subscription that ends while it still opens is stopped once it is open. */
  #generation = 0
  #tries = 0
  #idleTimer: Timer | undefined
  #retryTimer: Timer | undefined
  #closed = false

  constructor(parts: SubscriptionParts, use: SubscriptionUse) {
    this.#parts = parts
    this.#use = use
  }

  /** Whether a message may arrive now. It stays true between two tries to subscribe. */
  get active(): boolean {
    return this.#opening !== undefined
  }

  /** Since when messages arrive, on the monotonic clock. Undefined while they do not. */
  get openedAtMs(): number | undefined {
    return this.#openedAtMs
  }

  /**
   * Opens the subscription unless it is open. Resolves with `openedAtMs`, or with undefined if the driver has no
   * messages or the subscription fails. Never rejects.
   */
  open(): Promise<number | undefined> {
    this.#opening ??= this.#open()
    return this.#opening
  }

  /** It is needed again, and does not end soon. */
  keep(): void {
    this.#idleTimer?.cancel()
    this.#idleTimer = undefined
  }

  stopWhenIdle(): void {
    if (this.#opening === undefined || this.#use.isNeeded()) return
    this.#idleTimer?.cancel()
    this.#idleTimer = this.#parts.clock.setTimer(() => {
      if (!this.#use.isNeeded()) void this.#end()
    }, IDLE_MS)
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#idleTimer?.cancel()
    await this.#end()
  }

  async #open(): Promise<number | undefined> {
    const { calls, clock } = this.#parts
    const { open } = this.#use
    if (open === undefined || this.#closed) return undefined
    let hasEnded = false
    const generation = this.#generation
    // Once, and not after the end of this subscription: there may be the next one by then.
    const disconnected = (cause: unknown): void => {
      if (hasEnded) return
      hasEnded = true
      if (generation === this.#generation) this.#disconnected(cause)
    }
    try {
      const stop = await calls.run('listen', () => open(disconnected), { late: (stopLate) => this.#stopNow(stopLate) })
      if (hasEnded) return undefined
      if (this.#closed || generation !== this.#generation) {
        this.#stopNow(stop)
        return undefined
      }
      this.#stop = stop
      this.#tries = 0
      this.#openedAtMs = clock.now().monotonicMs
      return this.#openedAtMs
    } catch (error) {
      disconnected(error)
      return undefined
    }
  }

  /** Messages may have been missed. Subscribes again after a pause. */
  #disconnected(cause: unknown): void {
    this.#stop = undefined
    this.#openedAtMs = undefined
    if (this.#closed) return
    this.#use.failed(cause)
    // Until the retry, `open` reports that there is no subscription.
    this.#opening = Promise.resolve(undefined)
    this.#tries += 1
    this.#retryTimer?.cancel()
    this.#retryTimer = this.#parts.clock.setTimer(
      () => {
        this.#opening = undefined
        if (!this.#use.isNeeded()) return
        void this.open().then((openedAtMs) => {
          if (openedAtMs !== undefined) this.#use.reopened()
        })
      },
      backoffMs(AFTER_OUTAGE, this.#tries, this.#parts.random),
    )
  }

  async #end(): Promise<void> {
    const stop = this.#stop
    // It would open a second subscription beside the next one, and nothing would ever end the first of them.
    this.#retryTimer?.cancel()
    this.#stop = undefined
    this.#opening = undefined
    this.#openedAtMs = undefined
    this.#generation += 1
    await stop?.().catch((error: unknown) => this.#use.failed(error))
  }

  #stopNow(stop: StopListening): void {
    stop().catch((error: unknown) => this.#use.failed(error))
  }
}

/** How long a subscription outlives its last use, so that a busy lock does not subscribe again for every wait. */
const IDLE_MS = 1_000
