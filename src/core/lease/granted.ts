import type { Grant } from '../driver.ts'
import type { Instant } from '../time/clock.ts'

/** A claim that the store has granted, and when. */
export interface Granted {
  readonly granted: true
  readonly grant: Grant
  /** When the request was sent. The lease is trusted from this moment. */
  readonly sent: Instant
  /** When this process learned of the grant. */
  readonly answered: Instant
  /**
   * The TTL of an earlier request that was never answered. It may still reach the store, and then sets the lease to end
   * this long after its arrival.
   */
  readonly unansweredMs: number | undefined
  /**
   * Only for a lease that was handed over: a lower bound of the store's clock when the request was sent. For any other
   * lease this is `acquiredAtMs`.
   */
  readonly storeAtMs?: number
}
