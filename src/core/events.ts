import { channel } from 'node:diagnostics_channel'
import { checkFunction, checkOneOf } from './arguments.ts'
import { callListener } from './call-listener.ts'
import type { Metadata } from './driver.ts'
import type { LockInfo } from './lock-info.ts'
import { outsideLocks } from './reentry-context.ts'

/** What every event of a claim has. */
export interface ClaimEvent {
  lockName: string
  holderId: string
  claimId: string
}

/** What every event of a lease has. */
export interface LeaseEvent extends ClaimEvent {
  fencingToken: number
}

/**
 * The events of an instance and their payloads. Each event is emitted to the listeners of the instance and published on
 * the diagnostics channel `holdfast:<event>`.
 */
export interface LockEvents {
  /**
   * A claim is about to be sent. Called in the async context of the caller. One of `acquired`, `refused` and
   * `acquireFailed` follows.
   */
  requested: ClaimEvent & { waits: boolean }
  /**
   * A claim found the lock held, and now waits. Emitted once. `holder` is one of the current holders, if the store
   * shows it. `ahead` is the number of waiters before the claim, if the store has a queue.
   */
  waiting: ClaimEvent & { holder?: LockInfo; ahead?: number }
  /** A claim was granted. */
  acquired: LeaseEvent & { waitedMs: number }
  /** A claim ended without a lease because of contention. `holder` is one of the holders, if the store shows it. */
  refused: ClaimEvent & { waitedMs: number; holder?: LockInfo }
  /** A claim ended with an error: an outage, an abort, a deadlock, or the end of its instance. */
  acquireFailed: ClaimEvent & { waitedMs: number; error: Error }
  /** A function is about to run under a lease, in `withLock` and its siblings. Not emitted for a re-entry. */
  running: LeaseEvent & {
    /**
     * Puts a function around the one that runs under the lease. It must call what it is passed exactly once.
     *
     * @internal
     */
    wrap: (around: Around) => void
  }
  /** The store confirmed a renewal. `tookMs`: how long that took. */
  renewed: LeaseEvent & { tookMs: number }
  /** One renewal failed. The lease is held until its deadline, and renewals continue. */
  renewalFailed: LeaseEvent & { error: unknown }
  /**
   * This instance took the lock from its holders, by a claim or by `forceRelease`. Their instances emit `lost`. With a
   * driver that ends leases one by one (`redlock`, `postgres-advisory`), `claimId` and `fencingToken` are those of the
   * lease that was ended.
   */
  forceReleased: LeaseEvent & { metadata?: Metadata }
  /**
   * A lease ended before it was released. `error` is the reason of the lease's `signal`, and `reason` the kind of loss.
   * `heldMs`: how long it was held.
   */
  lost: LeaseEvent & { heldMs: number; reason: LossReason; error: Error }
  /** A lease was released. `heldMs`: how long it was held. */
  released: LeaseEvent & { heldMs: number }
  /** A lease was handed over to another process, which emits `restored`. `heldMs`: how long it was held here. */
  handedOver: LeaseEvent & { heldMs: number }
  /** A lease that another process had handed over continues in this instance. */
  restored: LeaseEvent
  /** A release failed. It is sent again a limited number of times. If all of them fail, the lease expires. */
  releaseFailed: ClaimEvent & { error: unknown }
  /** The heartbeat's worker thread has ended. From now on this thread renews its leases. */
  heartbeatFailed: { error: unknown }
  /**
   * The subscription to the store's messages failed. Until it works again, waiting claims poll, and a holder learns of
   * a forced release with its next renewal.
   */
  listenFailed: { error: unknown }
  /**
   * The store could not be opened, or did not answer a claim or a step of a rate limiter. A claim that waits tries
   * again. Renewals, releases and subscriptions that fail have events of their own.
   */
  storeFailed: { operation: 'open' | 'acquire' | 'consume'; error: unknown }
  /** A rate limiter has decided. `fallback`: its store did not answer, and the limiter's `fallback` decided. */
  consumed: { key: string; cost: number; allowed: boolean; fallback: boolean }
}

/**
 * Why a lease was lost. `expired`: it was not renewed in time. `missing`: the store no longer had it, also because of a
 * forced release of which no message arrived. `force-released`: another client has ended it by force. `session`: the
 * connection that carried it has ended. `failed`: the driver failed.
 */
export type LossReason = 'expired' | 'missing' | 'force-released' | 'session' | 'failed'

type Around = <T>(run: () => Promise<T>) => Promise<T>

/** The name of an event. */
export type LockEvent = keyof LockEvents
export type LockListener<E extends LockEvent> = (event: LockEvents[E]) => void

/** A typed emitter. A listener that throws causes a warning. */
export class Emitter {
  /** One object for each registration: a listener that is registered twice is called twice. */
  readonly #listeners = new Map<LockEvent, Set<{ readonly listener: LockListener<never> }>>()

  /**
   * Returns a function that removes the listener.
   *
   * @throws `InvalidArgumentError` for an unknown event, and for a listener that is not a function
   */
  on<E extends LockEvent>(event: E, listener: LockListener<E>): () => void {
    checkOneOf('event', event, EVENTS)
    checkFunction('listener', listener)
    const listeners = this.#listeners.get(event) ?? new Set()
    this.#listeners.set(event, listeners)
    const registration = { listener }
    listeners.add(registration)
    return () => {
      listeners.delete(registration)
    }
  }

  /**
   * The function that emits the event, or undefined if nothing listens. So `heard('renewed')?.({ … })` makes the
   * payload only for a listener.
   */
  heard<E extends LockEvent>(event: E): ((payload: LockEvents[E]) => void) | undefined {
    const listeners = this.#listeners.get(event)
    const isHeard = channels[event].hasSubscribers || (listeners !== undefined && listeners.size > 0)
    return isHeard ? (payload) => this.#emit(event, payload) : undefined
  }

  #emit<E extends LockEvent>(event: E, payload: LockEvents[E]): void {
    // A diagnostics channel reports the error of a subscriber by itself and does not throw it.
    outsideLocks(() => channels[event].publish(payload))
    const listeners = this.#listeners.get(event)
    // A copy, so that a listener that registers itself again is not called twice for one event.
    for (const registration of [...(listeners ?? [])]) {
      if (!listeners?.has(registration)) continue
      callListener(`a listener of "${event}"`, registration.listener as LockListener<E>, payload)
    }
  }
}

const EVENTS = [
  'requested',
  'waiting',
  'acquired',
  'refused',
  'acquireFailed',
  'running',
  'renewed',
  'renewalFailed',
  'forceReleased',
  'lost',
  'released',
  'handedOver',
  'restored',
  'releaseFailed',
  'heartbeatFailed',
  'listenFailed',
  'storeFailed',
  'consumed',
] as const satisfies readonly LockEvent[]

const channels = Object.fromEntries(EVENTS.map((event) => [event, channel(`holdfast:${event}`)])) as Record<
  LockEvent,
  ReturnType<typeof channel>
>
