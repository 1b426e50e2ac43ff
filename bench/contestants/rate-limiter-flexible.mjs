// @ts-check
import { importPeer, openIoredis, openPool } from '../support/clients.mjs'
import { MANY } from '../support/names.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */
/**
 * @typedef {{ consume(key: string): Promise<unknown> }} Limiter
 * @typedef {new (options: object, done?: (error?: Error) => void) => Limiter} LimiterClass
 * @typedef {Record<'RateLimiterMemory' | 'RateLimiterPostgres' | 'RateLimiterRedis', LimiterClass>} Limiters
 */

const LIMITS = { points: MANY, duration: 60 }

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ driver, stores }) {
  const { RateLimiterMemory, RateLimiterPostgres, RateLimiterRedis } = /** @type {Limiters} */ (
    await importPeer('rate-limiter-flexible')
  )
  if (driver === 'memory') {
    const limiter = new RateLimiterMemory(LIMITS)
    return { consume: (key) => limiter.consume(key), async close() {} }
  }
  if (driver === 'redis') {
    const client = openIoredis(stores.redis)
    const limiter = new RateLimiterRedis({ ...LIMITS, storeClient: client })
    return { consume: (key) => limiter.consume(key), close: async () => client.disconnect() }
  }
  const pool = openPool(stores.postgres)
  /** @type {Limiter} */
  const limiter = await new Promise((resolve, reject) => {
    /** @param {Error} [error] */
    const done = (error) => (error ? reject(error) : resolve(made))
    const made = new RateLimiterPostgres({ ...LIMITS, storeClient: pool, tableName: 'bench_flexible' }, done)
  })
  return { consume: (key) => limiter.consume(key), close: () => pool.end() }
}
