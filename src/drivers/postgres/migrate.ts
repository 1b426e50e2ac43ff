import { checkOneOf } from '../../core/arguments.ts'
import { StoreError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { systemClock } from '../../core/time/clock.ts'
import { sleep } from '../../core/time/native-time.ts'
import { systemRandom } from '../../core/time/random.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { PostgresConnections } from './connections.ts'
import { sqlState, storeErrorFrom } from './errors.ts'
import { quoteIdentifier, statementsFor } from './statements.ts'

/** The version of the tables and functions. Every change of one of the files needs a new number in schema.sql, too. */
export const FORMAT = 1

/** Selects what is created. */
export interface MigrationScope {
  /**
   * `fence`: only what `postgresFence` needs, for a database that keeps the protected data but no locks. Without it,
   * everything is created.
   */
  readonly only?: 'fence'
}

function filesFor(schema: string, { only }: MigrationScope): readonly string[] {
  const fence = readProtocol('postgres/fence.sql')
  if (only !== undefined) return [fence]
  const name = quoteIdentifier(schema)
  // The procedures contain the name of the schema, which may contain anything, even the end of their text.
  let tag = '$holdfast$'
  while (name.includes(tag)) tag = `${tag.slice(0, -1)}_$`
  const functions = readProtocol('postgres/functions.sql')
    .replaceAll('$holdfast$', () => tag)
    .replaceAll(':"schema"', () => name)
  return [readProtocol('postgres/schema.sql'), functions, fence]
}

/**
 * The tables and functions as plain SQL, for your own migration tool or for psql. It can be run again.
 * @throws `InvalidArgumentError` if `schema` is not the name of a schema, or an option is unknown.
 */
export function migrationScript(schema: string, options: MigrationScope = {}): string {
  const { begin_migration, use_schema } = statementsFor(schema)
  const createSchema = `CREATE SCHEMA IF NOT EXISTS ${quoteIdentifier(schema)};`
  const files = filesFor(schema, checkScope(options))
  return [begin_migration, createSchema, use_schema, ...files, 'COMMIT;\n'].join('\n\n')
}

export function checkScope(options: MigrationScope): MigrationScope {
  const { only } = checkOptions(options, SCOPE)
  if (only !== undefined) checkOneOf('only', only, ['fence'])
  return options
}

const SCOPE = optionNames<MigrationScope>({ only: true })

/**
 * Makes sure, before the first call, that the tables are up to date. Newer ones are used as they are: what a call means
 * does not change without a new name for its procedure.
 */
export async function prepare(connections: PostgresConnections, schema: string, migrates: boolean): Promise<void> {
  if ((await readVersion(connections, schema)) >= FORMAT) return
  if (!migrates) {
    throw new StoreError(
      `the lock tables in the schema "${schema}" at ${connections.place} are missing or old: ` +
        `run "holdfast migrate --schema ${schema}"`,
      { retryable: false },
    )
  }
  await migrate(connections, schema)
}

/** The version of the tables and functions; 0 if there are none. */
export async function readVersion(connections: PostgresConnections, schema: string): Promise<number> {
  try {
    return await versionIn(connections, schema)
  } catch (error) {
    if (['42P01', '3F000'].includes(sqlState(error) ?? '')) return 0
    throw storeErrorFrom(error, connections)
  }
}

async function versionIn({ query }: Pick<PostgresConnections, 'query'>, schema: string): Promise<number> {
  const [row] = await query(statementsFor(schema).version, [])
  return Number(row?.['version'] ?? 0)
}

/**
 * Brings the schema up to date in one transaction. Returns whether there was something to do. Any number of instances
 * may call it at once. If a table is locked, it tries again, for up to a minute. Each try waits only briefly, because
 * calls of other clients queue behind it.
 */
export async function migrate(
  connections: PostgresConnections,
  schema: string,
  scope: MigrationScope = {},
): Promise<boolean> {
  const startedMs = systemClock.now().monotonicMs
  for (;;) {
    try {
      return await migrateOnce(connections, schema, scope)
    } catch (error) {
      if (sqlState(error) !== '55P03') throw errorFrom(error, schema, connections)
      if (systemClock.now().monotonicMs - startedMs > MAX_LOCKED_MS) {
        const reason =
          `cannot bring the lock tables in the schema ${quoteIdentifier(schema)} up to date: another transaction has ` +
          `kept them locked for ${MAX_LOCKED_MS / 1_000} s. End it (see pg_stat_activity), and try again`
        throw new StoreError(reason, { cause: safeCause(error) })
      }
      await sleep(RETRY_MS * (1 + systemRandom.fraction()))
    }
  }
}

const MAX_LOCKED_MS = 60_000
const RETRY_MS = 300

async function migrateOnce(connections: PostgresConnections, schema: string, scope: MigrationScope): Promise<boolean> {
  const statements = statementsFor(schema)
  const connection = await connections.dedicate({ onEnd: () => {} })
  try {
    await connection.script(statements.begin_migration)
    const [found] = await connection.query('SELECT FROM pg_namespace WHERE nspname = $1::text', [schema])
    if (found === undefined) await connection.script(`CREATE SCHEMA ${quoteIdentifier(schema)}`)
    await connection.script(statements.use_schema)
    // An error would end the transaction. So the table is looked for first.
    const table = await connection.query(
      "SELECT FROM pg_tables WHERE schemaname = $1::text AND tablename = 'holdfast_format'",
      [schema],
    )
    const version = table.length === 0 ? 0 : await versionIn(connection, schema)
    const due = version >= FORMAT ? [] : filesFor(schema, scope)
    for (const file of due) await connection.script(file)
    await connection.script('COMMIT')
    return due.length > 0
  } catch (error) {
    // The first error is the one to report.
    await connection.script('ROLLBACK').catch(() => {})
    throw error
  } finally {
    await connection.end()
  }
}

function errorFrom(error: unknown, schema: string, connections: PostgresConnections): Error {
  if (sqlState(error) !== '42501') return storeErrorFrom(error, connections)
  return new StoreError(
    `the lock tables in the schema ${quoteIdentifier(schema)} are missing or old, and this role may not create them: ` +
      `run "holdfast migrate --schema ${schema}", or the SQL of "holdfast migrate --print", with a role that may`,
    { cause: safeCause(error), retryable: false },
  )
}
