// @ts-check
import { importPeer, openNodeRedis } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */
/**
 * @typedef {() => Promise<void>} Release
 * @typedef {{
 *   lock(client: object, name: string): Promise<Release>,
 *   tryLock(client: object, name: string): Promise<[boolean, Release]>,
 * }} SimpleRedisMutex
 */

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const { lock, tryLock } = /** @type {SimpleRedisMutex} */ (await importPeer('simple-redis-mutex'))
  const client = await openNodeRedis(stores.redis)
  return {
    async pair(name) {
      const [locked, release] = await tryLock(client, name)
      if (!locked) throw new Error('held')
      await release()
    },
    hold: (name) => lock(client, name),
    close: async () => client.destroy(),
  }
}
