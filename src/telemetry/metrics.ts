/**
 * Every metric, once for both entries. OpenTelemetry uses the names as they are. Prometheus writes underscores, the
 * unit and `_total`. docs/reference/telemetry.md lists them, and a test compares the two.
 */
export const METRICS = {
  wait: {
    kind: 'histogram',
    name: 'holdfast.lock.wait.duration',
    unit: 's',
    labels: ['lock', 'outcome'],
    help: 'Time from the request for a lock to its end, also of claims that were granted at once.',
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
  },
  hold: {
    kind: 'histogram',
    name: 'holdfast.lock.hold.duration',
    unit: 's',
    labels: ['lock', 'outcome'],
    help: 'Time for which a lease was held.',
    buckets: [0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600],
  },
  renewal: {
    kind: 'histogram',
    name: 'holdfast.lock.renewal.duration',
    unit: 's',
    labels: ['lock'],
    help: 'Time from the request to renew a lease to its confirmation.',
    buckets: [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5],
  },
  contentions: {
    kind: 'counter',
    name: 'holdfast.lock.contentions',
    unit: '{claim}',
    labels: ['lock'],
    help: 'Claims that found the lock held, and then waited or were refused.',
  },
  refusals: {
    kind: 'counter',
    name: 'holdfast.lock.refusals',
    unit: '{claim}',
    labels: ['lock'],
    help: 'Claims that ended without a lease because another claim held the lock.',
  },
  handoffs: {
    kind: 'counter',
    name: 'holdfast.lock.handoffs',
    unit: '{lease}',
    labels: ['lock'],
    help: 'Grants to a claim that had waited.',
  },
  losses: {
    kind: 'counter',
    name: 'holdfast.lock.losses',
    unit: '{lease}',
    labels: ['lock', 'reason'],
    help: 'Leases that ended before they were released.',
  },
  breaks: {
    kind: 'counter',
    name: 'holdfast.lock.breaks',
    unit: '{lock}',
    labels: ['lock'],
    help: 'Locks that this process took from their holder by force.',
  },
  renewalFailures: {
    kind: 'counter',
    name: 'holdfast.lock.renewal.failures',
    unit: '{renewal}',
    labels: ['lock'],
    help: 'Renewals that the store did not confirm.',
  },
  releaseFailures: {
    kind: 'counter',
    name: 'holdfast.lock.release.failures',
    unit: '{release}',
    labels: ['lock'],
    help: 'Releases that the store did not confirm.',
  },
  storeErrors: {
    kind: 'counter',
    name: 'holdfast.store.errors',
    unit: '{error}',
    labels: ['operation'],
    help: 'Requests that the store did not answer, by operation.',
  },
  heartbeatFailures: {
    kind: 'counter',
    name: 'holdfast.heartbeat.failures',
    unit: '{failure}',
    labels: [],
    help: 'Heartbeat threads that ended, so that the main thread renews.',
  },
  decisions: {
    kind: 'counter',
    name: 'holdfast.ratelimit.decisions',
    unit: '{decision}',
    labels: ['key', 'decision'],
    help: 'Decisions of rate limiters.',
  },
  held: {
    kind: 'gauge',
    name: 'holdfast.lock.held',
    unit: '{lease}',
    labels: ['lock'],
    help: 'Leases that this process holds.',
  },
  waiters: {
    kind: 'gauge',
    name: 'holdfast.lock.waiters',
    unit: '{claim}',
    labels: ['lock'],
    help: 'Claims of this process that wait.',
  },
  longestHold: {
    kind: 'gauge',
    name: 'holdfast.lock.longest_hold',
    unit: 's',
    labels: ['lock'],
    help: 'Age of the oldest lease that this process holds.',
  },
  longestWait: {
    kind: 'gauge',
    name: 'holdfast.lock.longest_wait',
    unit: 's',
    labels: ['lock'],
    help: 'Age of the oldest claim of this process that waits.',
  },
} as const satisfies Record<string, Metric>

export interface Metric {
  readonly kind: 'histogram' | 'counter' | 'gauge'
  readonly name: string
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
