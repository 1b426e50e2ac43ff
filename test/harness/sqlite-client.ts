import { createRequire, isBuiltin } from 'node:module'
import { join } from 'node:path'
import type * as original from '../../src/drivers/sqlite/client.ts'

type Client = typeof original

/**
 * Which library the tests open their files with. Nothing said: the one that the driver would take, which is `node:sqlite` or libsql.
 * scripts/matrix.mjs says it, and where the library is installed if not here:
 *
 *   HOLDFAST_SQLITE_CLIENT=better-sqlite3 HOLDFAST_SQLITE_CLIENT_FOLDER=~/.cache/… vitest run test/drivers/sqlite
 *
 * A test file takes it up with `vi.mock`, which has to stand in the file itself. It stands in for the choice of a library alone:
 * every statement still goes to a real file through a real SQLite.
 */
export async function chosenClient(load: () => Promise<Client>): Promise<Client> {
  const client = await load()
  const name = process.env['HOLDFAST_SQLITE_CLIENT'] ?? ''
  if (name === '') return client
  const folder = process.env['HOLDFAST_SQLITE_CLIENT_FOLDER'] || process.cwd()
  const found = createRequire(join(folder, 'package.json'))(name) as { DatabaseSync?: unknown }
  const Database = (found.DatabaseSync ?? found) as new (path: string) => original.SqliteDatabase
  return { ...client, openDatabase: async (path) => new Database(path) }
}

/** The library that the tests of this run open their files with. */
export function clientName(): string {
  const name = process.env['HOLDFAST_SQLITE_CLIENT'] ?? ''
  if (name !== '') return name
  return isBuiltin('node:sqlite') ? 'node:sqlite' : 'libsql'
}
