// @ts-check
import { importPeer } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */
/**
 * @typedef {() => Promise<void>} Unlock
 * @typedef {{ lock(): Promise<Unlock>, tryLock(): Promise<Unlock | undefined> }} Mutex
 * @typedef {(url: string) => (name: string) => Mutex} AdvisoryLock
 */

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const { default: module } = /** @type {{ default: { default: AdvisoryLock } }} */ (await importPeer('advisory-lock'))
  const mutexOf = module.default(stores.postgres)
  return {
    async pair(name) {
      const unlock = await mutexOf(name).tryLock()
      if (unlock === undefined) throw new Error('held')
      await unlock()
    },
    hold: (name) => mutexOf(name).lock(),
    async close() {},
  }
}
