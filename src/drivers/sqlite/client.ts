import { MissingClientError } from '../../core/errors.ts'
import { importAtRunTime } from '../shared/optional-client.ts'

/** The few methods that we call: `node:sqlite`, libsql and better-sqlite3 all have them. */
export interface SqliteDatabase {
  exec(sql: string): unknown
  prepare(sql: string): SqliteStatement
  close(): unknown
}

/** `never`, because every client has its own type for the values that a statement takes. */
export interface SqliteStatement {
  all(...values: never[]): unknown[]
  get(...values: never[]): unknown
  run(...values: never[]): { readonly changes: number | bigint }
}

/** The same as the driver calls it: every client takes text, numbers and null. */
export interface Statement {
  all(...values: (string | number | null)[]): unknown[]
  get(...values: (string | number | null)[]): unknown
  run(...values: (string | number | null)[]): { readonly changes: number | bigint }
}

interface OwnDatabase extends SqliteDatabase {
  prepare(sql: string): Statement
}

/** Opens a file with the first client that can be loaded: `node:sqlite`, libsql or better-sqlite3. */
export async function openDatabase(path: string): Promise<OwnDatabase> {
  const failures: unknown[] = []
  for (const { module, name } of clients) {
    const Database = await load(module, name, failures)
    if (Database !== undefined) return new Database(path)
  }
  const driver = `the sqlite driver on this Node (${process.version}), which has no node:sqlite,`
  throw new MissingClientError(driver, ['libsql', 'better-sqlite3'], { cause: new AggregateError(failures) })
}

const clients = [
  { module: 'node:sqlite', name: 'DatabaseSync' },
  { module: 'libsql', name: 'default' },
  { module: 'better-sqlite3', name: 'default' },
]

type Constructor = new (path: string) => OwnDatabase

async function load(module: string, name: string, failures: unknown[]): Promise<Constructor | undefined> {
  try {
    const found = await quietly(() => importAtRunTime(module))
    return found[name] as Constructor
  } catch (error) {
    // Not installed, or installed without its binary for this machine. The next one may work.
    failures.push(error)
    return undefined
  }
}

/**
 * Suppresses Node's warning that its module is experimental: it would be printed by a program that only takes a lock.
 */
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
