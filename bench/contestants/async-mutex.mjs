// @ts-check
// Excludes only the tasks of one process, with a mutex for each name.
import { importPeer } from '../support/clients.mjs'

/** @import { Contestant } from '../types.d.ts' */
/** @typedef {{ acquire(): Promise<() => void> }} Mutex */

/** @returns {Promise<Contestant>} */
export async function open() {
  const { Mutex } = /** @type {{ Mutex: new () => Mutex }} */ (await importPeer('async-mutex'))
  /** @type {Map<string, Mutex>} */
  const mutexes = new Map()
  /** @param {string} name */
  const mutexOf = (name) => {
    const known = mutexes.get(name)
    if (known !== undefined) return known
    const mutex = new Mutex()
    mutexes.set(name, mutex)
    return mutex
  }
  return {
    async pair(name) {
      const release = await mutexOf(name).acquire()
      release()
    },
    hold: (name) => mutexOf(name).acquire(),
    async close() {},
  }
}
