import { checkOptions, optionNames } from '../core/options.ts'
import type { TelemetryOptions } from './listen.ts'
import { CONTENT_TYPE, Registry, textOf } from './prometheus-text.ts'
import { recordMetrics } from './recorder.ts'

export type { ObservedInstance, TelemetryOptions } from './listen.ts'
export type { Templates } from './templates.ts'

/** The metrics of this process for Prometheus. */
export interface PrometheusMetrics {
  /** The value of the header field `Content-Type` for `text()`. */
  readonly contentType: string
  /** All metrics as they are now, in Prometheus's text format. */
  text(): string
  /** Answers a scrape, for frameworks with `(request) => response`. It needs nothing of `this`, nor of the request. */
  readonly handler: (request?: unknown) => Response
  /** Stops counting. Counters keep their values, and gauges are 0. */
  close(): void
}

const OPTIONS = optionNames<TelemetryOptions>({ templates: true, instances: true })

/**
 * Counts what the locks, rate limiters and other instances of this process do, and writes it as text for Prometheus.
 * Call it once, before the first lock is taken. docs/reference/telemetry.md lists the metrics.
 *
 * @throws `InvalidArgumentError`
 *
 * @example
 * ```ts
 * const metrics = prometheusMetrics({ templates: ['order:{id}', 'cron:{job}'] })
 * createServer((request, response) => {
 *   response.setHeader('content-type', metrics.contentType)
 *   response.end(metrics.text())
 * }).listen(9464)
 * ```
 */
export function prometheusMetrics(options: TelemetryOptions = {}): PrometheusMetrics {
  checkOptions(options, OPTIONS)
  const registry = new Registry()
  const recording = recordMetrics(options, registry)
  const text = (): string => textOf(registry, recording.gauges())
  return {
    contentType: CONTENT_TYPE,
    text,
    handler: () => new Response(text(), { headers: { 'content-type': CONTENT_TYPE } }),
    close: () => recording.close(),
  }
}
