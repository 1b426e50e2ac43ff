import type { LossReason } from '../core/events.ts'
import { systemClock } from '../core/time/clock.ts'
import { type Handlers, listen, type Unchecked } from './listen.ts'
import type { GaugeReading, Sink } from './metrics.ts'
import { Population } from './population.ts'
import { templateFinder } from './templates.ts'

export interface Recording {
  /** The gauges as they are now. */
  gauges(): readonly GaugeReading[]
  /** Ends it. All gauges are 0 from then on: what happens to a lease is not seen any more. */
  close(): void
}

/**
 * Turns events into measurements for `sink`.
 *
 * @throws `InvalidArgumentError`
 */
export function recordMetrics({ templates, instances }: Unchecked, sink: Sink): Recording {
  const held = new Population()
  const waiters = new Population()
  const handlers = handlersFor(sink, templateFinder(templates), held, waiters)
  const stop = listen(handlers, instances)
  for (const operation of OPERATIONS) sink.add('storeErrors', [operation], 0)
  sink.add('heartbeatFailures', [], 0)
  return {
    gauges: () => [
      ...readings('held', 'longestHold', held, nowMs()),
      ...readings('waiters', 'longestWait', waiters, nowMs()),
    ],
    close() {
      stop()
      held.clear()
      waiters.clear()
    },
  }
}

const OPERATIONS = ['open', 'acquire', 'renew', 'release', 'listen', 'consume'] as const
const REASONS: readonly LossReason[] = ['expired', 'missing', 'stolen', 'session', 'failed']
const LOCK_COUNTERS = ['contentions', 'refusals', 'handoffs', 'breaks', 'renewalFailures', 'releaseFailures'] as const

const nowMs = (): number => systemClock.now().monotonicMs

function* readings(
  count: 'held' | 'waiters',
  longest: 'longestHold' | 'longestWait',
  population: Population,
  now: number,
): Iterable<GaugeReading> {
  for (const { group, count: value, sinceMs } of population.read()) {
    yield { id: count, values: [group], value }
    yield { id: longest, values: [group], value: sinceMs === undefined ? 0 : Math.max(0, now - sinceMs) / 1_000 }
  }
}

function handlersFor(
  sink: Sink,
  templateOf: (name: string) => string,
  held: Population,
  waiters: Population,
): Handlers {
  const seen = new Set<string>()
  /** The template of a lock. With the first event of a template, its counters appear, with 0. */
  const lockOf = (lockName: string): string => {
    const lock = templateOf(lockName)
    if (seen.has(lock)) return lock
    seen.add(lock)
    held.open(lock)
    waiters.open(lock)
    for (const id of LOCK_COUNTERS) sink.add(id, [lock], 0)
    for (const reason of REASONS) sink.add('losses', [lock, reason], 0)
    return lock
  }
  const ended = (lock: string, outcome: 'acquired' | 'refused' | 'failed', waitedMs: number): void =>
    sink.record('wait', [lock, outcome], waitedMs / 1_000)
  const letGo = (claimId: string, lock: string, outcome: 'released' | 'lost' | 'handed_over', heldMs: number): void => {
    held.remove(claimId)
    sink.record('hold', [lock, outcome], heldMs / 1_000)
  }

  return {
    waiting({ lockName, claimId }) {
      const lock = lockOf(lockName)
      sink.add('contentions', [lock], 1)
      waiters.add(claimId, lock, nowMs())
    },
    acquired({ lockName, claimId, waitedMs }) {
      const lock = lockOf(lockName)
      if (waiters.remove(claimId)) sink.add('handoffs', [lock], 1)
      ended(lock, 'acquired', waitedMs)
      held.add(claimId, lock, nowMs())
    },
    refused({ lockName, claimId, waitedMs }) {
      const lock = lockOf(lockName)
      if (!waiters.remove(claimId)) sink.add('contentions', [lock], 1)
      sink.add('refusals', [lock], 1)
      ended(lock, 'refused', waitedMs)
    },
    acquireFailed({ lockName, claimId, waitedMs }) {
      waiters.remove(claimId)
      ended(lockOf(lockName), 'failed', waitedMs)
    },
    restored({ lockName, claimId }) {
      held.add(claimId, lockOf(lockName), nowMs())
    },
    renewed: ({ lockName, tookMs }) => sink.record('renewal', [lockOf(lockName)], tookMs / 1_000),
    renewalFailed({ lockName }) {
      sink.add('renewalFailures', [lockOf(lockName)], 1)
      sink.add('storeErrors', ['renew'], 1)
    },
    released: ({ lockName, claimId, heldMs }) => letGo(claimId, lockOf(lockName), 'released', heldMs),
    handedOver: ({ lockName, claimId, heldMs }) => letGo(claimId, lockOf(lockName), 'handed_over', heldMs),
    lost({ lockName, claimId, heldMs, reason }) {
      const lock = lockOf(lockName)
      sink.add('losses', [lock, reason], 1)
      letGo(claimId, lock, 'lost', heldMs)
    },
    releaseFailed({ lockName, claimId }) {
      // The process no longer relies on the lease, although the store may keep it until it expires.
      held.remove(claimId)
      sink.add('releaseFailures', [lockOf(lockName)], 1)
      sink.add('storeErrors', ['release'], 1)
    },
    stolen: ({ lockName }) => sink.add('breaks', [lockOf(lockName)], 1),
    heartbeatFailed: () => sink.add('heartbeatFailures', [], 1),
    listenFailed: () => sink.add('storeErrors', ['listen'], 1),
    storeFailed: ({ operation }) => sink.add('storeErrors', [operation], 1),
    consumed({ key, allowed }) {
      const template = templateOf(key)
      sink.add('decisions', [template, 'allowed'], allowed ? 1 : 0)
      sink.add('decisions', [template, 'denied'], allowed ? 0 : 1)
    },
  }
}
