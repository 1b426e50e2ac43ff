// @ts-check
// What a hand-written lock sends through ioredis: one SET and one script for a pair, a list for a queue, a counter for
// a rate limit. It has no tokens, no renewals and no fairness.
import { COMPARE_AND_DELETE, COMPARE_AND_DELETE_SHA } from '../support/bare-redis.mjs'
import { openIoredis } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const client = openIoredis(stores.redis)
  await client.script('LOAD', COMPARE_AND_DELETE)
  let turn = 0
  return {
    async pair(name) {
      turn += 1
      const value = `${process.pid}:${turn}`
      if ((await client.set(name, value, 'PX', 30_000, 'NX')) !== 'OK') throw new Error('held')
      await client.evalsha(COMPARE_AND_DELETE_SHA, 1, name, value)
    },
    prime: (name) => client.rpush(name, 'token'),
    async hold(name) {
      while ((await client.blpop(name, 10)) === null);
      return () => client.rpush(name, 'token')
    },
    consume: (key) => client.incr(key),
    close: async () => client.disconnect(),
  }
}
