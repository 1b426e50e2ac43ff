import type { Resources } from './process-state.ts'
import type { Sample, Soaked, SoakOptions } from './run-soak.ts'
import { type Measure, median, type Trend, trendOf } from './trend.ts'
import type { DriverName } from './world.ts'

export interface Verdict {
  trends: Trend[]
  violations: string[]
  /** Why the run proves nothing. */
  problems: string[]
}

const MIB = 2 ** 20

/** How much memory may stay when everything is closed, beyond what there was after everything had been used once. */
const MOST_HEAP_LEFT = 8 * MIB
const MOST_REDIS_LEFT = 2 * MIB
/** PostgreSQL: the tables and indexes after a vacuum. Indexes keep pages that are empty. */
const MOST_TABLES_LEFT = 64 * MIB

/** A run of fewer TTLs is not judged by trends: the mixture of leases settles only after a few of them. */
const LEAST_TTLS = 5

/** The least share of the requested leases that must have been held at a time. */
const LEASES_SHARE = 0.9

type Of = (sample: Sample) => number

/** What must be flat, and how flat. */
const MEASURES: Record<DriverName, readonly (readonly [Measure, Of])[]> = {
  redis: [
    ...inProcess(),
    [{ name: 'store memory', unit: 'bytes', part: 0.05, amount: MIB }, ({ store }) => store.bytes],
    ...inStore(),
  ],
  postgres: [
    ...inProcess(),
    // Autovacuum looks once a minute. Until it has run a few times, the tables grow.
    [
      { name: 'store memory', unit: 'bytes', part: 0.15, amount: 4 * MIB, leastSeconds: 600 },
      ({ store }) => store.bytes,
    ],
    ...inStore(),
  ],
}

function inProcess(): (readonly [Measure, Of])[] {
  const count = { unit: 'count', part: 0.05 } as const
  return [
    [{ name: 'heap', unit: 'bytes', part: 0.04, amount: 2 * MIB }, ({ client }) => client.heapBytes],
    [{ name: 'buffers', unit: 'bytes', part: 0.04, amount: 2 * MIB }, ({ client }) => client.externalBytes],
    [{ name: 'resident memory', unit: 'bytes', part: 0.1, amount: 24 * MIB }, ({ client }) => client.rssBytes],
    [{ ...count, name: 'timers', amount: 50 }, ({ client }) => client.resources.timers],
    [{ ...count, name: 'listeners', amount: 30 }, ({ client }) => listenersOf(client.resources)],
    [{ ...count, name: 'sockets', amount: 6 }, ({ client }) => client.resources.sockets],
    [{ ...count, name: 'file descriptors', amount: 10 }, ({ client }) => client.resources.fileDescriptors],
  ]
}

function inStore(): (readonly [Measure, Of])[] {
  return [
    [
      { name: 'server memory', unit: 'bytes', part: 0.1, amount: 12 * MIB, leastSeconds: 600 },
      ({ store }) => store.processBytes,
    ],
    // A busy machine holds fewer leases for a while. That is no trend of the store.
    [
      { name: 'entries beyond the leases', unit: 'count', part: 0.05, amount: 500 },
      ({ store, client }) => store.entries - client.done.leases,
    ],
    [{ name: 'connections', unit: 'count', part: 0.05, amount: 6 }, ({ store }) => store.connections],
  ]
}

const listenersOf = (all: Resources): number => all.processListeners + all.signalListeners + all.clientListeners

export function judge(options: SoakOptions, soaked: Soaked): Verdict {
  const { seconds, driver, longestTtlSeconds } = options
  const trends = MEASURES[driver].map(([measure, of]) => {
    const leastSeconds = Math.max(measure.leastSeconds ?? 0, LEAST_TTLS * longestTtlSeconds)
    return trendOf({ ...measure, leastSeconds }, soaked.samples.map(of), seconds)
  })
  return {
    trends,
    violations: [
      ...trends
        .filter(({ growth, most }) => most !== undefined && growth > most)
        .map(({ name, second, last, most }) => `${name} grew from ${second} to ${last}, by more than ${most}`),
      ...leftInProcess(soaked),
      ...leftInStore(driver, soaked),
      ...soaked.after.done.unexpected,
    ],
    problems: tooLittle(options, soaked),
  }
}

function leftInProcess({ before, warm, after }: Soaked): string[] {
  const was = countsOf(before.resources)
  const left = Object.entries(countsOf(after.resources)).map(([name, count]) => ({ name, count, was: was[name] ?? 0 }))
  const heap = after.heapBytes - warm.heapBytes
  return [
    ...left
      .filter(({ count, was }) => count > was)
      .map(({ name, count, was }) => `left in the process: ${name} ${count}, and ${was} before`),
    ...(heap > MOST_HEAP_LEFT
      ? [`left in the process: ${heap} bytes of memory, and ${MOST_HEAP_LEFT} are allowed`]
      : []),
  ]
}

const countsOf = ({ handles, descriptors, ...counts }: Resources): Record<string, number> => {
  return { ...counts, ...descriptors, ...handles }
}

function leftInStore(driver: DriverName, { left, storeBefore, storeAfter }: Soaked): string[] {
  const bytes = driver === 'redis' ? storeAfter.bytes - storeBefore.bytes : storeAfter.bytes
  const most = driver === 'redis' ? MOST_REDIS_LEFT : MOST_TABLES_LEFT
  return [
    ...left.wrong.map((what) => `left in the store: ${what}`),
    ...(bytes > most ? [`left in the store: ${bytes} bytes, and ${most} are allowed`] : []),
    ...(storeAfter.connections > 0 ? [`left in the store: ${storeAfter.connections} connections`] : []),
  ]
}

/** Each lease must have been replaced at least once in twice the longest TTL. */
export function leastGrants({ leases, seconds, longestTtlSeconds }: SoakOptions): number {
  return Math.ceil((leases * seconds) / (2 * longestTtlSeconds))
}

function tooLittle(options: SoakOptions, { samples, after }: Soaked): string[] {
  const { grants } = after.done
  const least = leastGrants(options)
  const held = median(samples.map(({ client }) => client.done.leases))
  const wanted = Math.floor(options.leases * LEASES_SHARE)
  return [
    ...(grants < least ? [`too few grants: ${grants}, but at least ${least} are needed`] : []),
    ...(held < wanted ? [`too few leases at a time: ${held}, but at least ${wanted} are needed`] : []),
  ]
}
