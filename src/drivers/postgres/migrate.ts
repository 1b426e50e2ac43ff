import { checkOneOf } from '../../core/arguments.ts'
import { InvalidArgumentError, StoreError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { isStorable } from '../../core/names.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { systemClock } from '../../core/time/clock.ts'
import { sleep } from '../../core/time/native-time.ts'
import { systemRandom } from '../../core/time/random.ts'
import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { PostgresConnections } from './connections.ts'
import { sqlState, storeErrorFrom } from './errors.ts'

export type StatementName =
  | 'acquire'
  | 'acquire_groups'
  | 'steal'
  | 'renew'
  | 'release'
  | 'granted'
  | 'inspect'
  | 'consume'
  | 'change_rate'
  | 'fence'
  | 'reset_fence'
  | 'version'
  | 'hello'
  | 'begin_migration'
  | 'use_schema'

/** The statements for one schema. Quoting its name is all that is ever put into them. */
export function statementsFor(schema: string): Readonly<Record<StatementName, string>> {
  const known = statements.get(schema)
  if (known !== undefined) return known
  checkSchema(schema)
  const sql = readProtocol('postgres/statements.sql').replaceAll(':"schema"', () => quoteIdentifier(schema))
  const made = namedStatements<StatementName>(withoutComments(sql))
  if (statements.size >= MAX_SCHEMAS) statements.clear()
  statements.set(schema, made)
  return made
}

/** A guard asks for them with every write. */
const statements = new Map<string, Readonly<Record<StatementName, string>>>()
const MAX_SCHEMAS = 100

/** PostgreSQL would cut a longer name off, and then find the schema under the name that was asked for to be missing. */
function checkSchema(schema: unknown): asserts schema is string {
  const isName = typeof schema === 'string' && schema !== '' && isStorable(schema)
  if (!isName || Buffer.byteLength(schema) > MAX_NAME_BYTES) {
    const rule = `the name of a schema: 1 to ${MAX_NAME_BYTES} bytes, without NUL and without lone surrogates`
    throw new InvalidArgumentError('schema', schema, rule)
  }
}

const MAX_NAME_BYTES = 63

/** What is sent with every call need not explain itself every time. */
export const withoutComments = (sql: string): string => sql.replaceAll(/^--(?! name: ).*\n/gm, '')

export const quoteIdentifier = (name: string): string => `"${name.replaceAll('"', '""')}"`

interface Migration {
  readonly version: number
  readonly sql: string
}

/**
 * In their order. All of them are run again when the last one has not been run yet, so whatever changes in any of them
 * comes with a file of the next number. Each brings its own tables and functions up to date, whichever version made
 * them, and leaves alone what is.
 */
const TEXTS: readonly string[] = [
  readProtocol('postgres/0001-tables.sql'),
  readProtocol('postgres/0002-tokens.sql'),
  readProtocol('postgres/0003-queue.sql'),
  readProtocol('postgres/0004-leases.sql'),
  readProtocol('postgres/0005-inspect.sql'),
  readProtocol('postgres/0006-plain.sql'),
  readProtocol('postgres/0007-rates.sql'),
  readProtocol('postgres/0008-fences.sql'),
  readProtocol('postgres/0009-force.sql'),
  readProtocol('postgres/0010-steal.sql'),
  readProtocol('postgres/0011-calls.sql'),
  readProtocol('postgres/0012-rate-changes.sql'),
  readProtocol('postgres/0013-groups.sql'),
]

/** The one that `postgresFence` needs. */
const FENCE_VERSION = 8

/** Which of the migrations. */
export interface MigrationScope {
  /**
   * `fence`: nothing but what `postgresFence` needs, for a database that keeps the protected data and no locks. Without
   * it, all migrations.
   */
  readonly only?: 'fence'
}

export function migrations({ only }: MigrationScope = {}): readonly Migration[] {
  const all = TEXTS.map((sql, index) => ({ version: index + 1, sql }))
  return only === undefined ? all : all.filter(({ version }) => version === FENCE_VERSION)
}

/** As plain SQL, for a team's own migration tool or for psql. Throws `InvalidArgumentError`. */
export function migrationScript(schema: string, options: MigrationScope = {}): string {
  const { only } = checkScope(options)
  const { begin_migration, use_schema } = statementsFor(schema)
  const createSchema = `CREATE SCHEMA IF NOT EXISTS ${quoteIdentifier(schema)};`
  const files = migrations(only === undefined ? {} : { only }).map(({ sql }) => sql)
  return [begin_migration, createSchema, use_schema, ...files, 'COMMIT;\n'].join('\n\n')
}

export function checkScope(options: MigrationScope): MigrationScope {
  const { only } = checkOptions(options, SCOPE)
  if (only !== undefined) checkOneOf('only', only, ['fence'])
  return options
}

const SCOPE = optionNames<MigrationScope>({ only: true })

/** The last migration that was run. 0: none. */
export async function readVersion(connections: PostgresConnections, schema: string): Promise<number> {
  try {
    const [row] = await connections.query(statementsFor(schema).version, [])
    return Number(row?.['version'])
  } catch (error) {
    if (['42P01', '3F000'].includes(sqlState(error) ?? '')) return 0
    throw storeErrorFrom(error, connections)
  }
}

export const latestVersion = (): number => TEXTS.length

/**
 * Brings the schema up to date, in one transaction. Any number of instances may do so at once. Answers what it ran. A
 * table that others keep locked is tried again and again: each try waits so shortly that nobody who stands behind it is
 * kept from a lock.
 */
export async function migrate(
  connections: PostgresConnections,
  schema: string,
  scope: MigrationScope = {},
): Promise<readonly number[]> {
  const startedMs = systemClock.now().monotonicMs
  for (;;) {
    try {
      return await migrateOnce(connections, schema, scope)
    } catch (error) {
      if (sqlState(error) !== '55P03') throw errorFrom(error, schema, connections)
      if (systemClock.now().monotonicMs - startedMs > LOCKED_MS) {
        const reason =
          `the lock tables in the schema ${quoteIdentifier(schema)} could not be brought up to date, because another transaction has kept them ` +
          `locked for ${LOCKED_MS / 1_000} s: end it (see pg_stat_activity), and try again`
        throw new StoreError(reason, { cause: safeCause(error) })
      }
      await sleep(TRY_AGAIN_MS * (1 + systemRandom.fraction()))
    }
  }
}

const LOCKED_MS = 60_000
const TRY_AGAIN_MS = 300

async function migrateOnce(
  connections: PostgresConnections,
  schema: string,
  scope: MigrationScope,
): Promise<readonly number[]> {
  const statements = statementsFor(schema)
  const connection = await connections.dedicate({ onEnd: () => {} })
  try {
    await connection.script(statements.begin_migration)
    const [found] = await connection.query('SELECT FROM pg_namespace WHERE nspname = $1::text', [schema])
    if (found === undefined) await connection.script(`CREATE SCHEMA ${quoteIdentifier(schema)}`)
    await connection.script(statements.use_schema)
    const done = await versionsIn(connection, schema)
    const due = done.has(latestVersion()) ? [] : migrations(scope)
    for (const { sql } of due) await connection.script(sql)
    await connection.script('COMMIT')
    return due.map(({ version }) => version)
  } catch (error) {
    // The error that is told is the one that came first.
    await connection.script('ROLLBACK').catch(() => {})
    throw error
  } finally {
    await connection.end()
  }
}

function errorFrom(error: unknown, schema: string, connections: PostgresConnections): Error {
  if (sqlState(error) !== '42501') return storeErrorFrom(error, connections)
  return new StoreError(
    `the schema ${quoteIdentifier(schema)} has no lock tables yet, or old ones, and this role may not create them: ` +
      `let a role that may run "holdfast migrate --schema ${schema}", or the SQL of "holdfast migrate --print"`,
    { cause: safeCause(error), retryable: false },
  )
}

async function versionsIn(
  connection: Awaited<ReturnType<PostgresConnections['dedicate']>>,
  schema: string,
): Promise<ReadonlySet<number>> {
  const there = await connection.query('SELECT FROM pg_tables WHERE schemaname = $1::text AND tablename = $2::text', [
    schema,
    'holdfast_migrations',
  ])
  if (there.length === 0) return new Set()
  const rows = await connection.query('SELECT version FROM holdfast_migrations')
  return new Set(rows.map((row) => Number(row['version'])))
}
