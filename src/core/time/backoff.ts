import type { Random } from './random.ts'

export interface Backoff {
  readonly firstMs: number
  readonly maxMs: number
}

/**
 * Capped exponential backoff with equal jitter. After try number `tries` (counted from 1) the delay lies between 50 %
 * and 100 % of `firstMs × 2^(tries − 1)`, which is at most `maxMs`. The random half spreads the retries of processes
 * that failed at the same time.
 */
export function backoffMs({ firstMs, maxMs }: Backoff, tries: number, random: Random): number {
  const ceiling = Math.min(maxMs, firstMs * 2 ** Math.min(tries - 1, 30))
  return ceiling / 2 + (ceiling / 2) * random.fraction()
}

/** Between two tries to reach a store that is down. */
export const AFTER_OUTAGE: Backoff = { firstMs: 50, maxMs: 2_000 }
