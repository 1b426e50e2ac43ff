import { earlier, type Instant, later } from '../time/clock.ts'

/** The margin for clocks that run at slightly different rates: 1 % of the TTL + 2 ms. */
const marginMs = (ttlMs: number): number => ttlMs * 0.01 + 2

/**
 * Rule 2: a lease is trusted from the moment at which its request was sent. The store starts to count later, and the
 * client does not know how much later.
 */
export const trustedUntil = (sent: Instant, ttlMs: number): Instant => later(sent, ttlMs - marginMs(ttlMs))

/**
 * The inverse of `trustedUntil`: the request that would be trusted until `deadline`.
 *
 * @returns when that request was sent, and when the lease in the store would end on the monotonic clock
 */
export const grantFrom = (deadline: Instant, ttlMs: number): { readonly sent: Instant; readonly endsAtMs: number } => {
  const sent = later(deadline, marginMs(ttlMs) - ttlMs)
  return { sent, endsAtMs: sent.monotonicMs + ttlMs }
}

/**
 * Until when a lease can be relied on, while renewals with different TTLs may be in flight and arrive in any order.
 *
 * A renewal sets the end of the lease in the store to exactly its own TTL from its arrival. So the answer to a renewal
 * proves no more than the shortest TTL of all renewals that were in flight at the same time: the shortest may have
 * arrived last. A renewal without an answer may still arrive at any later moment.
 */
export class LeaseDeadline {
  #deadline: Instant
  #endsAtMs: number
  /** The shortest TTL that was sent and never answered. */
  #unansweredMs: number
  /** Created with the first renewal: most leases end before one is due. */
  #inFlight: RenewalInFlight[] | undefined

  constructor({ sent, grantedMs: ttlMs, unansweredMs = Number.POSITIVE_INFINITY }: DeadlineStart) {
    this.#unansweredMs = unansweredMs
    this.#deadline = trustedUntil(sent, ttlMs)
    this.#endsAtMs = sent.monotonicMs + ttlMs
  }

  get deadline(): Instant {
    return this.#deadline
  }

  /** The earliest moment at which the lease in the store can end, on the monotonic clock. */
  get endsAtMs(): number {
    return this.#endsAtMs
  }

  get unansweredMs(): number {
    return this.#unansweredMs
  }

  /** Call it before a renewal is sent: from then on the lease may end as early as the renewal says. */
  sending(sent: Instant, ttlMs: number): RenewalInFlight {
    const renewal: RenewalInFlight = { sent, ttlMs, provenMs: ttlMs }
    this.#inFlight ??= []
    for (const other of this.#inFlight) {
      other.provenMs = Math.min(other.provenMs, ttlMs)
      renewal.provenMs = Math.min(renewal.provenMs, other.ttlMs)
    }
    this.#inFlight.push(renewal)
    this.#deadline = earlier(this.#deadline, trustedUntil(sent, ttlMs))
    this.#endsAtMs = Math.min(this.#endsAtMs, sent.monotonicMs + ttlMs)
    return renewal
  }

  confirmed(renewal: RenewalInFlight): void {
    this.#settle(renewal)
    const provenMs = Math.min(renewal.provenMs, this.#unansweredMs)
    const deadline = trustedUntil(renewal.sent, provenMs)
    // A renewal that was sent before one that is already confirmed proves nothing new.
    if (deadline.monotonicMs <= this.#deadline.monotonicMs) return
    this.#deadline = deadline
    this.#endsAtMs = renewal.sent.monotonicMs + provenMs
  }

  unanswered(renewal: RenewalInFlight): void {
    this.#settle(renewal)
    this.#unansweredMs = Math.min(this.#unansweredMs, renewal.ttlMs)
  }

  #settle(renewal: RenewalInFlight): void {
    this.#inFlight = this.#inFlight?.filter((each) => each !== renewal)
  }
}

/** What the client knows about a lease when the lease begins. */
export interface DeadlineStart {
  /** When the request that was granted was sent. */
  readonly sent: Instant
  readonly grantedMs: number
  /**
   * The TTL of an earlier request for the same lease that was never answered. It may still arrive, and then sets the
   * lease to end this long after its arrival.
   */
  readonly unansweredMs?: number
}

export interface RenewalInFlight {
  readonly sent: Instant
  readonly ttlMs: number
  /**
   * What its answer proves: the shortest TTL of all renewals that were in flight together with it, its own included.
   */
  provenMs: number
}
