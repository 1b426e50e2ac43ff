// @ts-check
// The functions of a worker (see worker.ts) of test/primitives/rate/stores.test.ts, on the built package.
import { RateLimiter } from 'holdfast'

/** @type {import('holdfast').RateLimiter} */
let limiter

/** @param {import('holdfast').RateLimiterOptions} options */
export async function open(options) {
  limiter = new RateLimiter(options)
  await limiter.peek('warm')
}

/**
 * Makes `calls` calls, 16 at a time. Returns for each allowed call when it was sent and answered, on the machine's
 * monotonic clock, which all its processes share. A call without an answer, as on a busy machine, is not counted.
 *
 * @param {{ key: string, calls: number }} task
 */
export async function hammer({ key, calls }) {
  /** @type {[sentMs: number, answeredMs: number][]} */
  const allowed = []
  let left = calls
  await Promise.all(
    Array.from({ length: 16 }, async () => {
      while (left > 0) {
        left -= 1
        const sentMs = monotonicMs()
        const result = await limiter.consume(key).catch(unlessUnanswered)
        if (result?.allowed) allowed.push([sentMs, monotonicMs()])
        // A cached refusal takes no time: without a pause, all calls would be made before the next unit is free.
        else await new Promise((resolve) => setTimeout(resolve, 1))
      }
    }),
  )
  return allowed
}

function monotonicMs() {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1_000 + nanoseconds / 1_000_000
}

/** @param {Error & { code?: string }} error */
function unlessUnanswered(error) {
  if (error.code !== 'STORE_UNAVAILABLE') throw error
  return undefined
}
