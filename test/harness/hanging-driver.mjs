// @ts-check
// Drivers for a heartbeat's thread that do not work, or not at first.
import { existsSync, writeFileSync } from 'node:fs'
import { openRemoteMemory } from './remote-memory.mjs'

/** Nothing is ever answered, as behind a network that swallows everything. */
export async function openHanging() {
  const never = () => new Promise(() => {})
  const capabilities = { expiry: 'ttl', queue: false, wake: false }
  return {
    name: 'hanging',
    capabilities,
    acquire: never,
    renew: never,
    release: never,
    inspect: never,
    close: async () => {},
  }
}

/**
 * As before, and its thread ends so long after the first renewal.
 *
 * @param {number} afterMs
 */
export async function openDying(afterMs) {
  const driver = await openHanging()
  const renew = () => {
    setTimeout(() => process.exit(1), afterMs)
    return driver.renew()
  }
  return { ...driver, renew }
}

/**
 * Renews, and answers a renewal so much later.
 *
 * @param {number} lateMs
 * @param {number} port
 */
export async function openSlow(lateMs, port) {
  const driver = await openRemoteMemory(port)
  /** @type {typeof driver.renew} */
  const renew = async (renewals) => {
    const answers = await driver.renew(renewals)
    await new Promise((resolve) => setTimeout(resolve, lateMs))
    return answers
  }
  return { ...driver, renew }
}

/**
 * Works, and makes the file when it has renewed: from then on the thread is at work.
 *
 * @param {string} file
 * @param {number} port
 */
export async function openNoted(file, port) {
  const driver = await openRemoteMemory(port)
  /** @type {typeof driver.renew} */
  const renew = async (renewals) => {
    const answers = await driver.renew(renewals)
    writeFileSync(file, '')
    return answers
  }
  return { ...driver, renew }
}

/**
 * As before, but fails the first time, over all threads: `file` remembers it.
 *
 * @param {string} file
 * @param {string} renewed
 * @param {number} port
 */
export async function openAfterFailing(file, renewed, port) {
  if (existsSync(file)) return openNoted(renewed, port)
  writeFileSync(file, '')
  throw new Error('the first one fails')
}
