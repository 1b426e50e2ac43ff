import { earlier, type Instant, later } from '../time/clock.ts'

/** The margin for clocks that run at slightly different rates: 1 % of the TTL + 2 ms. */
const marginMs = (ttlMs: number): number => ttlMs * 0.01 + 2

/**
 * Rule 2 of docs/explanation/safety.md: a lease is trusted from the moment at which its request was sent. The store
 * starts to count later, and the client does not know how much later.
 */
export function trustedUntil(sent: Instant, ttlMs: number): Instant {
  // All requests of a list have one `sent`. Their leases share one deadline, too, which is 4 % of what a lease retains.
  if (sent !== last.sent || ttlMs !== last.ttlMs) last = { sent, ttlMs, deadline: later(sent, ttlMs - marginMs(ttlMs)) }
  return last.deadline
}

let last: { readonly sent?: Instant; readonly ttlMs: number; readonly deadline: Instant } = {
  ttlMs: 0,
  deadline: { monotonicMs: 0, wallMs: 0 },
}

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
export class LeaseDeadline<Renewal extends RenewalInFlight = RenewalInFlight> {
  #deadline: Instant
  // A field whose first value is no small integer is updated in place. Otherwise each update allocates a number.
  #endsAtMs = Number.POSITIVE_INFINITY
  /** The shortest TTL that was sent and never answered: before this object was made, and since. */
  #inheritedMs: number
  #unansweredMs = Number.POSITIVE_INFINITY
  /** Undefined while there is none, which is most of the time. */
  #inFlight: Renewal[] | undefined

  constructor({ sent, grantedMs: ttlMs, unansweredMs = Number.POSITIVE_INFINITY }: DeadlineStart) {
    this.#inheritedMs = unansweredMs
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
    return Math.min(this.#inheritedMs, this.#unansweredMs)
  }

  /** It is known now which TTLs were never answered before this object was made. */
  inherit(unansweredMs: number): void {
    this.#inheritedMs = unansweredMs
  }

  /** Renewals that were sent and have not been answered. Undefined if there are none. */
  get inFlight(): readonly Renewal[] | undefined {
    return this.#inFlight
  }

  /** Call it before a renewal is sent: from then on the lease may end as early as the renewal says. */
  sending(renewal: Renewal): void {
    const { sent, ttlMs } = renewal
    if (this.#inFlight === undefined) {
      this.#inFlight = [renewal]
    } else {
      for (const other of this.#inFlight) {
        renewal.provenMs = Math.min(renewal.provenMs, other.ttlMs)
        other.provenMs = Math.min(other.provenMs, ttlMs)
      }
      this.#inFlight = [...this.#inFlight, renewal]
    }
    const trustedMs = ttlMs - marginMs(ttlMs)
    const { monotonicMs, wallMs } = this.#deadline
    // Usually it is later on both clocks, and the deadline stays the same object.
    if (sent.monotonicMs + trustedMs < monotonicMs || sent.wallMs + trustedMs < wallMs) {
      this.#deadline = earlier(this.#deadline, trustedUntil(sent, ttlMs))
    }
    this.#endsAtMs = Math.min(this.#endsAtMs, sent.monotonicMs + ttlMs)
  }

  confirmed(renewal: Renewal): void {
    this.#settle(renewal)
    const provenMs = Math.min(renewal.provenMs, this.unansweredMs)
    const deadline = trustedUntil(renewal.sent, provenMs)
    // A renewal that was sent before one that is already confirmed proves nothing new.
    if (deadline.monotonicMs <= this.#deadline.monotonicMs) return
    this.#deadline = deadline
    this.#endsAtMs = renewal.sent.monotonicMs + provenMs
  }

  unanswered(renewal: Renewal): void {
    this.#settle(renewal)
    this.#unansweredMs = Math.min(this.#unansweredMs, renewal.ttlMs)
  }

  #settle(renewal: Renewal): void {
    const others = this.#inFlight?.length === 1 ? [] : this.#inFlight?.filter((each) => each !== renewal)
    this.#inFlight = others?.length === 0 ? undefined : others
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
