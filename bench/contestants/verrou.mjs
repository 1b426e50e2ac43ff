// @ts-check
import knex from 'knex'
import { CONNECTIONS, importPeer, openIoredis } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */
/**
 * @typedef {{ acquire(): Promise<boolean>, acquireImmediately(): Promise<boolean>, release(): Promise<void> }} Lock
 * @typedef {{ createLock(name: string, ttlMs: number): Lock }} Verrou
 */

const TTL_MS = 30_000

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open(options) {
  const { Verrou } = /** @type {{ Verrou: new (config: object) => Verrou }} */ (await importPeer('@verrou/core'))
  const { driver, close } = await openStore(options)
  const verrou = new Verrou({ default: 'store', stores: { store: { driver } } })
  return {
    async pair(name) {
      const lock = verrou.createLock(name, TTL_MS)
      if (!(await lock.acquireImmediately())) throw new Error('held')
      await lock.release()
    },
    async hold(name) {
      const lock = verrou.createLock(name, TTL_MS)
      await lock.acquire()
      return () => lock.release()
    },
    close,
  }
}

/** @param {OpenOptions} options */
async function openStore({ driver, stores }) {
  if (driver === 'postgres') {
    const { knexStore } = /** @type {{ knexStore(config: object): object }} */ (
      await importPeer('@verrou/core/drivers/knex')
    )
    const connection = knex({ client: 'pg', connection: stores.postgres, pool: { min: 0, max: CONNECTIONS } })
    const config = { connection, tableName: 'bench_verrou' }
    return { driver: knexStore(config), close: () => connection.destroy() }
  }
  const { redisStore } = /** @type {{ redisStore(config: object): object }} */ (
    await importPeer('@verrou/core/drivers/redis')
  )
  const connection = openIoredis(stores.redis)
  return { driver: redisStore({ connection }), close: async () => connection.disconnect() }
}
