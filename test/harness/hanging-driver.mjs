// @ts-check
// Drivers for the heartbeat thread that hang, fail or answer late.
import { existsSync, writeFileSync } from 'node:fs'
import { openRemoteMemory } from './remote-memory.mjs'

/** Never answers, like a network that drops everything. */
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
 * Never answers, and ends its thread `afterMs` after the first renewal.
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
 * Renews, and answers each renewal `lateMs` later.
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
 * Works, and creates `file` after the first renewal, so that a test knows that the thread renews.
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
 * Creates `renewed` after the first renewal, but fails to open the first time. `file` remembers that for all threads.
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
