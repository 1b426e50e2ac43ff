import { isStorable } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'

/** The statements that are sent for the methods of the driver. */
export type CallName = AcquireName | LeaseName | 'consume' | 'change_rate' | 'rates'
type AcquireName = 'acquire' | 'acquire_groups' | 'acquire_by_force'
type LeaseName = 'renew' | 'release' | 'inspect'

type StatementName = CallName | 'listen_key' | 'hello' | 'fence' | 'reset_fence' | SchemaName
type SchemaName = 'version' | 'begin_migration' | 'use_schema'

/** The statements for one schema. Its quoted name is all that is ever inserted into them. */
export function statementsFor(schema: string): Readonly<Record<StatementName, string>> {
  const known = statements.get(schema)
  if (known !== undefined) return known
  checkSchema(schema)
  const sql = readProtocol('postgres/statements.sql').replaceAll(':"schema"', () => quoteIdentifier(schema))
  const made = namedStatements<StatementName>(sql)
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

export const quoteIdentifier = (name: string): string => `"${name.replaceAll('"', '""')}"`
