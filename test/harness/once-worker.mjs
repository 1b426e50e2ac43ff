// @ts-check
// The functions of a worker (see worker.ts) of test/primitives/once/processes.test.ts, on the built package.
import { setTimeout as sleep } from 'node:timers/promises'
import { OnceOnly } from 'holdfast'
import { redisFence } from 'holdfast/drivers/redis'
import { Redis } from 'ioredis'

const AT_ONCE = 2

/** The effect: checks the token and records the run under its key, atomically. Returns the run that was recorded. */
const RECORD = `
  if redis.call('SETNX', KEYS[1], ARGV[2]) == 1 then redis.call('RPUSH', KEYS[2], ARGV[1]) end
  return redis.call('GET', KEYS[1])`

/**
 * Calls `once` for every key in random order, several at a time. Returns the result of each.
 *
 * @param {{ url: string, redisUrl: string, prefix: string, keys: number, thinkMs: number }} task
 */
export async function runAll({ url, redisUrl, prefix, keys, thinkMs }) {
  const client = new Redis(redisUrl)
  const fence = redisFence({ client })
  const jobs = new OnceOnly({ url })
  /** @type {Record<string, unknown>} */
  const results = {}
  const left = shuffled(keys)
  const work = async () => {
    for (let key = left.pop(); key !== undefined; key = left.pop()) {
      const name = `${prefix}:${key}`
      results[key] = await again(() =>
        jobs.once(
          name,
          async ({ fencingToken }) => {
            await client.incr(`${prefix}:runs`)
            await sleep(Math.random() * thinkMs) // so that some runs are killed before the effect,
            const madeBy = await fence.run(RECORD, {
              token: fencingToken,
              keys: [`${name}:effect`, `${prefix}:effects`],
              args: [String(key), String(fencingToken)],
            })
            await sleep(Math.random() * thinkMs) // and some after it, before the result is stored
            return { madeBy }
          },
          { forSeconds: 3_600, timeoutSeconds: 1 },
        ),
      )
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work))
  await jobs.close()
  client.disconnect()
  return results
}

/**
 * On a busy machine a lease of a second can be lost. Then the call is repeated, as a caller would do.
 *
 * @template T
 * @param {() => Promise<T>} run
 * @returns {Promise<T>}
 */
async function again(run) {
  for (;;) {
    try {
      return await run()
    } catch (error) {
      const { code } = /** @type {{ code?: string }} */ (error)
      if (code !== 'LEASE_LOST' && code !== 'STALE_TOKEN' && code !== 'STORE_UNAVAILABLE') throw error
    }
  }
}

/** @param {number} count */
function shuffled(count) {
  const numbers = Array.from({ length: count }, (_, index) => ({ index, at: Math.random() }))
  return numbers.sort((a, b) => a.at - b.at).map(({ index }) => index)
}
