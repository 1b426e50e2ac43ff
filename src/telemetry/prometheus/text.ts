import { type GaugeReading, METRICS, type Metric, type MetricId, metricIds } from '../metrics.ts'
import type { HistogramSeries, Registry } from './registry.ts'

export const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/** Version 0.0.4 of Prometheus's text format. */
export function textOf(registry: Registry, gauges: readonly GaugeReading[]): string {
  const lines = metricIds.flatMap((id) => {
    const samples = samplesOf(id, registry, gauges)
    if (samples.length === 0) return []
    const name = prometheusName(METRICS[id])
    return [`# HELP ${name} ${METRICS[id].help}`, `# TYPE ${name} ${METRICS[id].kind}`, ...samples]
  })
  return `${lines.join('\n')}\n`
}

export function prometheusName({ name, unit, kind }: Metric): string {
  return `${name.replaceAll('.', '_')}${unit === 's' ? '_seconds' : ''}${kind === 'counter' ? '_total' : ''}`
}

function samplesOf(id: MetricId, registry: Registry, gauges: readonly GaugeReading[]): string[] {
  const metric: Metric = METRICS[id]
  const name = prometheusName(metric)
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
    return `${name}_bucket${labels(metric, values, String(metric.buckets?.[at] ?? '+Inf'))} ${count}`
  })
  return [...lines, `${name}_sum${labels(metric, values)} ${sum}`, `${name}_count${labels(metric, values)} ${count}`]
}

function labels({ labels: names }: Metric, values: readonly string[], le?: string): string {
  const pairs = names.map((name, index) => `${name}="${escaped(values[index] ?? '')}"`)
  if (le !== undefined) pairs.push(`le="${le}"`)
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`
}

/** A template may contain what a user has typed: it must not end its label, its line or its metric. */
const escaped = (value: string): string => value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')
