import { StoreError } from '../../core/errors.ts'

/** The few methods that we call: `node:sqlite`, libsql and better-sqlite3 all have them. */
export interface SqliteDatabase {
  exec(sql: string): unknown
  prepare(sql: string): SqliteStatement
  close(): unknown
}

export interface SqliteStatement {
  all(...values: (string | number | null)[]): unknown[]
  run(...values: (string | number | null)[]): { readonly changes: number | bigint }
}

/** Opens a file with what this Node has: `node:sqlite`, else libsql, else better-sqlite3. */
export async function openDatabase(path: string): Promise<SqliteDatabase> {
  for (const open of clients) {
    const database = await open(path)
    if (database !== undefined) return database
  }
  throw new StoreError(
    `this Node (${process.version}) has no node:sqlite and neither libsql nor better-sqlite3 is installed: npm install libsql`,
  )
}

type Opener = (path: string) => Promise<SqliteDatabase | undefined>

const nodeSqlite: Opener = async (path) => {
  const found = await importIfThere('node:sqlite')
  return found && construct(found['DatabaseSync'], path)
}

const libsql: Opener = async (path) => {
  const found = await importIfThere('libsql')
  return found && construct(found['default'], path)
}

const betterSqlite3: Opener = async (path) => {
  const found = await importIfThere('better-sqlite3')
  return found && construct(found['default'], path)
}

const clients = [nodeSqlite, libsql, betterSqlite3]

function construct(found: unknown, path: string): SqliteDatabase {
  const Database = found as new (path: string) => SqliteDatabase
  return new Database(path)
}

async function importIfThere(name: string): Promise<Record<string, unknown> | undefined> {
  try {
    return (await quietly(() => import(name))) as Record<string, unknown>
  } catch (error) {
    const { code } = error as { code?: string }
    if (code === 'ERR_MODULE_NOT_FOUND' || code === 'ERR_UNKNOWN_BUILTIN_MODULE') return undefined
    throw error
  }
}

/** Node says of its own module that it is experimental, on the standard error of whoever merely took a lock. */
async function quietly<T>(load: () => Promise<T>): Promise<T> {
  const { emitWarning } = process
  process.emitWarning = (warning: string | Error, ...rest: unknown[]) => {
    if (!String(warning).includes('SQLite is an experimental feature')) {
      Reflect.apply(emitWarning, process, [warning, ...rest])
    }
  }
  try {
    return await load()
  } finally {
    process.emitWarning = emitWarning
  }
}
