import type { Random } from './random.ts'

export interface Backoff {
  readonly firstMs: number
  readonly mostMs: number
}

/**
 * Exponential with full-range jitter, capped: the wait before try number `tries` (counted from 1) lies between half of
 * and the whole of `firstMs × 2^(tries − 1)`. The random half keeps processes that failed together from trying together.
 */
export function backoffMs({ firstMs, mostMs }: Backoff, tries: number, random: Random): number {
  const ceiling = Math.min(mostMs, firstMs * 2 ** Math.min(tries - 1, 30))
  return ceiling / 2 + (ceiling / 2) * random.fraction()
}
