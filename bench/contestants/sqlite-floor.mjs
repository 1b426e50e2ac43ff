// @ts-check
// A hand-written lock table in SQLite, through the same library and with the same journal.
import { createRequire, isBuiltin } from 'node:module'
import { join } from 'node:path'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const load = createRequire(import.meta.url)
  // As the driver chooses it.
  const Database = isBuiltin('node:sqlite') ? load('node:sqlite').DatabaseSync : load('libsql')
  const database = new Database(join(stores.folder, 'bare.db'))
  database.exec('PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL')
  database.exec('CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, expires_at INTEGER)')
  const insert = database.prepare('INSERT INTO locks VALUES (?, ?)')
  const remove = database.prepare('DELETE FROM locks WHERE name = ?')
  /** @param {() => unknown} work */
  const transaction = (work) => {
    database.exec('BEGIN IMMEDIATE')
    work()
    database.exec('COMMIT')
  }
  return {
    async pair(name) {
      transaction(() => insert.run(name, Date.now()))
      transaction(() => remove.run(name))
    },
    close: async () => database.close(),
  }
}
