// @ts-check
// Advisory locks by hand: prepared statements on one connection. A waiter blocks the connection.
import { createHash } from 'node:crypto'
import pg from 'pg'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */

const TRY = { name: 'bench_try', text: 'SELECT pg_try_advisory_lock($1) AS locked' }
const LOCK = { name: 'bench_lock', text: 'SELECT pg_advisory_lock($1)' }
const UNLOCK = { name: 'bench_unlock', text: 'SELECT pg_advisory_unlock($1)' }

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const client = new pg.Client(stores.postgres)
  await client.connect()
  return {
    async pair(name) {
      const values = [keyOf(name)]
      const { rows } = await client.query({ ...TRY, values })
      if (!rows[0].locked) throw new Error('held')
      await client.query({ ...UNLOCK, values })
    },
    async hold(name) {
      const values = [keyOf(name)]
      await client.query({ ...LOCK, values })
      return () => client.query({ ...UNLOCK, values })
    },
    close: () => client.end(),
  }
}

/** @type {Map<string, bigint>} */
const keys = new Map()

/** @param {string} name */
function keyOf(name) {
  const known = keys.get(name)
  if (known !== undefined) return known
  const key = createHash('sha256').update(name).digest().readBigInt64BE()
  keys.set(name, key)
  return key
}
