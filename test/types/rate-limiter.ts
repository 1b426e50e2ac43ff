import type { RateLimitedError, RateLimiter, RateLimiterOptions, RateLimitResult } from 'holdfast'
import { rateLimitExpress } from 'holdfast/rate-limit-http'
import type { Equal } from './equal.ts'

export const oneLimitOrSeveral: RateLimiterOptions[] = [
  { limits: { limit: 1, periodSeconds: 1 } },
  { limits: [{ limit: 1, periodSeconds: 1, burst: 2 }] },
  // @ts-expect-error a limit has a period
  { limits: { limit: 1 } },
  // @ts-expect-error a rate limiter has no leases, so it has no heartbeat
  { limits: { limit: 1, periodSeconds: 1 }, heartbeatThread: true },
]

export const contentionIsAValue: Equal<Awaited<ReturnType<RateLimiter['consume']>>, RateLimitResult> = true
export const codeIsLiteral: Equal<RateLimitedError['code'], 'RATE_LIMITED'> = true

/** By default, the request is that of node:http. */
export const keyOfAddress = (limiter: RateLimiter) => rateLimitExpress({ limiter, key: ({ ip }) => ip })
