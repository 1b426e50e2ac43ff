import {
  type CounterId,
  type GaugeReading,
  type HistogramId,
  METRICS,
  type Metric,
  type MetricId,
  metricIds,
  type Sink,
} from './metrics.ts'

export const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/** Version 0.0.4 of Prometheus's text format. */
export function textOf(registry: Registry, gauges: readonly GaugeReading[]): string {
  const lines = metricIds.flatMap((id) => {
    const samples = samplesOf(id, registry, gauges)
    if (samples.length === 0) return []
    const name = prometheusName(id)
    return [`# HELP ${name} ${METRICS[id].help}`, `# TYPE ${name} ${METRICS[id].kind}`, ...samples]
  })
  return `${lines.join('\n')}\n`
}

export function prometheusName(id: MetricId): string {
  const { unit, kind } = METRICS[id]
  return `holdfast_${id.replaceAll('.', '_')}${unit === 's' ? '_seconds' : ''}${kind === 'counter' ? '_total' : ''}`
}

function samplesOf(id: MetricId, registry: Registry, gauges: readonly GaugeReading[]): string[] {
  const metric: Metric = METRICS[id]
  const name = prometheusName(id)
  if (metric.kind === 'histogram') {
    return [...registry.histograms(id)].flatMap((series) => histogramLines(name, metric, series))
  }
  if (metric.kind === 'counter') {
    return [...registry.counters(id)].map(({ values, count }) => `${name}${labels(metric, values)} ${count}`)
  }
  return gauges
    .filter((reading) => reading.id === id)
    .map(({ values, value }) => `${name}${labels(metric, values)} ${value}`)
}

function histogramLines(name: string, metric: Metric, { values, buckets, sum }: HistogramSeries): string[] {
  let count = 0
  const lines = buckets.map((inBucket, at) => {
    count += inBucket
    return `${name}_bucket${labels(metric, values, boundText(metric.buckets?.[at]))} ${count}`
  })
  return [...lines, `${name}_sum${labels(metric, values)} ${sum}`, `${name}_count${labels(metric, values)} ${count}`]
}

/** As OpenMetrics and the Python client write it: `le="1"` and `le="1.0"` would be two series. */
function boundText(bound: number | undefined): string {
  if (bound === undefined) return '+Inf'
  return Number.isInteger(bound) ? `${bound}.0` : `${bound}`
}

function labels({ labels: names }: Metric, values: readonly string[], le?: string): string {
  const pairs = names.map((name, index) => `${name}="${escaped(values[index] ?? '')}"`)
  if (le !== undefined) pairs.push(`le="${le}"`)
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`
}

/** A template may contain what a user has typed: it must not end its label, its line or its metric. */
const escaped = (value: string): string => value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')

interface CounterSeries {
  readonly values: readonly string[]
  count: number
}

interface HistogramSeries {
  readonly values: readonly string[]
  /** How many were in each bucket, without those below. One more than the bounds. */
  readonly buckets: number[]
  sum: number
}

/** Counters and histograms since the start. The number of series is bounded by the labels, which are. */
export class Registry implements Sink {
  readonly #counters = new Map<MetricId, Map<string, CounterSeries>>()
  readonly #histograms = new Map<MetricId, Map<string, HistogramSeries>>()

  add(id: CounterId, values: readonly string[], by: number): void {
    const series = seriesOf(this.#counters, id, values, () => ({ values, count: 0 }))
    series.count += by
  }

  record(id: HistogramId, values: readonly string[], seconds: number): void {
    const { buckets: bounds } = METRICS[id]
    const series = seriesOf(this.#histograms, id, values, () => ({
      values,
      buckets: new Array<number>(bounds.length + 1).fill(0),
      sum: 0,
    }))
    let at = 0
    while (at < bounds.length && seconds > (bounds[at] as number)) at += 1
    series.buckets[at] = (series.buckets[at] as number) + 1
    series.sum += seconds
  }

  counters(id: MetricId): Iterable<CounterSeries> {
    return this.#counters.get(id)?.values() ?? []
  }

  histograms(id: MetricId): Iterable<HistogramSeries> {
    return this.#histograms.get(id)?.values() ?? []
  }
}

function seriesOf<Series>(
  all: Map<MetricId, Map<string, Series>>,
  id: MetricId,
  values: readonly string[],
  make: () => Series,
): Series {
  let ofMetric = all.get(id)
  if (ofMetric === undefined) {
    ofMetric = new Map()
    all.set(id, ofMetric)
  }
  // No label contains NUL. Not `join`, which takes longer than all the rest.
  const [first = '', second] = values
  const key = second === undefined ? first : `${first}\0${second}`
  let series = ofMetric.get(key)
  if (series === undefined) {
    series = make()
    ofMetric.set(key, series)
  }
  return series
}
