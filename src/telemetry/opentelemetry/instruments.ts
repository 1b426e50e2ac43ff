import type { Unchecked } from '../listen.ts'
import { type CounterId, type HistogramId, LABELS, METRICS, type Metric, type MetricId, metricIds } from '../metrics.ts'
import { recordMetrics } from '../recorder.ts'
import type {
  OpenTelemetryAttributes,
  OpenTelemetryCounter,
  OpenTelemetryHistogram,
  OpenTelemetryMeter,
  OpenTelemetryMetricOptions,
  OpenTelemetryResult,
} from './api.ts'

/** Records the metrics with instruments of `meter`. Returns a function that ends it. Throws `InvalidArgumentError`. */
export function recordWithMeter(meter: OpenTelemetryMeter, options: Unchecked): () => void {
  const ids = (kind: Metric['kind']): MetricId[] => metricIds.filter((id) => METRICS[id].kind === kind)
  const counters = new Map<MetricId, OpenTelemetryCounter>(
    ids('counter').map((id) => [id, meter.createCounter(METRICS[id].name, optionsOf(METRICS[id]))]),
  )
  const histograms = new Map<MetricId, OpenTelemetryHistogram>(
    ids('histogram').map((id) => [id, meter.createHistogram(METRICS[id].name, optionsOf(METRICS[id]))]),
  )
  const gauges = new Map<MetricId, object>(ids('gauge').map((id) => [id, gaugeOf(meter, METRICS[id])]))
  const recording = recordMetrics(options, {
    add: (id: CounterId, values, by) => counters.get(id)?.add(by, attributesOf(METRICS[id], values)),
    record: (id: HistogramId, values, seconds) =>
      histograms.get(id)?.record(seconds, attributesOf(METRICS[id], values)),
  })
  const observe = (result: OpenTelemetryResult): void => {
    for (const { id, values, value } of recording.gauges()) {
      result.observe(gauges.get(id) as object, value, attributesOf(METRICS[id], values))
    }
  }
  meter.addBatchObservableCallback(observe, [...gauges.values()])
  return () => {
    recording.close()
    meter.removeBatchObservableCallback(observe, [...gauges.values()])
  }
}

/** Numbers of things can be added up over processes, ages cannot. */
const gaugeOf = (meter: OpenTelemetryMeter, metric: Metric): object =>
  metric.unit === 's'
    ? meter.createObservableGauge(metric.name, optionsOf(metric))
    : meter.createObservableUpDownCounter(metric.name, optionsOf(metric))

const optionsOf = ({ help, unit, buckets }: Metric): OpenTelemetryMetricOptions => ({
  description: help,
  unit,
  ...(buckets && { advice: { explicitBucketBoundaries: [...buckets] } }),
})

const attributesOf = ({ labels }: Metric, values: readonly string[]): OpenTelemetryAttributes =>
  Object.fromEntries(labels.map((label, index) => [LABELS[label], values[index] as string]))
