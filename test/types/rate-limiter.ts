import type { RateLimitedError, RateLimiter, RateLimiterOptions, RateLimitResult } from 'holdfast'
import { rateLimitExpress } from 'holdfast/rate-limit-http'
import type { Equal } from './equal.ts'

export const oneLimitOrSeveral: RateLimiterOptions[] = [
  { limits: { limit: 1, periodSeconds: 1 } },
  { limits: [{ limit: 1, periodSeconds: 1, burst: 2 }] },
  // @ts-expect-error a limit has a period
  { limits: { limit: 1 } },
  // @ts-expect-error leases are what a heartbeat is for
  { limits: { limit: 1, periodSeconds: 1 }, heartbeatThread: true },
]

export const contentionIsAValue: Equal<Awaited<ReturnType<RateLimiter['consume']>>, RateLimitResult> = true
export const codeIsLiteral: Equal<RateLimitedError['code'], 'RATE_LIMITED'> = true

/** A request of node:http, where nothing else is said. */
export const keyOfAddress = (limiter: RateLimiter) => rateLimitExpress({ limiter, key: ({ ip }) => ip })
