import type { Driver, InspectQuery, LeaseRecord } from '../core/driver.ts'
import { pause } from '../core/time/abort.ts'
import { systemClock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'
import type { DistributedLock } from '../primitives/lock/distributed-lock.ts'
import { isBookkeeping } from '../primitives/lock/forced-release-record.ts'
import { inspectStore } from '../primitives/on-driver.ts'
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

export function* aboutRoundTrips({ count, medianMs, worstMs, roomySeconds }: RoundTrips): Generator<Finding> {
  if (worstMs < SLOW_MS) return
  yield {
    code: 'SLOW',
    severity: 'warning',
    what: `A call takes ${medianMs.toFixed(0)} ms, and at worst ${worstMs.toFixed(0)} ms of ${count}.`,
    why: 'A lease is trusted from the moment at which its request is sent. Slow answers use up short leases.',
    fix: `Use leases of at least ${roomySeconds} s, or a store that is nearer.`,
  }
}

/**
 * Compares round trips with the TTLs of the leases in the store. A renewal is sent after a third of the TTL, and again
 * after each further ninth until an answer comes.
 */
export async function aboutTtls(lock: DistributedLock, driver: Driver, trips: RoundTrips): Promise<Finding[]> {
  // Nothing but its connection ends such a lease, however slow the store is.
  if (driver.capabilities.expiry === 'session') return []
  const bounds = { pages: MAX_PAGES, records: MAX_LEASES }
  const look: Look = async (query) => (await inspectStore(driver, query, bounds)).leases
  const storeNowMs = await storeClock(lock)
  const shortest = await shortestLease(look, storeNowMs, trips.slowestMs * RETRIES_PER_TTL)
  return shortest === undefined ? [] : [shortTtl(shortest, trips)]
}

/** A lease, and the duration of its grant or of its last renewal. */
interface TimedLease {
  readonly lockName: string
  readonly ttlMs: number
}

/**
 * The lease with the shortest TTL, if that is below `limitMs`.
 *
 * No store shows a TTL, only the start and the end of a lease. The time between them is the TTL of a lease that has not
 * been renewed, and too long for any other. So leases that end within the limit are watched until their next renewal:
 * the time that is left right after it is the TTL.
 */
async function shortestLease(look: Look, storeNowMs: () => number, limitMs: number): Promise<TimedLease | undefined> {
  const found = await look({ pageSize: MAX_LEASES })
  const beganMs = storeNowMs()
  const watched = found
    .filter((lease) => !isBookkeeping(lease) && !/^(?:doctor|ping):/.test(lease.lockName))
    .map((lease) => watch(lease))
    .filter(({ endMs }) => endMs - beganMs < limitMs)
    .sort((a, b) => a.endMs - b.endMs)
    .slice(0, MAX_WATCHED)
  const names = [...new Set(watched.map(({ lockName }) => lockName))]
  // A renewal comes after a third of the TTL. The rest is for its way to the store.
  const patienceMs = Math.min(limitMs, Math.max(0, ...watched.map(({ spanMs }) => spanMs))) / 2
  while (watched.some(({ renewed }) => !renewed) && storeNowMs() - beganMs < patienceMs) {
    await pause(systemClock, patienceMs / LOOKS)
    const sentMs = storeNowMs()
    const now = (await Promise.all(names.map((lockName) => look({ lockName })))).flat()
    const readMs = (sentMs + storeNowMs()) / 2
    for (const lease of watched) see(lease, now, readMs)
  }
  return watched
    .map(({ lockName, spanMs, leftMs, renewed }) => ({ lockName, ttlMs: renewed ? Math.min(spanMs, leftMs) : spanMs }))
    .filter(({ ttlMs }) => ttlMs > 0 && ttlMs < limitMs)
    .sort((a, b) => a.ttlMs - b.ttlMs)[0]
}

type Look = (query: InspectQuery) => Promise<readonly LeaseRecord[]>

interface Watched {
  readonly lockName: string
  readonly claimId: string
  endMs: number
  /** From the grant to the end: at least the TTL. */
  spanMs: number
  renewed: boolean
  /** How much was left after a renewal. With Redlock, by the clock of the holder: it may be below 0. */
  leftMs: number
}

function watch({ lockName, claimId, acquiredAtMs, expiresAtMs = Number.POSITIVE_INFINITY }: LeaseRecord): Watched {
  return { lockName, claimId, endMs: expiresAtMs, spanMs: expiresAtMs - acquiredAtMs, renewed: false, leftMs: 0 }
}

function see(watched: Watched, now: readonly LeaseRecord[], readMs: number): void {
  const record = now.find(({ lockName, claimId }) => lockName === watched.lockName && claimId === watched.claimId)
  if (record === undefined) return
  const { endMs, spanMs } = watch(record)
  const leftMs = endMs - readMs
  // The end of a lease on Redlock moves by some milliseconds if other nodes answer.
  if (endMs - watched.endMs > leftMs / 20) Object.assign(watched, { renewed: true, leftMs })
  Object.assign(watched, { endMs, spanMs })
}

/** The clock of the store, as a grant shows it. It is wrong by half a round trip at most. */
async function storeClock(lock: DistributedLock): Promise<() => number> {
  const sentMs = performance.now()
  const lease = await lock.hold(`doctor:${systemRandom.id()}`)
  const grantedMs = (sentMs + performance.now()) / 2
  await lease.release()
  return () => lease.acquiredAt.getTime() + performance.now() - grantedMs
}

function shortTtl(
  { lockName, ttlMs }: TimedLease,
  { medianMs, worstMs, slowestMs, roomySeconds }: RoundTrips,
): Finding {
  const isError = slowestMs > ttlMs / 3
  return {
    code: 'SHORT_TTL',
    severity: isError ? 'error' : 'warning',
    what:
      `"${lockName}" has a lease of about ${seconds(ttlMs)} s, the shortest that was found. ` +
      `A call takes ${medianMs.toFixed(0)} ms, and at worst ${worstMs.toFixed(0)} ms.`,
    why: isError
      ? 'An answer may take more than a third of the lease: at most half of the tries to renew it come in time.'
      : 'An answer may take more than a ninth of the lease: tries to renew it overlap, and the last is too late.',
    fix: `Set timeoutSeconds of this lock to ${roomySeconds} or more, or use a store that is nearer.`,
  }
}

const seconds = (ms: number): string => (ms / 1_000).toFixed(ms < 1_000 ? 2 : 1)

/** As the heartbeat does: see src/core/lease/local-renewer.ts. */
const RETRIES_PER_TTL = 9
/** More leases than these are not read, so that a large store is not kept busy. */
const MAX_LEASES = 1_000
/** A page may be empty: Redis walks all of its keys to find the locks. */
const MAX_PAGES = 10
const MAX_WATCHED = 20
/** How often the watched leases are read. */
const LOOKS = 10
const MAX_PINGS = 10
const MIN_PINGS = 3
/** On a slow store, fewer pings have to do. */
const MEASURE_MS = 2_000
const SLOW_MS = 250
