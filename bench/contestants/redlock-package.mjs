// @ts-check
import { importPeer, openIoredis } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */
/**
 * @typedef {{ release(): Promise<unknown> }} Lock
 * @typedef {{
 *   acquire(names: string[], ttlMs: number, settings?: object): Promise<Lock>,
 *   using(names: string[], ttlMs: number, work: (signal: AbortSignal) => Promise<void>): Promise<void>,
 *   on(event: 'error', listener: () => void): void,
 * }} Redlock
 */

const TTL_MS = 30_000
const AT_ONCE = { retryCount: 0 }
const WAITS = { retryCount: -1 }

/**
 * With one server or with five.
 *
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ driver, stores }) {
  const { default: Redlock } = /** @type {{ default: new (clients: object[]) => Redlock }} */ (
    await importPeer('redlock')
  )
  const urls = driver === 'redlock' ? stores.redlock : [stores.redis]
  const clients = urls.map((url) => openIoredis(url))
  const redlock = new Redlock(clients)
  redlock.on('error', () => {})
  return {
    async pair(name) {
      const lock = await redlock.acquire([name], TTL_MS, AT_ONCE)
      await lock.release()
    },
    async hold(name) {
      const lock = await redlock.acquire([name], TTL_MS, WAITS)
      return () => lock.release()
    },
    keep: (name, ttlMs, onLost) =>
      new Promise((resolve, reject) => {
        const using = redlock.using(
          [name],
          ttlMs,
          (signal) =>
            new Promise((end) => {
              signal.addEventListener('abort', onLost)
              resolve(() => {
                end()
                return using
              })
            }),
        )
        using.catch(reject)
      }),
    close: async () => clients.map((client) => client.disconnect()),
  }
}
