import { checkWhole } from '../../core/arguments.ts'
import type { RateAnswer, RateLimit } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { MAX_RATE_LIMITS, MAX_TTL_MS } from '../../core/limits.ts'
import { checkOptions, optionNames } from '../../core/options.ts'

/** So many in a period, in the long run. */
export interface RateLimitOptions {
  /** How many units come back in a period. From 1 to a billion. */
  limit: number
  /** From 0.001 to one year. Fractions are welcome. */
  periodSeconds: number
  /**
   * How many units can be had at once after a rest; `limit` if not said. In any period, wherever it begins, never more than `limit + burst` are
   * allowed, and in a quiet one `limit`. Whoever must not have more than n in any period whatsoever chooses the two so that they add up to n.
   */
  burst?: number
}

/** Where one of a limiter's limits stands after a call. */
export interface LimitStanding {
  /** How many units could be had now. */
  readonly remaining: number
  /** Until there is one more than that; 0 if nothing is missing. */
  readonly nextAfterSeconds: number
  /** Until it is as if nothing had been taken. */
  readonly resetAfterSeconds: number
}

export interface RateLimitResult {
  readonly allowed: boolean
  /** How many units could be had now, under the tightest of the limits. */
  readonly remaining: number
  /** When the same call can succeed, if nobody else takes what comes back until then. 0 if it was allowed. */
  readonly retryAfterSeconds: number
  /** Until everything is as if nothing had been taken. */
  readonly resetAfterSeconds: number
  /** The same for each of the limits, in the order in which the limiter was given them. */
  readonly limits: readonly LimitStanding[]
  /** The store could not be asked, and the limiter's `fallback` has answered: the numbers are those of its limits. */
  readonly fallback?: true
}

/** A limit as drivers take it, and what is asked of it with every call. */
export interface Limit extends RateLimit {
  /** How long one unit takes to come back. */
  readonly spacingMs: number
  /** How long all of them do. */
  readonly fullMs: number
}

const OPTIONS = optionNames<RateLimitOptions>({ limit: true, periodSeconds: true, burst: true })

/** Checks them, and puts them as drivers take them. */
export function limitsFrom(options: unknown): readonly Limit[] {
  const list: readonly unknown[] = Array.isArray(options) ? options : [options]
  if (list.length === 0 || list.length > MAX_RATE_LIMITS) {
    throw new InvalidArgumentError('limits', options, `one limit, or a list of 1 to ${MAX_RATE_LIMITS}`)
  }
  return list.map((each, index) => limitFrom(Array.isArray(options) ? `limits[${index}]` : 'limits', each))
}

function limitFrom(argument: string, options: unknown): Limit {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidArgumentError(argument, options, 'an object with limit and periodSeconds')
  }
  const { limit, periodSeconds, burst = limit } = checkOptions(options as Partial<RateLimitOptions>, OPTIONS, argument)
  checkWhole(`${argument}.limit`, limit, 1, MAX_UNITS)
  checkWhole(`${argument}.burst`, burst, 1, MAX_UNITS)
  const periodMs = typeof periodSeconds === 'number' ? periodSeconds * 1_000 : Number.NaN
  if (!(periodMs >= 1 && periodMs <= MAX_TTL_MS)) {
    const rule = `a number of seconds from 0.001 to ${MAX_TTL_MS / 1_000}`
    throw new InvalidArgumentError(`${argument}.periodSeconds`, periodSeconds, rule)
  }
  const spacingMs = periodMs / (limit as number)
  const fullMs = spacingMs * (burst as number)
  // So long the store remembers it.
  if (fullMs > MAX_TTL_MS) {
    throw new InvalidArgumentError(`${argument}.burst`, burst, 'one that comes back within a year at this limit')
  }
  return { limit: limit as number, periodMs, burst: burst as number, spacingMs, fullMs }
}

const MAX_UNITS = 1_000_000_000

export function resultFrom(answer: RateAnswer, limits: readonly Limit[]): RateLimitResult {
  const standings = new Array<LimitStanding>(limits.length)
  for (let at = 0; at < limits.length; at += 1) {
    standings[at] = standing(limits[at] as Limit, answer.usedMs[at] as number, answer.blockedMs)
  }
  return {
    allowed: answer.allowed,
    remaining: answer.remaining,
    retryAfterSeconds: answer.retryAfterMs / 1_000,
    resetAfterSeconds: answer.resetAfterMs / 1_000,
    limits: standings,
  }
}

function standing({ burst, spacingMs, fullMs }: Limit, usedMs: number, blockedMs = 0): LimitStanding {
  // A thousandth of a unit: fractions do not come out even.
  const remaining = Math.max(0, Math.floor((fullMs - usedMs) / spacingMs + 0.001))
  const nextMs = remaining >= burst ? 0 : Math.max(0, usedMs + spacingMs * (remaining + 1) - fullMs)
  if (blockedMs === 0) return { remaining, nextAfterSeconds: nextMs / 1_000, resetAfterSeconds: usedMs / 1_000 }
  const nextAfterSeconds = Math.max(blockedMs, remaining > 0 ? 0 : nextMs) / 1_000
  return { remaining: 0, nextAfterSeconds, resetAfterSeconds: Math.max(blockedMs, usedMs) / 1_000 }
}

/** What `consume` would say, from a look at what has been taken. */
export function foreseen(answer: RateAnswer, cost: number, limits: readonly Limit[]): RateLimitResult {
  const retryAfterMs = Math.max(
    answer.blockedMs ?? 0,
    ...limits.map(({ spacingMs, fullMs }, at) => (answer.usedMs[at] ?? 0) + spacingMs * cost - fullMs),
  )
  const allowed = answer.remaining >= cost
  return { ...resultFrom(answer, limits), allowed, retryAfterSeconds: allowed ? 0 : retryAfterMs / 1_000 }
}
