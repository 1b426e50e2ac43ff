// @ts-check
import { importPeer, openIoredis } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */
/**
 * @typedef {{ tryAcquire(): Promise<boolean>, acquire(): Promise<void>, release(): Promise<void> }} Mutex
 * @typedef {new (client: object, name: string, options: object) => Mutex} MutexClass
 */

const LOCK_MS = 30_000
const AT_ONCE = { lockTimeout: LOCK_MS, refreshInterval: 0 }
const WAITS = { lockTimeout: LOCK_MS, acquireTimeout: 600_000 }

/**
 * With one server or with five.
 *
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ driver, stores }) {
  const { Mutex: Single, RedlockMutex } = /** @type {{ Mutex: MutexClass, RedlockMutex: MutexClass }} */ (
    await importPeer('redis-semaphore')
  )
  const urls = driver === 'redlock' ? stores.redlock : [stores.redis]
  const clients = urls.map((url) => openIoredis(url))
  const Mutex = driver === 'redlock' ? RedlockMutex : Single
  const store = driver === 'redlock' ? clients : /** @type {object} */ (clients[0])
  return {
    async pair(name) {
      const mutex = new Mutex(store, name, AT_ONCE)
      if (!(await mutex.tryAcquire())) throw new Error('held')
      await mutex.release()
    },
    async hold(name) {
      const mutex = new Mutex(store, name, WAITS)
      await mutex.acquire()
      return () => mutex.release()
    },
    async keep(name, ttlMs, onLockLost) {
      const mutex = new Mutex(store, name, { lockTimeout: ttlMs, onLockLost })
      await mutex.acquire()
      return () => mutex.release()
    },
    close: async () => clients.map((client) => client.disconnect()),
  }
}
