// @ts-check
// A hand-written lock table: an upsert that wins only an expired row, and a delete. Both are prepared statements. It
// has no tokens, no queue and no wake-ups.
import { openPool } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */

const TABLES = `
  CREATE TABLE IF NOT EXISTS bench_locks (lock_name VARCHAR(255) PRIMARY KEY, holder_id VARCHAR(255) NOT NULL,
    acquired_at TIMESTAMPTZ NOT NULL, expires_at TIMESTAMPTZ NOT NULL, metadata JSONB);
  CREATE INDEX IF NOT EXISTS bench_locks_expires_at ON bench_locks (expires_at);
  CREATE TABLE IF NOT EXISTS bench_rates (key TEXT PRIMARY KEY, points INTEGER, expires_at TIMESTAMPTZ)`

const LOCK = {
  name: 'bench_lock',
  text: `INSERT INTO bench_locks VALUES ($1, $2, clock_timestamp(), clock_timestamp() + interval '30 s')
    ON CONFLICT (lock_name) DO UPDATE SET
      holder_id = excluded.holder_id, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
    WHERE bench_locks.expires_at <= clock_timestamp() RETURNING lock_name`,
}
const UNLOCK = { name: 'bench_unlock', text: 'DELETE FROM bench_locks WHERE lock_name = $1 AND holder_id = $2' }
const COUNT = {
  name: 'bench_count',
  text: `INSERT INTO bench_rates AS b VALUES ($1, 1, clock_timestamp() + interval '60 s')
    ON CONFLICT (key) DO UPDATE SET points = b.points + 1 RETURNING points`,
}

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const pool = openPool(stores.postgres)
  // Two processes at once would both try to create them.
  await pool.query(`SELECT pg_advisory_lock(1); ${TABLES}; SELECT pg_advisory_unlock(1)`)
  const holder = `${process.pid}`
  return {
    async pair(name) {
      const values = [name, holder]
      if ((await pool.query({ ...LOCK, values })).rowCount !== 1) throw new Error('held')
      await pool.query({ ...UNLOCK, values })
    },
    consume: (key) => pool.query({ ...COUNT, values: [key] }),
    close: () => pool.end(),
  }
}
