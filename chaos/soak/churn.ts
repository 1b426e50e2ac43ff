import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { startPostgres } from '../../test/harness/servers.ts'
import { askPostgres } from '../../test/harness/wire.ts'
import { startWorker } from '../../test/harness/worker.ts'
import type { Churned, ChurnSettings } from './churn-client.ts'
import { type Trend, trendOf } from './trend.ts'

export interface ChurnOptions {
  dist: string
  /** Locks that are acquired and released in a second. */
  perSecond: number
  seconds: number
  sampleEverySeconds: number
  onSample?(sample: ChurnSample): void
}

export interface ChurnSample extends Churned {
  atSeconds: number
  /** The bytes of each table and index. */
  sizes: Record<string, number>
  dead: number
  /** How often autovacuum has run. */
  vacuums: number
}

export interface ChurnReport {
  samples: ChurnSample[]
  trends: Trend[]
  grants: number
  lost: number
  errors: Record<string, number>
}

/** Prints what it sees. The exit code is 1 if something grew or was lost, and 2 if too few locks were taken. */
export async function runChurn(options: ChurnOptions): Promise<number> {
  const onSample = ({ atSeconds, grants, skipped, p50Ms, p99Ms, worstMs, sizes, dead, vacuums }: ChurnSample): void => {
    const bytes = Object.values(sizes).reduce((sum, each) => sum + each, 0)
    process.stdout.write(
      `${atSeconds.toFixed(0).padStart(5)} s: ${grants} grants, ${skipped} skipped; ms: ${p50Ms.toFixed(1)} p50, ` +
        `${p99Ms.toFixed(1)} p99, ${worstMs.toFixed(0)} worst; ${(bytes / MIB).toFixed(2)} MiB, ${dead} dead rows, ` +
        `${vacuums} vacuums\n`,
    )
  }
  const { trends, grants, lost, errors } = await churn({ ...options, onSample })
  for (const { name, second, last, course, most } of trends) {
    process.stdout.write(
      `${name}: ${second.toFixed(1)} in the second quarter, ${last.toFixed(1)} in the last; ` +
        `${course.map((each) => each.toFixed(1)).join(', ')}${most === undefined ? ' (not judged)' : ''}\n`,
    )
  }
  process.stdout.write(`${grants} grants, ${lost} of ${KEPT} leases lost, errors ${JSON.stringify(errors)}\n`)
  const grown = trends.filter(({ growth, most }) => most !== undefined && growth > most)
  for (const { name } of grown) process.stdout.write(`${name} has grown\n`)
  if (grown.length > 0 || lost > 0 || Object.keys(errors).length > 0) return 1
  return grants >= GRANTED_SHARE * options.perSecond * options.seconds ? 0 : 2
}

/** The least share of the locks that must have been taken. */
const GRANTED_SHARE = 0.9
const MIB = 2 ** 20

/** Leases that are renewed beside the churn. None of them may be lost. */
const KEPT = 200
const CALL_MS = 60_000

/**
 * Acquires and releases so many locks in a second for a while, on one server with the default settings of autovacuum.
 * Neither a table or index nor the time that a lock takes may grow.
 */
export async function churn(options: ChurnOptions): Promise<ChurnReport> {
  const { dist, perSecond, seconds, sampleEverySeconds, onSample } = options
  await using server = await startPostgres()
  const ask = (sql: string) => askPostgres({ port: server.port, timeoutMs: 30_000 }, sql)
  const module = fileURLToPath(new URL('./churn-client.js', import.meta.url))
  await using client = await startWorker({ module }, { callTimeoutMs: CALL_MS })
  const settings: ChurnSettings = { dist, url: server.url, perSecond, kept: KEPT }
  await client.call('start', settings)
  const startedMs = performance.now()
  const samples: ChurnSample[] = []
  for (let due = sampleEverySeconds; due <= seconds; due += sampleEverySeconds) {
    await sleep(startedMs + due * 1_000 - performance.now())
    const churned = (await client.call('sample')) as Churned
    const sizes = await ask(
      `SELECT relname, pg_relation_size(oid) FROM pg_class
       WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i') ORDER BY 1`,
    )
    const [counts] = await ask(`SELECT sum(n_dead_tup), sum(autovacuum_count) FROM pg_stat_user_tables`)
    const sample = {
      ...churned,
      atSeconds: (performance.now() - startedMs) / 1_000,
      sizes: Object.fromEntries(sizes.map(([name, bytes]) => [String(name), Number(bytes)])),
      dead: Number(counts?.[0]),
      vacuums: Number(counts?.[1]),
    }
    samples.push(sample)
    onSample?.(sample)
  }
  const { lost, errors } = (await client.call('stop')) as Pick<Churned, 'lost' | 'errors'>
  const grants = samples.reduce((sum, each) => sum + each.grants, 0)
  return { samples, trends: trendsOf(samples, seconds), grants, lost, errors }
}

const KIB = 1_024

/** Autovacuum looks once a minute. Until it has run a few times, tables grow. */
const LEAST_SECONDS = 480

function trendsOf(samples: readonly ChurnSample[], seconds: number): Trend[] {
  const names = [...new Set(samples.flatMap(({ sizes }) => Object.keys(sizes)))]
  const size = { unit: 'bytes', part: 0.15, amount: 512 * KIB, leastSeconds: LEAST_SECONDS } as const
  const time = { unit: 'count', part: 0.5, amount: 5, leastSeconds: LEAST_SECONDS } as const
  return [
    ...names.map((name) =>
      trendOf(
        { ...size, name },
        samples.map(({ sizes }) => sizes[name] ?? 0),
        seconds,
      ),
    ),
    trendOf(
      { ...time, name: 'p50 of a lock in ms' },
      samples.map(({ p50Ms }) => p50Ms),
      seconds,
    ),
    trendOf(
      { ...time, name: 'p99 of a lock in ms' },
      samples.map(({ p99Ms }) => p99Ms),
      seconds,
    ),
  ]
}
