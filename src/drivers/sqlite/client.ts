import { MissingClientError } from '../../core/errors.ts'
import { textOf } from '../../core/foreign-errors.ts'
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

/** Opens a file with the first client that can be loaded. */
export async function openDatabase(path: string): Promise<OwnDatabase> {
  const failures: unknown[] = []
  for (const [module, name] of Object.entries(CLIENTS)) {
    const client = await quietly(() => importAtRunTime(module)).catch((error: unknown) => {
      // Not installed, or installed without its binary for this machine. The next one may work.
      failures.push(error)
    })
    if (client !== undefined) return new (client[name] as new (path: string) => OwnDatabase)(path)
  }
  const driver = `the sqlite driver on this Node (${process.version}), which has no node:sqlite,`
  throw new MissingClientError(driver, ['libsql', 'better-sqlite3'], { cause: new AggregateError(failures) })
}

/** In the order in which they are tried, with the name of the export. */
const CLIENTS = { 'node:sqlite': 'DatabaseSync', libsql: 'default', 'better-sqlite3': 'default' }

/** Suppresses the warning that the module is experimental. A program that only takes a lock would print it. */
async function quietly<T>(load: () => Promise<T>): Promise<T> {
  const { emitWarning } = process
  process.emitWarning = (warning: string | Error, ...rest: unknown[]) => {
    if (!textOf(warning).includes('SQLite is an experimental feature')) {
      Reflect.apply(emitWarning, process, [warning, ...rest])
    }
  }
  try {
    return await load()
  } finally {
    process.emitWarning = emitWarning
  }
}
