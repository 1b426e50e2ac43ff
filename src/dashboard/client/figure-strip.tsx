import { BUCKET_MS, type Bucket, HISTORY_MS } from '../wire.ts'
import { count } from './format.ts'
import { type LiveStore, storeNow } from './live.ts'

/** What there is now, and how it was in the last hour. */
export function FigureStrip({ stores }: { stores: LiveStore[] }) {
  const sums = summed(stores)
  const last = sums.at(-1)
  const nowMs = stores[0] === undefined ? 0 : storeNow(stores[0])
  const hour = sums.reduce((total, [, , , , , expired, forceReleased]) => total + expired + forceReleased, 0)
  const minute = sums.filter(([at]) => at > nowMs - 60_000 - BUCKET_MS)
  const granted = minute.reduce((total, [, , , each]) => total + each, 0)
  return (
    <section class="figures" aria-label="Figures">
      <Figure title="Held" value={count(last?.[1] ?? 0)} points={sums.map(([at, held]) => [at, held])} nowMs={nowMs} />
      <Figure
        title="Waiting"
        value={count(last?.[2] ?? 0)}
        points={sums.map(([at, , waiting]) => [at, waiting])}
        nowMs={nowMs}
        tone="warn"
      />
      <Figure
        title="Granted, last minute"
        value={count(granted)}
        points={sums.map(([at, , , each]) => [at, each])}
        nowMs={nowMs}
      />
      <Figure
        title="Expired or force-released, last hour"
        value={count(hour)}
        points={sums.map(([at, , , , , expired, forceReleased]) => [at, expired + forceReleased])}
        nowMs={nowMs}
        tone="bad"
      />
    </section>
  )
}

interface FigureProps {
  readonly title: string
  readonly value: string
  readonly points: readonly (readonly [number, number])[]
  readonly nowMs: number
  readonly tone?: 'warn' | 'bad'
}

function Figure({ title, value, points, nowMs, tone }: FigureProps) {
  return (
    <div class={`figure ${tone ?? ''}`}>
      <h2>{title}</h2>
      <strong>{value}</strong>
      <Spark points={points} nowMs={nowMs} />
    </div>
  )
}

const WIDTH = 160
const HEIGHT = 34

/** The time before the first reading is empty. A longer pause between two readings is a gap in the line. */
function Spark({ points, nowMs }: Pick<FigureProps, 'points' | 'nowMs'>) {
  const first = points[0]?.[0] ?? nowMs
  const spanMs = Math.min(HISTORY_MS, Math.max(60_000, nowMs - first))
  const most = points.reduce((max, [, value]) => Math.max(max, value), 1)
  const x = (at: number): number => WIDTH - ((nowMs - at) / spanMs) * WIDTH
  const y = (value: number): number => HEIGHT - 2 - (value / most) * (HEIGHT - 5)
  const runs: string[][] = []
  let before = Number.NEGATIVE_INFINITY
  for (const [at, value] of points) {
    if (at - before > GAP_MS) runs.push([])
    runs.at(-1)?.push(`${x(at).toFixed(1)},${y(value).toFixed(1)}`)
    before = at
  }
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      {runs.map((run) => (
        <>
          <polygon
            points={`${run[0]?.split(',')[0]},${HEIGHT} ${run.join(' ')} ${run.at(-1)?.split(',')[0]},${HEIGHT}`}
          />
          <polyline points={run.join(' ')} />
        </>
      ))}
    </svg>
  )
}

const GAP_MS = 3 * BUCKET_MS

/** The stores’ buckets of one time, added up. */
function summed(stores: readonly LiveStore[]): Bucket[] {
  if (stores.length === 1) return stores[0]?.history ?? []
  const sums = new Map<number, number[]>()
  for (const { history } of stores) {
    for (const [at, ...values] of history) {
      const sum = sums.get(at)
      if (sum === undefined) sums.set(at, [...values])
      else for (const [index, value] of values.entries()) sum[index] = (sum[index] ?? 0) + value
    }
  }
  return [...sums].sort(([a], [b]) => a - b).map(([at, sum]) => [at, ...sum] as unknown as Bucket)
}
