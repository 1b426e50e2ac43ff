import type { RateHistory } from '../history.ts'
import type { Loss } from './losses.ts'
import { byName, type Check, ratesOf } from './run.ts'

/** Sums of fractions are not exact. */
const ROUNDING = 0.001
/** A store whose clock shows whole milliseconds may take a time for up to this much longer than it was. */
const CLOCK_MS = 1

/**
 * No time admits more units than its limit: at most the burst, and what comes back in that time. A step counts only for
 * a time that includes both its request and its answer, because the store decided in between.
 */
export const rate: Check = {
  name: 'rate',
  find: (run) =>
    [...byName(ratesOf(run)).values()].flatMap((steps) => {
      const worst = mostExcessive(steps, run.losses)
      if (worst === undefined) return []
      const { name, units, most, fromMs, toMs } = worst
      const within = `within ${Math.round(toMs - fromMs)} ms`
      const text = `"${name}" admitted ${units} units ${within}, but at most ${most.toFixed(1)}`
      return [{ text, lockName: name, fromMs, toMs }]
    }),
}

interface Excessive {
  name: string
  units: number
  most: number
  fromMs: number
  toMs: number
}

/** The time that is furthest above its limit. A time in which the store has lost its data is left out. */
function mostExcessive(steps: readonly RateHistory[], losses: readonly Loss[]): Excessive | undefined {
  const allowed = steps.filter((step) => step.allowed === true).sort((a, b) => a.answeredAt - b.answeredAt)
  let worst: Excessive | undefined
  for (const { name, limit, periodMs, burst, askedAt: fromMs } of allowed) {
    let units = 0
    for (const { cost, askedAt, answeredAt: toMs } of allowed) {
      if (askedAt < fromMs) continue
      if (losses.some((loss) => loss.fromMs <= toMs && loss.toMs >= fromMs)) break
      units += cost
      const most = burst + (limit * (toMs - fromMs + CLOCK_MS)) / periodMs
      const excess = worst === undefined ? ROUNDING : worst.units - worst.most
      if (units - most > excess) worst = { name, units, most, fromMs, toMs }
    }
  }
  return worst
}
