import type { LossReason } from '../core/events.ts'
import { systemClock } from '../core/time/clock.ts'
import { type Handlers, listen, type Unchecked } from './listen.ts'
import type { GaugeReading, Sink } from './metrics.ts'
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
  const locks = new Set<string>()
  const held = new Population()
  const waiters = new Population()
  const stop = listen(handlersFor({ sink, templateOf: templateFinder(templates), locks, held, waiters }), instances)
  for (const operation of OPERATIONS) sink.add('store.errors', [operation], 0)
  sink.add('heartbeat.failures', [], 0)
  return {
    gauges() {
      const now = nowMs()
      const ageOf = (sinceMs = now): number => Math.max(0, now - sinceMs) / 1_000
      return [
        ...[...held.read(locks)].flatMap(({ group, count, sinceMs }): GaugeReading[] => [
          { id: 'lock.held', values: [group], value: count },
          { id: 'lock.longest_hold', values: [group], value: ageOf(sinceMs) },
        ]),
        ...[...waiters.read(locks)].flatMap(({ group, count, sinceMs }): GaugeReading[] => [
          { id: 'lock.waiters', values: [group], value: count },
          { id: 'lock.longest_wait', values: [group], value: ageOf(sinceMs) },
        ]),
      ]
    },
    close() {
      stop()
      held.clear()
      waiters.clear()
    },
  }
}

const OPERATIONS = ['open', 'acquire', 'renew', 'release', 'listen', 'consume'] as const
const REASONS: readonly LossReason[] = ['expired', 'missing', 'force-released', 'session', 'failed']
const LOCK_COUNTERS = [
  ...(['lock.contentions', 'lock.refusals', 'lock.handoffs'] as const),
  ...(['lock.forced_releases', 'lock.renewal.failures', 'lock.release.failures'] as const),
]

const nowMs = (): number => systemClock.now().monotonicMs

interface Measured {
  readonly sink: Sink
  readonly templateOf: (name: string) => string
  /** The templates of the locks of which an event was seen. */
  readonly locks: Set<string>
  readonly held: Population
  readonly waiters: Population
}

function handlersFor({ sink, templateOf, locks, held, waiters }: Measured): Handlers {
  /** The template of a lock. With the first event of a template, its counters appear, with 0. */
  const lockOf = (lockName: string): string => {
    const lock = templateOf(lockName)
    if (locks.has(lock)) return lock
    locks.add(lock)
    for (const id of LOCK_COUNTERS) sink.add(id, [lock], 0)
    for (const reason of REASONS) sink.add('lock.losses', [lock, reason], 0)
    return lock
  }
  const ended = (lock: string, outcome: 'acquired' | 'refused' | 'failed', waitedMs: number): void =>
    sink.record('lock.wait.duration', [lock, outcome], waitedMs / 1_000)
  const letGo = (claimId: string, lock: string, outcome: 'released' | 'lost' | 'handed_over', heldMs: number): void => {
    held.remove(claimId)
    sink.record('lock.hold.duration', [lock, outcome], heldMs / 1_000)
  }

  return {
    waiting({ lockName, claimId }) {
      const lock = lockOf(lockName)
      sink.add('lock.contentions', [lock], 1)
      waiters.add(claimId, lock, nowMs())
    },
    acquired({ lockName, claimId, waitedMs }) {
      const lock = lockOf(lockName)
      if (waiters.remove(claimId)) sink.add('lock.handoffs', [lock], 1)
      ended(lock, 'acquired', waitedMs)
      held.add(claimId, lock, nowMs())
    },
    refused({ lockName, claimId, waitedMs }) {
      const lock = lockOf(lockName)
      if (!waiters.remove(claimId)) sink.add('lock.contentions', [lock], 1)
      sink.add('lock.refusals', [lock], 1)
      ended(lock, 'refused', waitedMs)
    },
    acquireFailed({ lockName, claimId, waitedMs }) {
      waiters.remove(claimId)
      ended(lockOf(lockName), 'failed', waitedMs)
    },
    restored({ lockName, claimId }) {
      held.add(claimId, lockOf(lockName), nowMs())
    },
    renewed: ({ lockName, tookMs }) => sink.record('lock.renewal.duration', [lockOf(lockName)], tookMs / 1_000),
    renewalFailed({ lockName }) {
      sink.add('lock.renewal.failures', [lockOf(lockName)], 1)
      sink.add('store.errors', ['renew'], 1)
    },
    released: ({ lockName, claimId, heldMs }) => letGo(claimId, lockOf(lockName), 'released', heldMs),
    handedOver: ({ lockName, claimId, heldMs }) => letGo(claimId, lockOf(lockName), 'handed_over', heldMs),
    lost({ lockName, claimId, heldMs, reason }) {
      const lock = lockOf(lockName)
      sink.add('lock.losses', [lock, reason], 1)
      letGo(claimId, lock, 'lost', heldMs)
    },
    releaseFailed({ lockName, claimId }) {
      // The process no longer relies on the lease, although the store may keep it until it expires.
      held.remove(claimId)
      sink.add('lock.release.failures', [lockOf(lockName)], 1)
      sink.add('store.errors', ['release'], 1)
    },
    forceReleased: ({ lockName }) => sink.add('lock.forced_releases', [lockOf(lockName)], 1),
    heartbeatFailed: () => sink.add('heartbeat.failures', [], 1),
    listenFailed: () => sink.add('store.errors', ['listen'], 1),
    storeFailed: ({ operation }) => sink.add('store.errors', [operation], 1),
    consumed({ key, allowed }) {
      const template = templateOf(key)
      sink.add('ratelimit.decisions', [template, 'allowed'], allowed ? 1 : 0)
      sink.add('ratelimit.decisions', [template, 'denied'], allowed ? 0 : 1)
    },
  }
}

/**
 * What exists now: the leases that are held, or the claims that wait, by their claim's id. An id is counted once and
 * removed once, so that neither a repeated event nor one whose beginning was not seen makes the count drift.
 */
export class Population {
  readonly #members = new Map<string, Member>()

  add(id: string, group: string, nowMs: number): void {
    // A map keeps the order of insertion, and the last one is the youngest.
    this.#members.delete(id)
    this.#members.set(id, { group, sinceMs: nowMs })
  }

  /** Returns whether it was there. */
  remove(id: string): boolean {
    return this.#members.delete(id)
  }

  clear(): void {
    this.#members.clear()
  }

  /**
   * The size of each group, and since when its oldest member is there. Counted here and not with each event: a server
   * reads this a few times a minute, and locks come and go thousands of times a second.
   */
  read(groups: Iterable<string>): Iterable<GroupReading> {
    const readings = new Map<string, GroupReading>()
    for (const group of groups) readings.set(group, { group, count: 0, sinceMs: undefined })
    for (const { group, sinceMs } of this.#members.values()) {
      const reading = readings.get(group) as GroupReading
      reading.count += 1
      reading.sinceMs ??= sinceMs
    }
    return readings.values()
  }
}

interface Member {
  readonly group: string
  readonly sinceMs: number
}

interface GroupReading {
  readonly group: string
  count: number
  sinceMs: number | undefined
}
