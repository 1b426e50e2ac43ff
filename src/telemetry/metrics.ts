const histogram = (labels: readonly Label[], help: string, buckets: readonly number[]) =>
  ({ kind: 'histogram', unit: 's', labels, help, buckets }) as const
const counter = (unit: string, labels: readonly Label[], help: string) =>
  ({ kind: 'counter', unit, labels, help }) as const
const gauge = (unit: string, labels: readonly Label[], help: string) => ({ kind: 'gauge', unit, labels, help }) as const

/**
 * Every metric by its name, once for both entries. OpenTelemetry writes `holdfast.` before it. Prometheus also writes
 * underscores, the unit and `_total`. docs/reference/telemetry.md lists them, and a test compares the two.
 */
export const METRICS = {
  'lock.wait.duration': histogram(
    ['lock', 'outcome'],
    'Time from the request for a lock to its end, also of claims that were granted at once.',
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
  ),
  'lock.hold.duration': histogram(
    ['lock', 'outcome'],
    'Time for which a lease was held.',
    [0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600],
  ),
  'lock.renewal.duration': histogram(
    ['lock'],
    'Time from the request to renew a lease to its confirmation.',
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5],
  ),
  'lock.contentions': counter('{claim}', ['lock'], 'Claims that found the lock held, and then waited or were refused.'),
  'lock.refusals': counter(
    '{claim}',
    ['lock'],
    'Claims that ended without a lease because another claim held the lock.',
  ),
  'lock.handoffs': counter('{lease}', ['lock'], 'Grants to a claim that had waited.'),
  'lock.losses': counter('{lease}', ['lock', 'reason'], 'Leases that ended before they were released.'),
  'lock.forced_releases': counter('{lock}', ['lock'], 'Locks that this process force-released.'),
  'lock.renewal.failures': counter('{renewal}', ['lock'], 'Renewals that the store did not confirm.'),
  'lock.release.failures': counter('{release}', ['lock'], 'Releases that the store did not confirm.'),
  'store.errors': counter('{error}', ['operation'], 'Requests that the store did not answer, by operation.'),
  'heartbeat.failures': counter('{failure}', [], 'Heartbeat threads that ended, so that the main thread renews.'),
  'ratelimit.decisions': counter('{decision}', ['key', 'decision'], 'Decisions of rate limiters.'),
  'lock.held': gauge('{lease}', ['lock'], 'Leases that this process holds.'),
  'lock.waiters': gauge('{claim}', ['lock'], 'Claims of this process that wait.'),
  'lock.longest_hold': gauge('s', ['lock'], 'Age of the oldest lease that this process holds.'),
  'lock.longest_wait': gauge('s', ['lock'], 'Age of the oldest claim of this process that waits.'),
} as const

export interface Metric {
  readonly kind: 'histogram' | 'counter' | 'gauge'
  /** `s`, or what is counted, in braces. */
  readonly unit: string
  readonly labels: readonly Label[]
  readonly help: string
  /** The upper bounds of a histogram's buckets, in seconds. */
  readonly buckets?: readonly number[]
}

export type Label = keyof typeof LABELS

/** The names of the labels in OpenTelemetry, where names of a library begin with its own. */
export const LABELS = {
  lock: 'holdfast.lock.template',
  key: 'holdfast.key.template',
  outcome: 'holdfast.outcome',
  reason: 'holdfast.reason',
  operation: 'holdfast.operation',
  decision: 'holdfast.decision',
} as const

export type MetricId = keyof typeof METRICS
type OfKind<Kind> = { [Id in MetricId]: (typeof METRICS)[Id]['kind'] extends Kind ? Id : never }[MetricId]
export type HistogramId = OfKind<'histogram'>
export type CounterId = OfKind<'counter'>
export type GaugeId = OfKind<'gauge'>

export const metricIds = Object.keys(METRICS) as MetricId[]

/** Receives what is measured. `values` are those of the metric's labels, in their order. */
export interface Sink {
  /** Adding 0 makes the counter visible before its first event: a rate needs a first sample to compare with. */
  add(id: CounterId, values: readonly string[], by: number): void
  record(id: HistogramId, values: readonly string[], seconds: number): void
}

export interface GaugeReading {
  readonly id: GaugeId
  readonly values: readonly string[]
  readonly value: number
}
