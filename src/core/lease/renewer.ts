import type { LeaseRef } from '../driver.ts'
import type { Emitter, LeaseEvent, LossReason } from '../events.ts'
import type { StoreClient } from '../store/store-client.ts'
import { type Clock, dueAtMs, type Instant } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler } from '../time/scheduler.ts'
import type { DeadlineStart } from './deadline.ts'

/** Renews the leases of one instance: on its event loop (`local-renewer.ts`) or in a thread (`heartbeat-thread.ts`). */
export interface Heartbeat {
  createRenewer(lease: Renewable, start: RenewerStart, options: RenewerOptions): Renewer
  close(): Promise<void>
}

export interface RenewerOptions {
  readonly heartbeat: boolean
  /** How long after the request for the lease renewals stop. Infinite without `maxHoldSeconds`. */
  readonly maxHoldMs: number
}

/** What the client knows about a lease when the lease begins, and when it learned of it. */
export interface RenewerStart extends DeadlineStart {
  readonly answered: Instant
}

/** A lease, as its renewer sees it. */
export interface Renewable {
  readonly ttlMs: number
  readonly ref: Required<LeaseRef>
  readonly held: boolean
  readonly eventBase: LeaseEvent
  lose(loss: Loss): void
}

/** Why a lease was lost. */
export interface Loss {
  readonly kind: LossReason
  /** The end of the error's message. */
  readonly message: string
  readonly cause?: unknown
}

/** Sends all renewals of one lease, and knows until when the lease can be relied on. */
export interface Renewer {
  readonly deadline: Instant
  /** Why the lease is lost, if the deadline has passed. */
  readonly loss: Loss
  /** The earliest moment at which the lease in the store can end, on the monotonic clock. */
  readonly endsAtMs: number
  /** A renewal that was never answered may still arrive. None of them has a shorter TTL than this. */
  readonly unansweredMs: number
  /**
   * Renews once, for a caller.
   *
   * @returns false if the lease is lost
   * @throws `StoreError` if the result is unknown
   */
  renew(ttlMs: number, mode: RenewMode): Promise<boolean>
  /** Starts to renew the lease regularly, if it does not already. */
  startHeartbeat(): void
  /** Stops to renew the lease regularly. */
  stopHeartbeat(): void
  /**
   * Asks the store whether it still has the lease. If not, the lease is lost.
   *
   * @returns what the store said, also if the lease has been handed over since. Undefined if it was not asked, because
   * the lease had ended in this process
   * @throws `StoreError` if the result is unknown
   */
  confirm(): Promise<boolean | undefined>
  /**
   * Stops renewing. Resolves when no renewal of the lease is in flight, or undefined if none is. A thread that hangs
   * never resolves it.
   */
  end(): Promise<unknown> | undefined
}

/**
 * - `set`: the lease ends exactly `ttlMs` from now, even if that is sooner than before
 * - `lengthen`: the lease never ends sooner than it would anyway, nor sooner than concurrent extensions ask for
 */
export type RenewMode = 'set' | 'lengthen'

export interface HeartbeatParts {
  readonly clock: Clock
  readonly random: Random
  readonly store: StoreClient
  readonly scheduler: Scheduler
  readonly events: Emitter
  /** Called whenever the deadline of a lease may have changed. The worker thread publishes the deadline. */
  readonly onDeadline?: (lease: Renewable, deadline: Instant) => void
  /** Nothing is renewed while this returns true. The worker thread asks whether the main thread still runs. */
  readonly isPaused?: () => boolean
}

/**
 * Loses a lease that has not ended if it ends before another timer could fire, so that the loss is not reported late.
 */
export function loseIfDue(lease: Renewable, { deadline, loss }: Renewer, now: Instant): boolean {
  if (dueAtMs(deadline, now) - now.monotonicMs > TIMER_GRAIN_MS) return false
  lease.lose(loss)
  return true
}

/** The deadline has passed. */
export const NOT_RENEWED: Loss = { kind: 'expired', message: 'it was not renewed before it expired' }

/** The store has answered that it does not have the lease. */
export const NOT_IN_STORE: Loss = { kind: 'missing', message: 'the store no longer has it' }

export const DRIVER_FAILED: Loss = { kind: 'failed', message: 'the driver failed to renew it' }

/**
 * How late a timer can be, even on an idle machine. Timers fire this much early, so that a loss is not reported late.
 */
export const TIMER_GRAIN_MS = 2

/** How long the heartbeat thread may take for an answer, beside its call to the store. */
export const MAX_ANSWER_MS = 500

/**
 * How much of its TTL a lease has left when nothing renews it. Its heartbeat starts with at least two thirds left, and
 * each step leaves at least a sixth of the TTL for the one before it.
 */
export const LEFT_AT = {
  /** The main thread takes the lease back from the heartbeat thread, and renews it. */
  takeOver: 1 / 2,
  /** `holdfast run` sends SIGTERM to its command. */
  terminate: 1 / 3,
  /** `holdfast run` sends SIGKILL to its command, before another client can be granted the lock. */
  kill: 1 / 10,
} as const
