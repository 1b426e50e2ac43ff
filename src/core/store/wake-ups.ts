import type { Claim, Driver, DriverListener, Grant, Refusal } from '../driver.ts'
import type { HoldfastError } from '../errors.ts'
import { isGrant, trimmed } from '../store-answers.ts'
import { Subscription, type SubscriptionParts } from './subscription.ts'

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

export interface WakeUpParts extends SubscriptionParts {
  readonly driver: Driver
  /** The store may have ended a lease by force: a hint. */
  onLossHint(claimId: string, cause: Error): void
}

/**
 * One subscription to the store for all waiters of this process. With a store whose leases end with a session, it also
 * reports their losses.
 */
export class WakeUps {
  readonly #parts: WakeUpParts
  /** The waiters of each lock name, in the order in which they joined. */
  readonly #waiters = new Map<string, Set<Waiter>>()
  readonly #waitersByClaim = new Map<string, Waiter>()
  readonly #leasesByClaim = new Map<string, (cause: Error) => void>()
  readonly #subscription: Subscription

  constructor(parts: WakeUpParts) {
    const { driver } = parts
    this.#parts = parts
    this.#subscription = new Subscription(parts, {
      what: 'listen',
      open: driver.listen && ((disconnected) => (driver as Required<Driver>).listen(this.#listener(disconnected))),
      isNeeded: () => this.#waiters.size > 0 || this.#leasesByClaim.size > 0,
      reopened: () => {
        for (const lockName of [...this.#waiters.keys()]) this.wake(lockName)
      },
    })
  }

  /** Called when the subscription fails. */
  get onFailed(): Set<(error: unknown) => void> {
    return this.#subscription.onFailed
  }

  /** Whether a message may arrive now. */
  get active(): boolean {
    return this.#subscription.active
  }

  /** Returns whether the waiter may send requests. Where the store has no queue, only the first of this process may. */
  join(waiter: Waiter): boolean {
    const { lockName, claimId } = waiter.claim
    const queue = this.#waiters.get(lockName) ?? new Set()
    this.#waiters.set(lockName, queue)
    queue.add(waiter)
    this.#waitersByClaim.set(claimId, waiter)
    this.#subscription.keep()
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
    if (this.#waiters.size === 0) this.#subscription.stopWhenIdle()
  }

  /** The waiter that sends requests for all of this process's waiters on a name, where the store has no queue. */
  first(lockName: string): Waiter | undefined {
    const [first] = this.#waiters.get(lockName) ?? []
    return first
  }

  /** Since when wake-ups arrive, on the monotonic clock. Undefined while they do not: waiters then have to poll. */
  get subscribedAtMs(): number | undefined {
    return this.#subscription.openedAtMs
  }

  /**
   * For a store whose leases end with a session: calls `lost` when the driver reports that the session of the lease has
   * ended. Keeps the subscription open. Returns a function that stops watching.
   */
  watchSession(claimId: string, lost: (cause: Error) => void): () => void {
    this.#leasesByClaim.set(claimId, lost)
    void this.subscribe()
    return () => {
      this.#leasesByClaim.delete(claimId)
      if (this.#waiters.size === 0) this.#subscription.stopWhenIdle()
    }
  }

  /**
   * Opens the subscription unless it is open. Resolves with `subscribedAtMs`, or with undefined if the driver has no
   * wake-ups or the subscription fails. Never rejects.
   */
  subscribe(): Promise<number | undefined> {
    return this.#subscription.open()
  }

  wake(lockName: string, claimId?: string): void {
    if (claimId !== undefined) {
      this.#waitersByClaim.get(claimId)?.wake()
      return
    }
    for (const waiter of [...(this.#waiters.get(lockName) ?? [])]) waiter.wake()
  }

  close(): Promise<void> {
    return this.#subscription.close()
  }

  #listener(disconnected: (cause: Error) => void): DriverListener {
    return {
      wake: (lockName, claimId) => this.wake(lockName, claimId),
      granted: (claimId, grant) => this.#granted(claimId, grant),
      lost: (claimId, cause) => {
        const lost = this.#leasesByClaim.get(claimId)
        if (lost === undefined) this.#parts.onLossHint(claimId, cause)
        else lost(cause)
      },
      disconnected,
    }
  }

  /** What is not valid as an answer is not valid as a message either. It is a hint to ask. */
  #granted(claimId: string, grant: Grant): void {
    const waiter = this.#waitersByClaim.get(claimId)
    if (waiter === undefined) return
    if (isGrant(grant, this.#parts.driver.capabilities.fencing)) waiter.granted(trimmed(grant, waiter.claim))
    else waiter.wake()
  }
}
