import { checkWhole } from '../../core/arguments.ts'
import type { RateAnswer, RateLimit } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { MAX_RATE_LIMITS, MAX_TTL_MS } from '../../core/limits.ts'
import { checkOptions, isArray, optionNames } from '../../core/options.ts'

/** A number of units per period. */
export interface RateLimitOptions {
  /** How many units are available per period in the long run. From 1 to a billion. */
  limit: number
  /** The length of the period. From 0.001 to one year; may be a fraction. */
  periodSeconds: number
  /**
   * How many units are available at once after a pause. In any period, wherever it begins, at most `limit + burst`
   * units are allowed. To allow at most n in any period, choose the two so that their sum is n.
   *
   * @default `limit`
   */
  burst?: number
}

/** The state of one limit after a call. */
export interface LimitStanding {
  /** How many units are available now. */
  readonly remaining: number
  /** The time until one more unit is available. 0 if all are. */
  readonly nextAfterSeconds: number
  /** The time until it is as if nothing had been taken. */
  readonly resetAfterSeconds: number
}

export interface RateLimitResult {
  /** Whether the units were taken. */
  readonly allowed: boolean
  /** How many units are available now under the tightest limit. */
  readonly remaining: number
  /** When the same call can succeed, if no other call takes the units before. 0 if it was allowed. */
  readonly retryAfterSeconds: number
  /** The time until all limits are as if nothing had been taken. */
  readonly resetAfterSeconds: number
  /** The state of each limit, in the order of the limiter's `limits`. */
  readonly limits: readonly LimitStanding[]
  /** The store could not be reached, and the limiter's `fallback` answered. The numbers are those of its limits. */
  readonly fallback?: true
}

/** A limit in the form for drivers, with two numbers that every call needs. */
export interface Limit extends RateLimit {
  /** How long it takes until one unit is available again. */
  readonly spacingMs: number
  /** How long it takes until all units are. */
  readonly fullMs: number
}

const OPTIONS = optionNames<RateLimitOptions>({ limit: true, periodSeconds: true, burst: true })

/** Checks the limits and converts them for drivers. */
export function limitsFrom(options: unknown): readonly Limit[] {
  const isList = isArray(options)
  const list = isList ? options : [options]
  if (list.length === 0 || list.length > MAX_RATE_LIMITS) {
    throw new InvalidArgumentError('limits', options, `one limit, or a list of 1 to ${MAX_RATE_LIMITS}`)
  }
  return list.map((each, index) => limitFrom(isList ? `limits[${index}]` : 'limits', each))
}

function limitFrom(argument: string, options: unknown): Limit {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidArgumentError(argument, options, 'an object with limit and periodSeconds')
  }
  const { limit, periodSeconds, burst = limit } = checkOptions(options as RateLimitOptions, OPTIONS, argument)
  checkWhole(`${argument}.limit`, limit, 1, MAX_UNITS)
  checkWhole(`${argument}.burst`, burst, 1, MAX_UNITS)
  const periodMs = periodMsFrom(`${argument}.periodSeconds`, periodSeconds)
  const spacingMs = periodMs / limit
  const fullMs = spacingMs * burst
  // The store remembers the limit for this long.
  if (fullMs > MAX_TTL_MS) {
    throw new InvalidArgumentError(`${argument}.burst`, burst, 'one that comes back within a year at this limit')
  }
  return { limit, periodMs, burst, spacingMs, fullMs }
}

export function periodMsFrom(argument: string, seconds: unknown): number {
  const periodMs = typeof seconds === 'number' ? seconds * 1_000 : Number.NaN
  if (periodMs >= 1 && periodMs <= MAX_TTL_MS) return periodMs
  throw new InvalidArgumentError(argument, seconds, `a number of seconds from 0.001 to ${MAX_TTL_MS / 1_000}`)
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
  // A thousandth of a unit, because sums of fractions are not exact.
  const remaining = Math.max(0, Math.floor((fullMs - usedMs) / spacingMs + 0.001))
  const nextMs = remaining >= burst ? 0 : Math.max(0, usedMs + spacingMs * (remaining + 1) - fullMs)
  if (blockedMs === 0) return { remaining, nextAfterSeconds: nextMs / 1_000, resetAfterSeconds: usedMs / 1_000 }
  const nextAfterSeconds = Math.max(blockedMs, remaining > 0 ? 0 : nextMs) / 1_000
  return { remaining: 0, nextAfterSeconds, resetAfterSeconds: Math.max(blockedMs, usedMs) / 1_000 }
}

/** The same some time later: the times are shorter, the units stay. */
export function aged(result: RateLimitResult, seconds: number): RateLimitResult {
  const younger = (time: number): number => Math.max(0, time - seconds)
  const limits = result.limits.map(({ remaining, nextAfterSeconds, resetAfterSeconds }) => ({
    remaining,
    nextAfterSeconds: younger(nextAfterSeconds),
    resetAfterSeconds: younger(resetAfterSeconds),
  }))
  return { ...result, resetAfterSeconds: younger(result.resetAfterSeconds), limits }
}

/** What `consume` would answer, computed from a look that takes nothing. */
export function foreseen(answer: RateAnswer, cost: number, limits: readonly Limit[]): RateLimitResult {
  const retryAfterMs = Math.max(
    answer.blockedMs ?? 0,
    ...limits.map(({ spacingMs, fullMs }, at) => (answer.usedMs[at] ?? 0) + spacingMs * cost - fullMs),
  )
  const allowed = answer.remaining >= cost
  return { ...resultFrom(answer, limits), allowed, retryAfterSeconds: allowed ? 0 : retryAfterMs / 1_000 }
}

export interface ConsumeOptions {
  /**
   * How many units the call takes, all or none. At most the smallest burst.
   *
   * @default 1
   */
  cost?: number
}

export interface RateWaitOptions extends ConsumeOptions {
  /**
   * How long to wait at most.
   *
   * @default 10
   */
  blockingTimeoutSeconds?: number
  /** Ends the wait: the call rejects with an `AbortedError`. */
  signal?: AbortSignal
}

export const CONSUME_OPTIONS = optionNames<ConsumeOptions>({ cost: true })
export const WAIT_OPTIONS = optionNames<RateWaitOptions>({ cost: true, blockingTimeoutSeconds: true, signal: true })
