import type { Refusal } from '../driver.ts'
import type { SentCall } from '../store/calls.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Clock } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler } from '../time/scheduler.ts'

// When a waiting claim sends its next request, if no wake-up comes before. Times are on the monotonic clock.

export interface TimingParts {
  readonly clock: Clock
  readonly random: Random
  readonly scheduler: Scheduler
}

interface PollState {
  readonly refusal: Refusal
  /** How many requests the claim has sent. */
  readonly tries: number
  /** Whether wake-ups arrive, so that polling is only the fallback. */
  readonly isSubscribed: boolean
  /** How long the store keeps the claim's place in the queue after its last request. */
  readonly waiterTtlMs: number
}

/** After a refusal: when the store said that asking again may help, or the next poll, whichever is sooner. */
export function pollAtMs({ clock, random, scheduler }: TimingParts, state: PollState): number {
  const { refusal, tries, isSubscribed, waiterTtlMs } = state
  // The slow poll behind the wake-ups. It also keeps the place in the queue, so it runs three times in a waiter's TTL.
  const slowPollMs = waiterTtlMs / 3
  const hintMs =
    refusal.askAgainMs === undefined ? Number.POSITIVE_INFINITY : Math.max(refusal.askAgainMs + 1, MIN_POLL_MS)
  const delayMs = Math.min(hintMs, isSubscribed ? slowPollMs : backoffMs(POLL, tries, random))
  const atMs = clock.now().monotonicMs + delayMs
  return delayMs < slowPollMs ? atMs : scheduler.round(atMs, slowPollMs / 4)
}

/**
 * After a failed request. Claims that failed in one call retry at the same moment, so that they go out in one list
 * again, in the same order.
 */
export function retryAtMs({ clock, random }: TimingParts, call: SentCall | undefined, tries: number): number {
  const atMs = call?.retryAtMs ?? clock.now().monotonicMs + backoffMs(POLL, tries, random)
  if (call !== undefined) call.retryAtMs = atMs
  return atMs
}

/** While no wake-ups arrive, and for failed requests. */
const POLL = { firstMs: 20, maxMs: 1_000 }
const MIN_POLL_MS = 2
