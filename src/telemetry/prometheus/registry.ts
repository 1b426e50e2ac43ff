import { type CounterId, type HistogramId, METRICS, type MetricId, type Sink } from '../metrics.ts'

export interface CounterSeries {
  readonly values: readonly string[]
  count: number
}

export interface HistogramSeries {
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
