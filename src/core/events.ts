import { channel } from 'node:diagnostics_channel'
import { checkFunction, checkOneOf } from './arguments.ts'
import { callListener } from './call-listener.ts'
import type { Metadata } from './driver.ts'
import { outsideLocks } from './reentry-context.ts'

/** What an instance tells, to its own listeners and on the diagnostics channel `holdfast:<event>`. */
export interface LockEvents {
  /** A claim was refused and stands in the queue. */
  waiting: { lockName: string; holderId: string; claimId: string }
  acquired: { lockName: string; holderId: string; claimId: string; fencingToken: number; waitedMs: number }
  /** Contention: the answer was no. */
  refused: { lockName: string; holderId: string; claimId: string; waitedMs: number }
  renewed: { lockName: string; holderId: string; claimId: string; fencingToken: number }
  /** One renewal failed. The lease goes on until its own deadline. */
  renewalFailed: { lockName: string; holderId: string; claimId: string; fencingToken: number; error: unknown }
  /** A claim took the lock from whoever held it. The others' instances emit `lost`. */
  stolen: { lockName: string; holderId: string; claimId: string; fencingToken: number; metadata?: Metadata }
  lost: { lockName: string; holderId: string; claimId: string; fencingToken: number; error: Error }
  released: { lockName: string; holderId: string; claimId: string; fencingToken: number; heldMs: number }
  /** The lease was handed over to another process, which emits `restored`. */
  handedOver: { lockName: string; holderId: string; claimId: string; fencingToken: number }
  restored: { lockName: string; holderId: string; claimId: string; fencingToken: number }
  /** A release failed; it is sent again, within bounds, and the lease's own expiry stands behind it. */
  releaseFailed: { lockName: string; holderId: string; claimId: string; error: unknown }
  /** The heartbeat's own thread has ended; its leases are renewed on this one from now on. */
  heartbeatFailed: { error: unknown }
  /** The store's wake-ups could not be listened to. Waiting goes on by polling. */
  listenFailed: { error: unknown }
}

export type LockEvent = keyof LockEvents
export type LockListener<E extends LockEvent> = (event: LockEvents[E]) => void

/**
 * A typed emitter. The event's object is only made when somebody listens, and what a listener throws is a warning.
 */
export class Emitter {
  /** A registration each: a listener that was registered twice is called twice. */
  readonly #listeners = new Map<LockEvent, Set<{ readonly listener: LockListener<never> }>>()

  /** Returns what ends the listening. Throws `InvalidArgumentError` for an event that there is none of. */
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

  emit<E extends LockEvent>(event: E, make: () => LockEvents[E]): void {
    const listeners = this.#listeners.get(event)
    const traced = channels[event]
    if (!traced.hasSubscribers && (listeners === undefined || listeners.size === 0)) return
    const made = make()
    // A diagnostics channel already reports a subscriber's error without passing it on.
    outsideLocks(() => traced.publish(made))
    // A copy: a listener that registers itself again must not be called again for this event.
    for (const registration of [...(listeners ?? [])]) {
      if (!listeners?.has(registration)) continue
      callListener(`a listener of "${event}"`, registration.listener as LockListener<E>, made)
    }
  }
}

const EVENTS = [
  'waiting',
  'acquired',
  'refused',
  'renewed',
  'renewalFailed',
  'stolen',
  'lost',
  'released',
  'handedOver',
  'restored',
  'releaseFailed',
  'heartbeatFailed',
  'listenFailed',
] as const satisfies readonly LockEvent[]

const channels = Object.fromEntries(EVENTS.map((event) => [event, channel(`holdfast:${event}`)])) as Record<
  LockEvent,
  ReturnType<typeof channel>
>
