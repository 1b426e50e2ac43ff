import { InvalidArgumentError } from '../../core/errors.ts'
import { isStorable } from '../../core/names.ts'
import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'

/** The statements that are sent for the methods of the driver. */
export type CallName =
  | 'acquire'
  | 'acquire_one'
  | 'acquire_groups'
  | 'steal'
  | 'renew'
  | 'release'
  | 'release_one'
  | 'inspect'
  | 'forced'
  | 'consume'
  | 'change_rate'
  | 'rates'

export type StatementName =
  | CallName
  | 'listen_key'
  | 'fence'
  | 'reset_fence'
  | 'version'
  | 'hello'
  | 'begin_migration'
  | 'use_schema'

/** The statements for one schema. Its quoted name is all that is ever inserted into them. */
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

/** Cached, because a fencing guard needs them with every write. */
const statements = new Map<string, Readonly<Record<StatementName, string>>>()
const MAX_SCHEMAS = 100

/** PostgreSQL would truncate a longer name, and then not find the schema under the name that was asked for. */
function checkSchema(schema: unknown): asserts schema is string {
  const isName = typeof schema === 'string' && schema !== '' && isStorable(schema)
  if (!isName || Buffer.byteLength(schema) > MAX_NAME_BYTES) {
    const rule = `the name of a schema: 1 to ${MAX_NAME_BYTES} bytes, without NUL and without lone surrogates`
    throw new InvalidArgumentError('schema', schema, rule)
  }
}

const MAX_NAME_BYTES = 63

/** Comments would be sent with every call. */
export const withoutComments = (sql: string): string => sql.replaceAll(/^--(?! name: ).*\n/gm, '')

export const quoteIdentifier = (name: string): string => `"${name.replaceAll('"', '""')}"`
