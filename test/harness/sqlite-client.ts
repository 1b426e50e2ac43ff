import { cpSync } from 'node:fs'
import { createRequire, isBuiltin } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type * as original from '../../src/drivers/sqlite/client.ts'

type Client = typeof original

/**
 * The library with which the tests open their files. By default it is the one that the driver would choose:
 * `node:sqlite` or libsql. scripts/matrix.mjs sets another one, and the folder in which it is installed:
 *
 *   HOLDFAST_SQLITE_CLIENT=better-sqlite3 HOLDFAST_SQLITE_CLIENT_FOLDER=~/.cache/… vitest run test/drivers/sqlite
 *
 * A test file uses it through `vi.mock`, which must be in the test file itself. It replaces only the choice of the
 * library: every statement still goes to a real file through a real SQLite.
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

/** The library with which the tests of this run open their files. */
export function clientName(): string {
  const name = process.env['HOLDFAST_SQLITE_CLIENT'] ?? ''
  if (name !== '') return name
  return isBuiltin('node:sqlite') ? 'node:sqlite' : 'libsql'
}

/**
 * Another copy of SQLite in this process: libsql, loaded from a copy of its package. It works beside libsql itself,
 * because the system loads a library once for each file.
 */
export function secondCopy(folder: string): new (path: string) => original.SqliteDatabase {
  const from = fileURLToPath(new URL('../../node_modules/', import.meta.url))
  for (const name of ['libsql', '@libsql', '@neon-rs', 'detect-libc']) {
    cpSync(join(from, name), join(folder, 'node_modules', name), { recursive: true })
  }
  return createRequire(join(folder, 'package.json'))('libsql')
}
