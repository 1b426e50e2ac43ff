// @ts-check

/** @param {readonly number[]} values */
export const median = (values) => quantile(values, 0.5)

/**
 * @param {readonly number[]} values
 * @param {number} share 0.99 for the 99th percentile
 */
export function quantile(values, share) {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}
