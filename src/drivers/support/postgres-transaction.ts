import { InvalidArgumentError } from '../../core/errors.ts'

/**
 * An open transaction of the caller's, by the few methods that we call: a connected client of pg; what `sql.begin` of postgres hands over; a
 * transaction of Knex, Kysely, Drizzle (over pg or postgres) or Prisma.
 */
export type PostgresTransaction =
  | { query(text: string, values: unknown[]): PromiseLike<{ readonly rows: readonly unknown[] }> }
  | { unsafe(text: string, values: never[]): PromiseLike<readonly unknown[]> }
  | { $queryRawUnsafe(text: string, ...values: unknown[]): PromiseLike<unknown> }
  | { executeQuery(query: never): Promise<{ readonly rows: readonly unknown[] }> }
  | { raw(text: string, bindings: never): PromiseLike<unknown> }
  | { readonly session: object }

/** One statement in the caller's transaction. Values are text; the statement says what they are. */
export async function queryIn(
  transaction: PostgresTransaction,
  text: string,
  values: readonly string[],
): Promise<readonly Readonly<Record<string, unknown>>[]> {
  const tx = transaction as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>
  if (typeof tx['$queryRawUnsafe'] === 'function') return rowsOf(await tx['$queryRawUnsafe'](text, ...values))
  if (typeof tx['executeQuery'] === 'function') {
    // Kysely: a compiled query, as its `CompiledQuery.raw` makes it.
    const query = { sql: text, parameters: values, query: { kind: 'RawNode', sqlFragments: [text], parameters: [] } }
    return rowsOf(await tx['executeQuery']({ ...query, queryId: { queryId: 'holdfast' } }))
  }
  if (typeof tx['raw'] === 'function') return rowsOf(await tx['raw'](withQuestionMarks(text), repeated(text, values)))
  if (typeof tx['unsafe'] === 'function') return rowsOf(await tx['unsafe'](text, [...values]))
  if (typeof tx['query'] === 'function') return rowsOf(await tx['query'](text, [...values]))
  const { session } = transaction as unknown as { session?: { client?: PostgresTransaction } }
  // Drizzle: the client beneath it is the transaction's own connection.
  if (session?.client !== undefined) return queryIn(session.client, text, values)
  throw new InvalidArgumentError(
    'transaction',
    transaction,
    'an open transaction of pg, postgres, Knex, Kysely, Drizzle or Prisma',
  )
}

function rowsOf(result: unknown): readonly Readonly<Record<string, unknown>>[] {
  const { rows } = result as { rows?: unknown }
  return (Array.isArray(result) ? result : (rows ?? [])) as readonly Readonly<Record<string, unknown>>[]
}

/** Knex writes `?` for a value, in the order of the text. */
const withQuestionMarks = (text: string): string => text.replaceAll('?', '\\?').replaceAll(/\$\d+/g, '?')

const repeated = (text: string, values: readonly string[]): string[] =>
  [...text.matchAll(/\$(\d+)/g)].map(([, index]) => values[Number(index) - 1] as string)
