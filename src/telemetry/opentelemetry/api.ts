/**
 * The part of `@opentelemetry/api` that is used, so that users are not tied to a version of it, and need it only if
 * they use this entry.
 */
export interface OpenTelemetryApi {
  readonly metrics: { getMeter(name: string): OpenTelemetryMeter }
  readonly trace: {
    getTracer(name: string): OpenTelemetryTracer
    setSpan(context: OpenTelemetryContext, span: OpenTelemetrySpan): OpenTelemetryContext
    getSpan(context: OpenTelemetryContext): OpenTelemetrySpan | undefined
    isSpanContextValid(context: OpenTelemetrySpanContext): boolean
  }
  readonly context: {
    active(): OpenTelemetryContext
    with<T>(context: OpenTelemetryContext, run: () => T): T
  }
}

export interface OpenTelemetryContext {
  getValue(key: symbol): unknown
}

export interface OpenTelemetrySpanContext {
  traceId: string
  spanId: string
  traceFlags: number
  isRemote?: boolean
}

export type OpenTelemetryAttributes = Record<string, string | number | boolean>

export interface OpenTelemetrySpan {
  spanContext(): OpenTelemetrySpanContext
  setStatus(status: { code: number; message?: string }): unknown
  setAttribute(name: string, value: string): unknown
  addEvent(name: string, attributes: OpenTelemetryAttributes): unknown
  recordException(error: Error): void
  end(endTime?: number): void
}

export interface OpenTelemetryTracer {
  startSpan(name: string, options?: OpenTelemetrySpanOptions, context?: OpenTelemetryContext): OpenTelemetrySpan
}

export interface OpenTelemetrySpanOptions {
  startTime?: number
  attributes: OpenTelemetryAttributes
  links?: { context: OpenTelemetrySpanContext; attributes: OpenTelemetryAttributes }[]
}

export interface OpenTelemetryMeter {
  createCounter(name: string, options: OpenTelemetryMetricOptions): OpenTelemetryCounter
  createHistogram(name: string, options: OpenTelemetryMetricOptions): OpenTelemetryHistogram
  createObservableGauge(name: string, options: OpenTelemetryMetricOptions): object
  createObservableUpDownCounter(name: string, options: OpenTelemetryMetricOptions): object
  addBatchObservableCallback(callback: (result: OpenTelemetryResult) => void, observables: object[]): void
  removeBatchObservableCallback(callback: (result: OpenTelemetryResult) => void, observables: object[]): void
}

export interface OpenTelemetryMetricOptions {
  description: string
  unit: string
  advice?: { explicitBucketBoundaries: number[] }
}

export interface OpenTelemetryCounter {
  add(value: number, attributes: OpenTelemetryAttributes): void
}

export interface OpenTelemetryHistogram {
  record(value: number, attributes: OpenTelemetryAttributes): void
}

export interface OpenTelemetryResult {
  observe(observable: object, value: number, attributes: OpenTelemetryAttributes): void
}
