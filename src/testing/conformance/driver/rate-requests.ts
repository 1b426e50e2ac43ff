import type { RateChange, RateLimit, RateRequest } from '../../../core/driver.ts'

/** One an hour: no unit is given back while a test runs, however slow the machine is. */
export const HOURLY = { limit: 1, periodMs: 3_600_000 }

export const TEN_AN_HOUR = { limit: 10, periodMs: 3_600_000, burst: 10 }
export const TWENTY_A_DAY = { limit: 20, periodMs: 86_400_000, burst: 20 }

export const requestOn = (name: string, limit: RateLimit, cost = 1, ...more: RateLimit[]): RateRequest => ({
  name,
  cost,
  limits: [limit, ...more],
})

export const changeOf = ({ name, limits }: RateRequest, change: RateChange): RateRequest => ({
  name,
  cost: 0,
  limits,
  change,
})

/** Allows for a minute of the test's own running time. */
export const isJustBelow = (ms: number, boundMs: number): boolean => ms <= boundMs + 1 && ms > boundMs - 60_000
