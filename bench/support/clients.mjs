// @ts-check
// Every contestant on a store has the same client with the same settings.
import { Redis } from 'ioredis'
import pg from 'pg'
import { createClient } from 'redis'

/** @param {string} url */
export function openIoredis(url) {
  const client = new Redis(url, { maxRetriesPerRequest: 0, retryStrategy: () => 50 })
  client.on('error', () => {}) // Servers are killed on purpose.
  return client
}

/** @param {string} url */
export async function openNodeRedis(url) {
  const client = createClient({ url })
  client.on('error', () => {})
  await client.connect()
  return client
}

/** The default of pg, for all of them. */
export const CONNECTIONS = 10

/** @param {string} url */
export const openPool = (url) => new pg.Pool({ connectionString: url, max: CONNECTIONS })

/**
 * A package of bench/package.json. It is installed only for benchmarks, so the type check does not know it.
 *
 * @param {string} name
 * @returns {Promise<unknown>}
 */
export const importPeer = (name) => import(name)

let sent = 0
let counts = false

/** The commands that the clients of ioredis in this process have sent since the first call. */
export function sentCommands() {
  if (counts) return sent
  counts = true
  const { sendCommand } = Redis.prototype
  Redis.prototype.sendCommand = function (...args) {
    sent += 1
    return sendCommand.apply(this, args)
  }
  return sent
}
