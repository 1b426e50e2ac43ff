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
 * Fails the first time, over all threads: `file` remembers it.
 *
 * @param {string} file
 * @param {number} port
 */
export async function openAfterFailing(file, port) {
  if (existsSync(file)) return openRemoteMemory(port)
  writeFileSync(file, '')
  throw new Error('the first one fails')
}
