import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { startWorker, type Worker } from '../../test/harness/worker.ts'
import { Draw } from '../draw.ts'
import type { ClientSample } from './client.ts'
import { openPostgres } from './postgres-store.ts'
import { openRedis } from './redis-store.ts'
import { cpuSeconds } from './server-memory.ts'
import type { Left, SoakStore, StoreSample } from './store.ts'
import type { ClientSettings, DriverName } from './world.ts'

export interface SoakOptions {
  dist: string
  driver: DriverName
  seconds: number
  leases: number
  longestTtlSeconds: number
  sampleEverySeconds: number
  cutEverySeconds: number
  seed: string
  /** Called after each sample. */
  onSample?(sample: Sample): void
}

export interface Sample {
  atSeconds: number
  client: ClientSample
  store: StoreSample
}

/** Everything that a soak has seen. */
export interface Soaked {
  versions: Record<string, string>
  /** The client before it loaded the package, and after it had used everything once and closed it. */
  before: ClientSample
  warm: ClientSample
  storeBefore: StoreSample
  samples: Sample[]
  cuts: Record<string, number>
  /** The client and the store when everything was closed and had expired. */
  after: ClientSample
  storeAfter: StoreSample
  left: Left
  /** The share of one core while leases came and went. */
  load: { client: number; store: number }
}

/** How long to wait for the client's answers. Closing thousands of leases takes a while. */
const CALL_TIMEOUT_MS = 120_000
/**
 * What may end later than the longest TTL: places of waiters and rate limits after 10 s. PostgreSQL keeps the rows of
 * rate limits for 15 s longer, and those of queues for a minute.
 */
const SETTLED_WITHIN_MS = { redis: 15_000, postgres: 90_000 }
/** How long the server may take to end the connections that the client has closed. */
const ENDED_WITHIN_MS = 20_000

/** Rejects if the client process ends by itself. */
export async function runSoak(options: SoakOptions): Promise<Soaked> {
  const { driver, dist } = options
  await using store = driver === 'redis' ? await openRedis() : await openPostgres(dist)
  const module = fileURLToPath(new URL('./client.js', import.meta.url))
  await using client = await startWorker({ module }, { callTimeoutMs: CALL_TIMEOUT_MS })
  const { leases, longestTtlSeconds, seed } = options
  const settings: ClientSettings = { dist, driver, url: store.url, seed, leases, longestTtlSeconds }
  const { before, after: warm } = (await client.call('warmUp', settings)) as Record<'before' | 'after', ClientSample>
  const storeBefore = await store.sample()

  await client.call('start', settings)
  const cpuBefore = { client: cpuSeconds(client.pid), store: cpuSeconds(store.pid) }
  const startedMs = performance.now()
  const cuts: Record<string, number> = {}
  const inTurn = oneAtATime()
  const [samples] = await Promise.all([
    sampling(options, client, { sample: () => inTurn(store.sample) }),
    cutting(options, { cut: (draw) => inTurn(() => store.cut(draw)) }, cuts),
  ])
  const ranSeconds = (performance.now() - startedMs) / 1_000
  const load = {
    client: (cpuSeconds(client.pid) - cpuBefore.client) / ranSeconds,
    store: (cpuSeconds(store.pid) - cpuBefore.store) / ranSeconds,
  }

  await client.call('stop', before.resources)
  await sleep(longestTtlSeconds * 1_000)
  const left = await settle(store, SETTLED_WITHIN_MS[driver])
  const connections = await untilDisconnected(store)
  return {
    versions: { node: process.versions.node, store: store.version },
    before,
    warm,
    storeBefore,
    samples,
    cuts,
    after: (await client.call('sample')) as ClientSample,
    storeAfter: { ...(await store.sample()), connections },
    left,
    load,
  }
}

async function sampling(options: SoakOptions, client: Worker, store: Pick<SoakStore, 'sample'>): Promise<Sample[]> {
  const { seconds, sampleEverySeconds, onSample } = options
  const startedMs = performance.now()
  const samples: Sample[] = []
  for (let due = sampleEverySeconds; due <= seconds; due += sampleEverySeconds) {
    await sleep(startedMs + due * 1_000 - performance.now())
    const sample = {
      client: (await client.call('sample')) as ClientSample,
      store: await store.sample(),
      atSeconds: (performance.now() - startedMs) / 1_000,
    }
    samples.push(sample)
    onSample?.(sample)
  }
  return samples
}

async function cutting(
  { seconds, seed, cutEverySeconds }: SoakOptions,
  store: Pick<SoakStore, 'cut'>,
  cuts: Record<string, number>,
): Promise<void> {
  const draw = new Draw(`${seed}/cuts`)
  const endMs = performance.now() + seconds * 1_000
  for (;;) {
    const pauseMs = draw.between(0.5, 1.5) * cutEverySeconds * 1_000
    if (performance.now() + pauseMs >= endMs) return
    await sleep(pauseMs)
    const what = await store.cut(draw)
    cuts[what] = (cuts[what] ?? 0) + 1
  }
}

/** A cut must not hit the connection of a sample. */
function oneAtATime(): <T>(work: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const next = last.then(work)
    last = next.catch(() => {})
    return next
  }
}

/** Waits until nothing is left that must not be, at most so long. */
async function settle(store: SoakStore, withinMs: number): Promise<Left> {
  const endMs = performance.now() + withinMs
  for (;;) {
    const left = await store.left()
    if (left.wrong.length === 0 || performance.now() > endMs) return left
    await sleep(1_000)
  }
}

/**
 * A process of PostgreSQL ends a moment after its connection, also that of the soak's own questions. Waits for that, at
 * most so long, and returns how many connections are left.
 */
async function untilDisconnected(store: SoakStore): Promise<number> {
  const endMs = performance.now() + ENDED_WITHIN_MS
  for (;;) {
    await sleep(200)
    const connections = await store.connections()
    if (connections === 0 || performance.now() > endMs) return connections
  }
}
