// @ts-check
// The same commands as in redis-floor.mjs, through node-redis.
import { COMPARE_AND_DELETE, COMPARE_AND_DELETE_SHA } from '../support/bare-redis.mjs'
import { openNodeRedis } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const client = await openNodeRedis(stores.redis)
  await client.scriptLoad(COMPARE_AND_DELETE)
  let turn = 0
  return {
    async pair(name) {
      turn += 1
      const value = `${process.pid}:${turn}`
      if ((await client.set(name, value, { PX: 30_000, NX: true })) !== 'OK') throw new Error('held')
      await client.evalSha(COMPARE_AND_DELETE_SHA, { keys: [name], arguments: [value] })
    },
    prime: (name) => client.rPush(name, 'token'),
    async hold(name) {
      while ((await client.blPop(name, 10)) === null);
      return () => client.rPush(name, 'token')
    },
    close: async () => client.destroy(),
  }
}
