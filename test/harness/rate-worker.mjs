// @ts-check
// What a process of test/primitives/rate/stores.test.ts can be told to do, on the built package. See test/harness/worker.ts.
import { RateLimiter } from 'holdfast'

/** @type {import('holdfast').RateLimiter} */
let limiter

/** @param {import('holdfast').RateLimiterOptions} options */
export async function open(options) {
  limiter = new RateLimiter(options)
  await limiter.peek('warm')
}

/**
 * So many calls, 16 at a time. Answers when each that was allowed was sent and answered: by the machine's monotonic clock, which is the same
 * for all of its processes. An answer that did not come, as on a machine that is too busy, is none that was allowed.
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
        // A refusal that is remembered costs nothing: without a pause all calls would be made before the next unit comes.
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
