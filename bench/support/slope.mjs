// @ts-check
/** @import { Plot } from '../types.d.ts' */

/**
 * How a cost grows from its first point to its last, and the exponent of a power of x that fits all points best.
 *
 * @param {Plot} plot
 * @param {Plot['lines'][number]} line
 */
export function slopeInWords({ x, y }, { points }) {
  const [first, last] = [points[0], points.at(-1)]
  if (first === undefined || last === undefined || points.length < 2) return 'too few points'
  const exponent = exponentOf(points)
  const grows = last[1] / first[1]
  const how =
    exponent < 0.05
      ? 'does not grow'
      : exponent < 0.3
        ? 'grows slowly'
        : exponent < 0.8
          ? 'grows less than in proportion'
          : exponent < 1.2
            ? 'grows in proportion'
            : 'grows faster than in proportion'
  return (
    `${y} ${how} with ${x}: ${short(first[1])} at ${first[0].toLocaleString('en')}, ` +
    `${short(last[1])} at ${last[0].toLocaleString('en')} (× ${grows.toFixed(2)}, exponent ${exponent.toFixed(2)})`
  )
}

/**
 * The slope of the line of least squares through the logarithms.
 *
 * @param {Plot['lines'][number]['points']} points
 */
export function exponentOf(points) {
  const logs = points.map(([x, y]) => [Math.log(x), Math.log(y)]).filter((pair) => pair.every(Number.isFinite))
  const mean = (/** @type {number} */ index) => logs.reduce((sum, pair) => sum + (pair[index] ?? 0), 0) / logs.length
  const [meanX, meanY] = [mean(0), mean(1)]
  let covariance = 0
  let variance = 0
  for (const [x = 0, y = 0] of logs) {
    covariance += (x - meanX) * (y - meanY)
    variance += (x - meanX) ** 2
  }
  return variance === 0 ? 0 : covariance / variance
}

/** @param {number} value */
const short = (value) => value.toLocaleString('en', { maximumSignificantDigits: 3 })
