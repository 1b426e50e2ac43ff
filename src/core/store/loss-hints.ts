import type { Driver } from '../driver.ts'
import { LOSS_CHECKS_PER_SECOND, MAX_LOSS_CHECKS, MAX_LOSS_HINTS } from '../limits.ts'
import type { Timer } from '../time/clock.ts'
import { Subscription, type SubscriptionParts } from './subscription.ts'

export interface LossHintParts extends SubscriptionParts {
  readonly driver: Driver
}

/**
 * Passes on which leases may have been ended by force, and returns how many leases were checked because of it: at most
 * `most`. The hints are by claim id.
 */
export type LossHintReceiver = (hints: ReadonlyMap<string, Error>, most: number) => number

/**
 * Messages that a lease was ended by force. They are hints, because any client may be able to send one: a holder that
 * has such a lease renews it at once, and loses it if the store says so.
 *
 * One subscription serves all leases of the process, and nothing is kept for each of them: when a hint arrives, the
 * holders search their leases. So a flood of forged messages must not cost a search and a renewal each. Hints that
 * arrive together are one search, and the number of renewals in a second is bounded.
 */
export class LossHints {
  readonly receivers = new Set<LossHintReceiver>()
  readonly #parts: LossHintParts
  readonly #subscription: Subscription
  #users = 0
  #hints = new Map<string, Error>()
  #timer: Timer | undefined
  /** A token bucket: how many more leases may be checked. */
  #allowed = MAX_LOSS_CHECKS
  #lastRoundMs = Number.NEGATIVE_INFINITY

  constructor(parts: LossHintParts) {
    const { driver } = parts
    this.#parts = parts
    this.#subscription = new Subscription(parts, {
      what: 'watch',
      open:
        driver.watch &&
        ((disconnected) => (driver as Required<Driver>).watch({ lost: (...hint) => this.add(...hint), disconnected })),
      isNeeded: () => this.#users > 0,
      forbiddenMs: FORBIDDEN_MS,
    })
  }

  /** Called when the subscription fails. */
  get onFailed(): Set<(error: unknown) => void> {
    return this.#subscription.onFailed
  }

  /** Subscribes, if the driver can, until the function that it returns is called. */
  watch(): () => void {
    this.#users += 1
    this.#subscription.keep()
    void this.#subscription.open()
    return () => {
      this.#users -= 1
      this.#subscription.stopWhenIdle()
    }
  }

  add(claimId: string, cause: Error): void {
    if (this.#hints.size >= MAX_LOSS_HINTS) return
    this.#hints.set(claimId, cause)
    if (this.#timer !== undefined) return
    const restMs = this.#lastRoundMs + ROUND_MS - this.#nowMs()
    if (restMs <= 0) this.#round()
    else this.#timer = this.#parts.clock.setTimer(this.#round, restMs)
  }

  async close(): Promise<void> {
    this.#timer?.cancel()
    this.receivers.clear()
    await this.#subscription.close()
  }

  readonly #round = (): void => {
    const nowMs = this.#nowMs()
    const refilled = ((nowMs - this.#lastRoundMs) / 1_000) * LOSS_CHECKS_PER_SECOND
    this.#allowed = Math.min(MAX_LOSS_CHECKS, this.#allowed + refilled)
    this.#lastRoundMs = nowMs
    this.#timer = undefined
    const hints = this.#hints
    this.#hints = new Map()
    for (const receive of this.receivers) this.#allowed -= receive(hints, Math.floor(this.#allowed))
  }

  #nowMs(): number {
    return this.#parts.clock.now().monotonicMs
  }
}

/** The least time between two searches. */
const ROUND_MS = 50
/** After a permanent error, such as a missing privilege. Renewals find the loss meanwhile. */
const FORBIDDEN_MS = 60_000
