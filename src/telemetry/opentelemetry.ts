import { checkBoolean, checkMethods } from '../core/arguments.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import type { TelemetryOptions, Unchecked } from './listen.ts'
import { type CounterId, type HistogramId, LABELS, METRICS, type Metric, type MetricId, metricIds } from './metrics.ts'
import type {
  OpenTelemetryApi,
  OpenTelemetryAttributes,
  OpenTelemetryCounter,
  OpenTelemetryHistogram,
  OpenTelemetryMeter,
  OpenTelemetryMetricOptions,
  OpenTelemetryResult,
} from './opentelemetry/api.ts'
import { traceSpans } from './opentelemetry/spans.ts'
import { recordMetrics } from './recorder.ts'

export type { ObservedInstance, TelemetryOptions } from './listen.ts'
export type { OpenTelemetryApi } from './opentelemetry/api.ts'
export { traceMetadata } from './opentelemetry/links.ts'
export type { Templates } from './templates.ts'

export interface OpenTelemetryOptions extends TelemetryOptions {
  /** `import * as api from '@opentelemetry/api'`, after the SDK has been set up. */
  api: OpenTelemetryApi
  /**
   * Records metrics.
   *
   * @default true
   */
  metrics?: boolean
  /**
   * Records a span for each claim, and one for each function of `withLock` and its siblings.
   *
   * @default true
   */
  spans?: boolean
  /**
   * Whether spans have the name of the lock, and the messages of errors, which contain it. Metrics never have it.
   *
   * @default true
   */
  lockNames?: boolean
}

const OPTIONS = optionNames<OpenTelemetryOptions>({
  api: true,
  templates: true,
  instances: true,
  metrics: true,
  spans: true,
  lockNames: true,
})

/**
 * Reports what the locks, rate limiters and other instances of this process do to OpenTelemetry. Call it once, after
 * the SDK has been set up and before the first lock is taken. docs/reference/telemetry.md lists metrics, spans and
 * attributes.
 *
 * @returns an object whose `close` ends it
 * @throws `InvalidArgumentError`
 *
 * @example
 * ```ts
 * import * as api from '@opentelemetry/api'
 *
 * const telemetry = openTelemetry({ api, templates: ['order:{id}', 'cron:{job}'] })
 * ```
 */
export function openTelemetry(options: OpenTelemetryOptions): { close(): void } {
  checkOptions(options, OPTIONS)
  const { api, templates, instances, metrics = true, spans = true, lockNames = true } = options
  const { metrics: meters, trace, context } = api ?? {}
  checkMethods('api.metrics', meters, ['getMeter'], RULE)
  checkMethods('api.trace', trace, ['getTracer', 'getSpan', 'setSpan'], RULE)
  checkMethods('api.context', context, ['active', 'with'], RULE)
  for (const [name, value] of Object.entries({ metrics, spans, lockNames })) checkBoolean(name, value)
  const stops: (() => void)[] = []
  if (metrics) stops.push(recordWithMeter(meters.getMeter(SCOPE), { templates, instances }))
  if (spans) stops.push(traceSpans({ api, tracer: trace.getTracer(SCOPE), templates, instances, lockNames }))
  return {
    close() {
      for (const stop of stops.splice(0)) stop()
    },
  }
}

/** Records the metrics with instruments of `meter`. Returns a function that ends it. Throws `InvalidArgumentError`. */
function recordWithMeter(meter: OpenTelemetryMeter, options: Unchecked): () => void {
  const ids = (kind: Metric['kind']): MetricId[] => metricIds.filter((id) => METRICS[id].kind === kind)
  const counters = new Map<MetricId, OpenTelemetryCounter>(
    ids('counter').map((id) => [id, meter.createCounter(`holdfast.${id}`, optionsOf(id))]),
  )
  const histograms = new Map<MetricId, OpenTelemetryHistogram>(
    ids('histogram').map((id) => [id, meter.createHistogram(`holdfast.${id}`, optionsOf(id))]),
  )
  const gauges = new Map<MetricId, object>(ids('gauge').map((id) => [id, gaugeOf(meter, id)]))
  const recording = recordMetrics(options, {
    add: (id: CounterId, values, by) => counters.get(id)?.add(by, attributesOf(id, values)),
    record: (id: HistogramId, values, seconds) => histograms.get(id)?.record(seconds, attributesOf(id, values)),
  })
  const observe = (result: OpenTelemetryResult): void => {
    for (const { id, values, value } of recording.gauges()) {
      result.observe(gauges.get(id) as object, value, attributesOf(id, values))
    }
  }
  meter.addBatchObservableCallback(observe, [...gauges.values()])
  return () => {
    recording.close()
    meter.removeBatchObservableCallback(observe, [...gauges.values()])
  }
}

/** Numbers of things can be added up over processes, ages cannot. */
const gaugeOf = (meter: OpenTelemetryMeter, id: MetricId): object =>
  METRICS[id].unit === 's'
    ? meter.createObservableGauge(`holdfast.${id}`, optionsOf(id))
    : meter.createObservableUpDownCounter(`holdfast.${id}`, optionsOf(id))

function optionsOf(id: MetricId): OpenTelemetryMetricOptions {
  const { help, unit, buckets }: Metric = METRICS[id]
  return { description: help, unit, ...(buckets && { advice: { explicitBucketBoundaries: [...buckets] } }) }
}

const attributesOf = (id: MetricId, values: readonly string[]): OpenTelemetryAttributes =>
  Object.fromEntries(METRICS[id].labels.map((label, index) => [LABELS[label], values[index] as string]))

const SCOPE = 'holdfast'
const RULE = "that of the module '@opentelemetry/api'"
