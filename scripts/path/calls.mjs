// @ts-check
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { openIoredis, openPool } from '../../bench/support/clients.mjs'

/** @import { Stores } from '../../bench/types.d.ts' */
/** @import { Driver } from '../../src/core/driver.ts' */
/** @import { DistributedLock } from '../../src/index.ts' */
/** @import { Code, Executed } from './coverage.mjs' */

/**
 * @typedef {object} World one store, with two instances that do not share a driver
 * @property {DistributedLock} lock the instance whose call is counted
 * @property {DistributedLock} other
 * @property {(lockName: string) => unknown} remove deletes a lease from the store without any code of ours
 */
/** @typedef {{ drivers: [Driver, Driver], remove: World['remove'], close(): unknown }} OpenStore */

/** One renewal of such a lease is due after 0.26 to 0.34 s, and the next one not before 0.52 s. */
const SHORT = { timeoutSeconds: 1 }
const ONE_RENEWAL_MS = 450

/** @type {Record<string, (world: World, lockName: string, begin: () => void) => Promise<unknown>>} */
const calls = {
  async free({ lock }, lockName, begin) {
    begin()
    await lock.withLock(lockName, async () => {})
  },
  /** The count includes the release of the other instance, which differs from that of every call by its wake-up. */
  async 'waits and is woken'({ lock, other }, lockName, begin) {
    const held = await other.hold(lockName, { heartbeat: false })
    begin()
    const waiting = lock.withLock(lockName, async () => {}, { blocking: true })
    await sleep(50) // until it waits
    await Promise.all([held.release(), waiting])
  },
  async 'renewed once'({ lock }, lockName, begin) {
    begin()
    await lock.withLock(lockName, () => sleep(ONE_RENEWAL_MS), SHORT)
  },
  async 'lost: gone from the store'({ lock, remove }, lockName, begin) {
    begin()
    await assertLost(lock, lockName, () => remove(lockName), SHORT)
  },
  async 'lost: expired'({ lock }, lockName, begin) {
    begin()
    await assertLost(lock, lockName, () => {}, { timeoutSeconds: 0.2, heartbeat: false })
  },
}

export const CALLS = Object.keys(calls)

/**
 * @param {DistributedLock} lock
 * @param {string} lockName
 * @param {() => unknown} lose
 * @param {object} options
 */
async function assertLost(lock, lockName, lose, options) {
  const call = lock.withLock(
    lockName,
    async ({ signal }) => {
      await lose()
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
    },
    options,
  )
  await assert.rejects(call, { code: 'LEASE_LOST' })
}

/** @type {Record<string, (code: Code, stores: Stores) => Promise<OpenStore>>} */
const stores = {
  async memory(code) {
    const { createMemoryStore, memoryDriver } = await code.import('drivers/memory.js')
    const first = createMemoryStore()
    let current = first
    // Behind it the store can be replaced by an empty one, while its drivers are open.
    const store = new Proxy({}, { get: (_, name) => (name === 'listeners' ? first : current)[name] })
    return {
      drivers: [memoryDriver({ store }), memoryDriver({ store })],
      remove() {
        current = createMemoryStore()
      },
      close() {},
    }
  },
  async redis(code, { redis }) {
    const { redisDriver } = await code.import('drivers/redis.js')
    const clients = [openIoredis(redis), openIoredis(redis)]
    const [client] = clients
    return {
      drivers: [redisDriver({ client, onWarning() {} }), redisDriver({ client: clients[1], onWarning() {} })],
      remove: (lockName) => client?.del(`lock:${lockName}`),
      close: () => clients.map((each) => each.disconnect()),
    }
  },
  async postgres(code, { postgres }) {
    const { postgresDriver } = await code.import('drivers/postgres.js')
    const pools = [openPool(postgres), openPool(postgres)]
    const [client] = pools
    return {
      drivers: [postgresDriver({ client }), postgresDriver({ client: pools[1] })],
      remove: (lockName) => client?.query('DELETE FROM distributed_locks WHERE lock_name = $1', [lockName]),
      close: () => Promise.all(pools.map((each) => each.end())),
    }
  },
}

export const STORES = /** @type {('memory' | 'redis' | 'postgres')[]} */ (Object.keys(stores))

/**
 * @param {Code} code
 * @param {typeof STORES[number]} store
 * @param {Stores} places
 * @returns {Promise<Map<string, Executed>>} by call
 */
export async function executedBy(code, store, places) {
  const { DistributedLock } = await code.import('index.js')
  const open = /** @type {typeof stores[string]} */ (stores[store])
  const { drivers, remove, close } = await open(code, places)
  const [lock, other] = drivers.map((driver) => new DistributedLock({ driver }))
  const world = { lock, other, remove }
  // A lease that waits for its end keeps no process alive.
  const alive = setInterval(() => {}, 1_000)
  /** @type {Map<string, Executed>} */
  const found = new Map()
  for (const [title, call] of Object.entries(calls)) {
    // Connections, subscriptions and prepared statements are those of a process that has run for a while.
    for (const warmUp of ['first', 'second']) await call(world, `path:${title}:${warmUp}`, () => {})
    await sleep(200)
    await call(world, `path:${title}`, () => code.executed())
    found.set(title, code.executed())
  }
  clearInterval(alive)
  await Promise.all([lock.close(), other.close()])
  await Promise.all(drivers.map((driver) => driver.close()))
  await close()
  return found
}
