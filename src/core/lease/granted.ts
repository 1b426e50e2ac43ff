import type { Grant } from '../driver.ts'
import type { Instant } from '../time/clock.ts'

/** A claim that the store has granted, and when. */
export interface Granted {
  readonly granted: true
  readonly grant: Grant
  /** When the request was sent that the lease is trusted from. */
  readonly sent: Instant
  /** When it was known to be granted. */
  readonly answered: Instant
  /** For how long a request was that was never answered, and may still reach the store: it would set the lease's end to that. */
  readonly unansweredMs: number | undefined
  /** Of a lease that was handed over: what the store's clock showed at least when the request was sent. */
  readonly storeAtMs?: number
}
