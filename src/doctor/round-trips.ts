import type { DistributedLock } from '../primitives/lock/distributed-lock.ts'
import type { Finding } from './finding.ts'

/** How long the store takes to answer. */
export interface RoundTrips {
  readonly count: number
  readonly medianMs: number
  readonly worstMs: number
  /** What a call may take: the worst one and the jitter. A few calls seldom meet the slowest one. */
  readonly slowestMs: number
  /** A TTL that leaves room for answers as slow as these. */
  readonly roomySeconds: number
}

export async function measureRoundTrips(lock: DistributedLock): Promise<RoundTrips> {
  // Connects.
  await lock.ping()
  const timesMs: number[] = []
  const beganMs = performance.now()
  while (timesMs.length < MAX_PINGS && (timesMs.length < MIN_PINGS || performance.now() - beganMs < MEASURE_MS)) {
    const sentMs = performance.now()
    // Acquires and releases.
    await lock.ping()
    timesMs.push((performance.now() - sentMs) / 2)
  }
  return roundTripsOf(timesMs)
}

export function roundTripsOf(timesMs: readonly number[]): RoundTrips {
  const sorted = timesMs.toSorted((a, b) => a - b)
  const [medianMs, worstMs] = [sorted[sorted.length >> 1] ?? 0, sorted.at(-1) ?? 0]
  return {
    count: sorted.length,
    medianMs,
    worstMs,
    slowestMs: worstMs + (worstMs - medianMs),
    roomySeconds: Math.ceil((worstMs * 30) / 1_000),
  }
}

export function aboutRoundTrips({ count, medianMs, worstMs, roomySeconds }: RoundTrips): Finding[] {
  if (worstMs < SLOW_MS) return []
  return [
    {
      code: 'SLOW',
      severity: 'warning',
      what: `A call takes ${medianMs.toFixed(0)} ms, and at worst ${worstMs.toFixed(0)} ms of ${count}.`,
      why: 'A lease is trusted from the moment at which its request is sent. Slow answers use up short leases.',
      fix: `Use leases of at least ${roomySeconds} s, or a store that is nearer.`,
    },
  ]
}

const MAX_PINGS = 10
const MIN_PINGS = 3
/** On a slow store, fewer pings have to do. */
const MEASURE_MS = 2_000
const SLOW_MS = 250
