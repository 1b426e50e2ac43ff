import type { LeaseRef } from '../driver.ts'
import type { Emitter } from '../events.ts'
import type { StoreClient } from '../store/store-client.ts'
import { type Clock, dueAtMs, type Instant } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler } from '../time/scheduler.ts'
import type { DeadlineStart } from './deadline.ts'

/** Renews the leases of one instance: on its event loop (`local-renewer.ts`) or in a thread (`renewer-thread.ts`). */
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
  readonly ref: LeaseRef & { readonly fencingToken: number }
  readonly held: boolean
  readonly eventBase: { lockName: string; holderId: string; claimId: string; fencingToken: number }
  lose(reason: string, cause?: unknown): void
}

/** Sends all renewals of one lease, and knows until when the lease can be relied on. */
export interface Renewer {
  readonly deadline: Instant
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
  /** Asks the store whether it still has the lease. Called after a message that says that it has not. */
  check(): void
  /** Stops renewing. Resolves when no renewal of the heartbeat is in flight; undefined if none is. */
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
export function loseIfDue(lease: Renewable, deadline: Instant, now: Instant): boolean {
  if (dueAtMs(deadline, now) - now.monotonicMs > TIMER_GRAIN_MS) return false
  lease.lose(NOT_RENEWED)
  return true
}

/** Why a lease is lost when its deadline passes. */
export const NOT_RENEWED = 'it was not renewed before it expired'

/** Why a lease is lost when the store answers that it does not have it. */
export const NOT_IN_STORE = 'the store no longer has it'

/**
 * How late a timer can be, even on an idle machine. Timers fire this much early, so that a loss is not reported late.
 */
export const TIMER_GRAIN_MS = 2
