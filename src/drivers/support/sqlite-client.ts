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
  const failures: unknown[] = []
  for (const { module, name } of clients) {
    const Database = await load(module, name, failures)
    if (Database !== undefined) return new Database(path)
  }
  throw new StoreError(
    `this Node (${process.version}) has no node:sqlite, and neither libsql nor better-sqlite3 could be loaded: npm install libsql`,
    { cause: new AggregateError(failures) },
  )
}

const clients = [
  { module: 'node:sqlite', name: 'DatabaseSync' },
  { module: 'libsql', name: 'default' },
  { module: 'better-sqlite3', name: 'default' },
]

type Constructor = new (path: string) => SqliteDatabase

async function load(module: string, name: string, failures: unknown[]): Promise<Constructor | undefined> {
  try {
    const found = (await quietly(() => import(module))) as Record<string, unknown>
    return found[name] as Constructor
  } catch (error) {
    // Not there, or there without the part that is compiled for this machine: the next one may do.
    failures.push(error)
    return undefined
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
