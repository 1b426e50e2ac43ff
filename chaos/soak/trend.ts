/** How a measure has changed from the second quarter of its samples to the last one. */
export interface Trend {
  name: string
  unit: 'bytes' | 'count'
  /** The medians of the second and of the last quarter. */
  second: number
  last: number
  /** The first sample, one in the middle, and the last one, to see its course. */
  course: [first: number, middle: number, last: number]
  growth: number
  /** More growth than this is a violation. Undefined: the run is too short to judge it. */
  most: number | undefined
}

export interface Measure {
  name: string
  unit: 'bytes' | 'count'
  /** The growth that is allowed: the larger of a part of the second quarter's median, and an amount. */
  part: number
  amount: number
  /** A shorter run is not judged. */
  leastSeconds?: number
}

/** Fewer samples say nothing about a trend. */
const LEAST_SAMPLES = 16

export function trendOf({ name, unit, ...bounds }: Measure, values: readonly number[], seconds: number): Trend {
  const quarter = (number: number): number =>
    median(values.slice((values.length * number) / 4, (values.length * (number + 1)) / 4))
  const [second, last] = [quarter(1), quarter(3)]
  const isJudged = values.length >= LEAST_SAMPLES && seconds >= (bounds.leastSeconds ?? 0)
  return {
    name,
    unit,
    second,
    last,
    course: [values[0] ?? 0, values[Math.floor(values.length / 2)] ?? 0, values.at(-1) ?? 0],
    growth: last - second,
    most: isJudged ? Math.max(second * bounds.part, bounds.amount) : undefined,
  }
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}
