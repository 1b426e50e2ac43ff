import { earlier, type Instant, later } from '../time/clock.ts'

/** Subtracted from a lease's time, because clocks run at slightly different rates: 1 % and 2 ms. */
const marginMs = (ttlMs: number): number => ttlMs * 0.01 + 2

/**
 * Rule 2: a lease is trusted from the moment at which its request was sent. The store begins to count later; how much
 * later is not known.
 */
export const trustedUntil = (sent: Instant, ttlMs: number): Instant => later(sent, ttlMs - marginMs(ttlMs))

/** The inverse: a grant of `ttlMs` that would be trusted until `deadline`, and when the store's own lease would end. */
export const grantFrom = (deadline: Instant, ttlMs: number): { readonly sent: Instant; readonly endsAtMs: number } => {
  const sent = later(deadline, marginMs(ttlMs) - ttlMs)
  return { sent, endsAtMs: sent.monotonicMs + ttlMs }
}

/**
 * Until when a lease can be relied on, while renewals of different lengths may be under way and arrive in any order.
 *
 * A store sets the end of a lease to exactly what a renewal says. So the answer to one renewal proves no more than the shortest of all
 * that were under way at the same time, because that one may have arrived after it; and a renewal whose answer never
 * came may still arrive at any later moment.
 */
export class LeaseDeadline {
  #deadline: Instant
  #endsAtMs: number
  /** The shortest of what was sent and never answered. */
  #unansweredMs: number
  /** Made with the first renewal: most leases end before one is due. */
  #inFlight: InFlight[] | undefined

  constructor({ sent, grantedMs: ttlMs, unansweredMs = Number.POSITIVE_INFINITY }: DeadlineStart) {
    this.#unansweredMs = unansweredMs
    this.#deadline = trustedUntil(sent, ttlMs)
    this.#endsAtMs = sent.monotonicMs + ttlMs
  }

  get deadline(): Instant {
    return this.#deadline
  }

  /** When the store's own lease ends at the earliest, on the monotonic clock. */
  get endsAtMs(): number {
    return this.#endsAtMs
  }

  get unansweredMs(): number {
    return this.#unansweredMs
  }

  /** Before a renewal leaves: from now on the lease may end as early as it says. */
  sending(sent: Instant, ttlMs: number): InFlight {
    const renewal: InFlight = { sent, ttlMs, sureMs: ttlMs }
    this.#inFlight ??= []
    for (const other of this.#inFlight) {
      other.sureMs = Math.min(other.sureMs, ttlMs)
      renewal.sureMs = Math.min(renewal.sureMs, other.ttlMs)
    }
    this.#inFlight.push(renewal)
    this.#deadline = earlier(this.#deadline, trustedUntil(sent, ttlMs))
    this.#endsAtMs = Math.min(this.#endsAtMs, sent.monotonicMs + ttlMs)
    return renewal
  }

  confirmed(renewal: InFlight): void {
    this.#settle(renewal)
    const sureMs = Math.min(renewal.sureMs, this.#unansweredMs)
    const deadline = trustedUntil(renewal.sent, sureMs)
    // A renewal that was sent before one that is already confirmed proves nothing new.
    if (deadline.monotonicMs <= this.#deadline.monotonicMs) return
    this.#deadline = deadline
    this.#endsAtMs = renewal.sent.monotonicMs + sureMs
  }

  unanswered(renewal: InFlight): void {
    this.#settle(renewal)
    this.#unansweredMs = Math.min(this.#unansweredMs, renewal.ttlMs)
  }

  #settle(renewal: InFlight): void {
    this.#inFlight = this.#inFlight?.filter((each) => each !== renewal)
  }
}

/** What is known of a lease when it begins. */
export interface DeadlineStart {
  /** When the winning request was sent. */
  readonly sent: Instant
  readonly grantedMs: number
  /** The time to live of an earlier request for the same lease whose answer never came. It may still arrive, and set the lease's end to that. */
  readonly unansweredMs?: number
}

export interface InFlight {
  readonly sent: Instant
  readonly ttlMs: number
  /** The shortest of all that were under way together with it, itself included. */
  sureMs: number
}
