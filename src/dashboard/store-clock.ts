import type { InspectPage } from '../core/driver.ts'

/**
 * The store's clock, as far as its records prove it. `inspect` does not return the store's time. But what it lists has
 * begun and has not ended: that bounds the difference to the clock of this process. While the difference 0 is possible,
 * it is assumed. What a record has proved stays known when it is gone: otherwise the clock would stop until the next
 * lease begins, and then jump.
 */
export class StoreClock {
  #offsetMs = 0
  #bounds = UNKNOWN
  #learnedMs = 0

  now(localMs: number): number {
    return localMs + this.#offsetMs
  }

  /** Learns from records that were read between two moments on the clock of this process. */
  learn(read: Pick<InspectPage, 'leases' | 'waiters'>, startedMs: number, endedMs: number): void {
    const fresh = boundsOf(read, startedMs, endedMs)
    const loosenedMs = Math.max(0, endedMs - this.#learnedMs) * DRIFT
    const both = {
      least: Math.max(fresh.least, this.#bounds.least - loosenedMs),
      most: Math.min(fresh.most, this.#bounds.most + loosenedMs),
    }
    // What contradicts earlier records: one of the clocks was set. What contradicts others of the same reading: it was
    // written by a client with a wrong clock.
    const bounds = [both, fresh].find(({ least, most }) => least <= most) ?? UNKNOWN
    this.#bounds = bounds
    this.#learnedMs = endedMs
    this.#offsetMs = Math.round(Math.min(Math.max(0, bounds.least), bounds.most))
  }
}

/** What the difference is at least and at most. */
interface Bounds {
  readonly least: number
  readonly most: number
}

function boundsOf(
  { leases, waiters }: Pick<InspectPage, 'leases' | 'waiters'>,
  startedMs: number,
  endedMs: number,
): Bounds {
  let { least, most } = UNKNOWN
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
  return { least, most }
}

/** A difference beyond this is not a clock that is a little wrong. Records that would prove it are ignored. */
const MAX_OFFSET_MS = 3_600_000
const UNKNOWN: Bounds = { least: -MAX_OFFSET_MS, most: MAX_OFFSET_MS }
/** How fast a bound is forgotten: clocks drift, and are corrected little by little. */
const DRIFT = 0.001
