import type { InspectPage } from '../core/driver.ts'

/**
 * The store's clock, as far as its records prove it. `inspect` does not return the store's time. But what it lists has
 * begun and has not ended: that bounds the difference to the clock of this process. While the difference 0 is possible,
 * it is assumed.
 */
export class StoreClock {
  #offsetMs = 0

  now(localMs: number): number {
    return localMs + this.#offsetMs
  }

  /** Learns from records that were read between two moments on the clock of this process. */
  learn({ leases, waiters }: Pick<InspectPage, 'leases' | 'waiters'>, startedMs: number, endedMs: number): void {
    let least = -MAX_OFFSET_MS
    let most = MAX_OFFSET_MS
    const beganAt = (ms: number): void => {
      if (ms - endedMs > least && ms - endedMs < MAX_OFFSET_MS) least = ms - endedMs
    }
    for (const { acquiredAtMs, expiresAtMs } of leases) {
      beganAt(acquiredAtMs)
      if (expiresAtMs === undefined) continue
      const before = expiresAtMs - startedMs
      if (before < most && before > -MAX_OFFSET_MS) most = before
    }
    for (const { waitingSinceMs } of waiters) beganAt(waitingSinceMs)
    const nearest = Math.min(Math.max(0, least), most)
    // A record that contradicts the others was written by a client with a wrong clock.
    this.#offsetMs = least > most ? 0 : nearest
  }
}

/** A difference beyond this is not a clock that is a little wrong. Records that would prove it are ignored. */
const MAX_OFFSET_MS = 3_600_000
