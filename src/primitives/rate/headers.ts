import { InvalidArgumentError } from '../../core/errors.ts'
import { isArray } from '../../core/options.ts'
import type { RateLimitOptions, RateLimitResult } from './limits.ts'
import type { RateLimiter } from './rate-limiter.ts'

/** The HTTP header fields of a limiter, as in draft-ietf-httpapi-ratelimit-headers-11. */
export interface RateLimitHeaders {
  /** `RateLimit-Policy`: the same in every response. */
  readonly policy: string
  /** `RateLimit`: what is left of each limit; in a refusal, only of the exceeded limits. */
  standing(result: RateLimitResult, cost: number): string
  /** `Retry-After`, in whole seconds. */
  retryAfter(result: RateLimitResult): string
  /** The body of a refusal, as `application/problem+json`. */
  problem(result: RateLimitResult, cost: number): string
}

export function rateLimitHeaders(limiter: RateLimiter, names?: readonly string[]): RateLimitHeaders {
  const { limits } = limiter
  const quoted = checkNames(names ?? limits.map(nameOf), limits.length).map((name) => `"${name}"`)
  // A fallback has other limits.
  const exceeded = (result: RateLimitResult, cost: number): number[] =>
    (result.fallback ? [] : limits).flatMap((_, at) =>
      !result.allowed && (result.limits[at]?.remaining ?? 0) >= cost ? [] : [at],
    )
  return {
    policy: limits.map((limit, at) => `${quoted[at]}${policyOf(limit)}`).join(', '),
    standing: (result, cost) =>
      exceeded(result, cost)
        .map((at) => {
          const { remaining = 0, nextAfterSeconds = 0 } = result.limits[at] ?? {}
          return `${quoted[at]};r=${remaining};t=${wholeSeconds(nextAfterSeconds)}`
        })
        .join(', '),
    retryAfter: ({ retryAfterSeconds }) => `${wholeSeconds(retryAfterSeconds)}`,
    problem: (result, cost) =>
      JSON.stringify({
        type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
        title: 'Request cannot be satisfied as assigned quota has been exceeded',
        'violated-policies': exceeded(result, cost).map((at) => quoted[at]?.slice(1, -1)),
      }),
  }
}

/**
 * The field has only whole seconds: 10 in 0.1 s become 100 in 1 s. A burst other than the limit is our own parameter.
 */
function policyOf({ limit, periodSeconds, burst }: Required<RateLimitOptions>): string {
  const window = wholeSeconds(periodSeconds)
  const quota = Math.floor((limit * window) / periodSeconds + 1e-9)
  return `;q=${quota};w=${window}${burst === limit ? '' : `;holdfast-burst=${burst}`}`
}

const nameOf = ({ periodSeconds }: RateLimitOptions, _: number, { length }: { length: number }): string =>
  length === 1 ? 'default' : `per-${periodSeconds}s`

/** Rounded up: a client that comes too early is refused again. */
const wholeSeconds = (seconds: number): number => Math.max(1, Math.ceil(seconds - 1e-9))

function checkNames(names: unknown, count: number): readonly string[] {
  const isName = (name: unknown): boolean => typeof name === 'string' && /^[ !#-[\]-~]+$/.test(name)
  if (!isArray(names) || names.length !== count || !names.every(isName)) {
    throw new InvalidArgumentError('names', names, `${count} names, of printable ASCII without quotes and backslashes`)
  }
  return names as string[]
}
