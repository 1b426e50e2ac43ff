import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Claim, Driver } from 'holdfast/driver'
import { reapProcess } from '../../test/harness/reaper.ts'
import { startPostgres } from '../../test/harness/servers.ts'
import { askPostgres } from '../../test/harness/wire.ts'
import { startWorker, type Worker } from '../../test/harness/worker.ts'
import { load } from '../connect.ts'
import { nowMs } from '../history.ts'
import type { Turns } from './waiting-client.ts'

export interface WaitersOptions {
  dist: string
  waiters: number
  processes: number
  /** Processes that only use the processor. */
  busy: number
  /** How long the lock is handed over. */
  seconds: number
  onProgress?(text: string): void
}

export interface Waited {
  queued: number
  /** Seconds until all were in the queue. */
  queuedSeconds: number
  handOvers: number
  handOversPerSecond: number
  /** The longest time without a hand-over. */
  longestPauseMs: number
  /** Turns of waiters that were in the queue at first, and how many of them were taken out of its order. */
  inOrder: number
  outOfOrder: number
  /** Leases that were granted to a waiter at the front of the queue, and that its process never saw. */
  unseen: number
  lost: number
  errors: Record<string, number>
}

/** Prints what it sees. The exit code is 1 if the order was not kept, or a lease was lost or never seen. */
export async function runWaiters(options: WaitersOptions): Promise<number> {
  const onProgress = (text: string): void => void process.stdout.write(`${text}\n`)
  const waited = await handOverToWaiters({ ...options, onProgress })
  process.stdout.write(`${JSON.stringify(waited)}\n`)
  const { queued, handOvers, outOfOrder, unseen, lost } = waited
  if (outOfOrder + unseen + lost > 0) return 1
  return queued === options.waiters && handOvers > 0 ? 0 : 2
}

const LOCK = 'crowded'
const TTL_SECONDS = 5
/** Statistics are made when so many wait. */
const EARLY = 20
const EARLY_MS = 3_600_000
const JOINED_WITHIN_MS = 240_000
const CALL_MS = 120_000

/** Hands one lock over between thousands of waiters of a few processes, whose statistics are those of a short queue. */
export async function handOverToWaiters(options: WaitersOptions): Promise<Waited> {
  const { dist, waiters, processes, busy, seconds, onProgress = () => {} } = options
  await using server = await startPostgres()
  const ask = (sql: string) => askPostgres({ port: server.port, timeoutMs: 60_000 }, sql)
  const { DistributedLock, connect } = await load<typeof import('holdfast')>({ dist }, 'index.js')
  const holder = new DistributedLock({ url: server.url })
  const driver = await connect(server.url)
  const module = fileURLToPath(new URL('./waiting-client.js', import.meta.url))
  const clients = await Promise.all(
    Array.from({ length: processes }, () => startWorker({ module }, { callTimeoutMs: CALL_MS })),
  )
  const loops = Array.from({ length: busy }, () => spawn(process.execPath, ['-e', 'for (;;) {}']))
  for (const loop of loops) reapProcess(loop.pid as number)
  const queued = async (): Promise<number> =>
    Number((await ask('SELECT count(*) FROM holdfast_waiters WHERE expires_at > clock_timestamp()'))[0]?.[0])
  const until = async (count: number): Promise<number> => {
    const endMs = performance.now() + JOINED_WITHIN_MS
    let found = await queued()
    for (; found < count && performance.now() < endMs; found = await queued()) await sleep(200)
    return found
  }
  try {
    const lease = await holder.hold(LOCK, { timeoutSeconds: 60 })
    await makeStatistics(driver, ask)
    const startedMs = performance.now()
    const settings = { dist, url: server.url, lockName: LOCK, ttlSeconds: TTL_SECONDS }
    const upTo = (at: number): number => Math.floor((at * waiters) / processes)
    await Promise.all(
      clients.map((client, at) => client.call('queue', { ...settings, waiters: upTo(at + 1) - upTo(at) })),
    )
    const count = await until(waiters)
    const queuedSeconds = (performance.now() - startedMs) / 1_000
    onProgress(`${count} of ${waiters} are in the queue after ${queuedSeconds.toFixed(1)} s`)
    const order = (await ask(`SELECT claim_id FROM holdfast_waiters WHERE lock_name = '${LOCK}' ORDER BY place`)).map(
      ([claimId]) => String(claimId),
    )
    await Promise.all(clients.map((client) => client.call('taken')))
    const fromMs = nowMs()
    // If the store refuses it, it is sent again in the background.
    await lease.release().catch((error: unknown) => onProgress(`the first release failed: ${error}`))
    await sleep(seconds * 1_000)
    const toMs = nowMs()
    const all = (await Promise.all(clients.map((client) => client.call('taken')))) as Turns[]
    // The processes are asked one after the other. What happens meanwhile is known of some of them only.
    const took = all.map((each) => ({ ...each, turns: each.turns.filter(([, , atMs]) => atMs <= toMs) }))
    const besides = await Promise.all(clients.map((client) => client.call('keptBeside')))
    return {
      queued: count,
      queuedSeconds,
      ...judge(order, took, (toMs - fromMs) / 1_000),
      lost: took.reduce((sum, each) => sum + each.lost, 0) + besides.filter((isKept) => isKept !== true).length,
      errors: sumOf(took.map(({ errors }) => errors)),
    }
  } finally {
    for (const loop of loops) loop.kill('SIGKILL')
    await Promise.all(clients.map((client: Worker) => client.kill()))
    await Promise.all([holder.close().catch(() => {}), driver.close()])
  }
}

/**
 * The planner believes that the queue is short, and that all places in it have expired: as if they had been renewed
 * since. The server makes no statistics by itself meanwhile.
 */
async function makeStatistics(driver: Driver, ask: (sql: string) => Promise<unknown>): Promise<void> {
  const early = Array.from(
    { length: EARLY },
    (): Claim => ({
      ...{ lockName: 'early', claimId: randomUUID(), holderId: 'early', mode: 'exclusive', permits: 1 },
      ...{ ttlMs: EARLY_MS, waiterTtlMs: EARLY_MS },
    }),
  )
  await driver.acquire(early, { secret: randomUUID() })
  const move = (by: string): string => `
    UPDATE distributed_locks SET expires_at = expires_at ${by} interval '2 hours';
    UPDATE holdfast_waiters SET expires_at = expires_at ${by} interval '2 hours';`
  await ask(`ALTER TABLE distributed_locks SET (autovacuum_analyze_threshold = 2000000000);
    ALTER TABLE holdfast_waiters SET (autovacuum_analyze_threshold = 2000000000)`)
  await ask(`BEGIN; ${move('-')} ANALYZE distributed_locks, holdfast_waiters; ${move('+')} COMMIT`)
  await driver.release(early)
}

/** Compares the turns with the order of the queue before the first of them. Later waiters are behind all of these. */
function judge(order: readonly string[], took: readonly Turns[], seconds: number) {
  const turns = took.flatMap((each) => each.turns).sort(([, token], [, other]) => token - other)
  const placeOf = new Map(order.map((claimId, place) => [claimId, place]))
  const places = turns.flatMap(([claimId]) => placeOf.get(claimId) ?? [])
  const inOrder = places.filter((place, at) => place > (places[at - 1] ?? -1)).length
  const furthest = places.reduce((most, place) => Math.max(most, place + 1), 0)
  const times = turns.map(([, , atMs]) => atMs).sort((a, b) => a - b)
  const pauses = times.slice(1).map((atMs, at) => atMs - (times[at] as number))
  return {
    handOvers: turns.length,
    handOversPerSecond: turns.length / seconds,
    longestPauseMs: pauses.reduce((most, each) => Math.max(most, each), 0),
    inOrder,
    outOfOrder: places.length - inOrder,
    // A waiter in front of one that had its turn has had it, too. Otherwise its lease expired, or its place was lost.
    unseen: furthest - new Set(places).size,
  }
}

function sumOf(all: readonly Record<string, number>[]): Record<string, number> {
  const sum: Record<string, number> = {}
  for (const [key, count] of all.flatMap((each) => Object.entries(each))) sum[key] = (sum[key] ?? 0) + count
  return sum
}
