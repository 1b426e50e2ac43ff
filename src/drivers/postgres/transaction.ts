import { InvalidArgumentError } from '../../core/errors.ts'
import { isReadable } from '../../core/options.ts'
import { sqlState } from './errors.ts'

/**
 * An open transaction of the caller, typed by the few methods that are called: a connected client of pg after `BEGIN`,
 * what `sql.begin` of postgres passes to its callback, or a transaction of Knex, Kysely, Drizzle or Prisma.
 */
export type PostgresTransaction =
  | { query(text: string, values: unknown[]): PromiseLike<{ readonly rows: readonly unknown[] }> }
  | { unsafe(text: string, values: never[]): PromiseLike<readonly unknown[]> }
  | { $queryRawUnsafe(text: string, ...values: unknown[]): PromiseLike<unknown> }
  | { executeQuery(query: never): Promise<{ readonly rows: readonly unknown[] }> }
  | { raw(text: string, bindings: never): PromiseLike<unknown> }
  | { readonly _: { readonly session: { prepareQuery(query: never, ...options: never[]): object } } }

/**
 * Sends a statement that does nothing, and returns no row, unless an earlier statement has marked its transaction. It
 * marks it then, and is sent again. So the database proves that the transaction is open and lasts longer than one
 * statement. A pool, or what looks like a transaction and sends to a pool, never passes.
 *
 * Returns how many rows there are. Rows can be counted even if the caller's client renames columns or converts values.
 */
export async function rowsIn(
  transaction: PostgresTransaction,
  text: string,
  values: readonly string[],
): Promise<number> {
  const marked = await send(transaction, text, values)
  const rows = marked === 0 ? await send(transaction, text, values) : marked
  if (rows === 0) throw new InvalidArgumentError('transaction', transaction, RULE)
  return rows
}

const KINDS = 'an open transaction of pg, postgres, Knex, Kysely, Drizzle or Prisma'
const RULE = `${KINDS}: after BEGIN, and before COMMIT. A statement sent through this one ran in no longer transaction`

async function send(transaction: PostgresTransaction, text: string, values: readonly string[]): Promise<number> {
  if (!isReadable(transaction) || Object(transaction) !== transaction) {
    throw new InvalidArgumentError('transaction', transaction, KINDS)
  }
  const tx = transaction as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>
  if (typeof tx['$queryRawUnsafe'] === 'function') return countOf(await tx['$queryRawUnsafe'](text, ...values))
  if (typeof tx['executeQuery'] === 'function') {
    // Kysely: a compiled query, as `CompiledQuery.raw` creates it.
    const query = { sql: text, parameters: values, query: { kind: 'RawNode', sqlFragments: [text], parameters: [] } }
    return countOf(await tx['executeQuery']({ ...query, queryId: { queryId: 'holdfast' } }))
  }
  if (typeof tx['raw'] === 'function') return countOf(await tx['raw'](withQuestionMarks(text), repeated(text, values)))
  if (typeof tx['unsafe'] === 'function') return countOf(await tx['unsafe'](text, [...values]))
  if (typeof tx['query'] === 'function') return countOf(await tx['query'](text, [...values]))
  const { _: drizzle } = transaction as unknown as { _?: { session?: DrizzleSession } }
  if (typeof drizzle?.session?.prepareQuery === 'function') {
    // A raw query: no fields to map, no name to prepare it under, and rows as objects.
    const query = drizzle.session.prepareQuery({ sql: text, params: [...values] }, undefined, undefined, false)
    return countOf(await query.execute())
  }
  throw new InvalidArgumentError('transaction', transaction, KINDS)
}

/** What Drizzle's own `execute` calls, with every client. */
interface DrizzleSession {
  prepareQuery(
    query: { sql: string; params: unknown[] },
    fields: undefined,
    name: undefined,
    isArrayMode: boolean,
  ): { execute(): Promise<unknown> }
}

function countOf(result: unknown): number {
  const rows = Array.isArray(result) ? result : (result as { rows?: unknown } | undefined)?.rows
  return Array.isArray(rows) ? rows.length : 0
}

/** Knex has `?` for each value, in the order of the text. */
const withQuestionMarks = (text: string): string => text.replaceAll('?', '\\?').replaceAll(/\$\d+/g, '?')

const repeated = (text: string, values: readonly string[]): string[] =>
  [...text.matchAll(/\$(\d+)/g)].map(([, index]) => values[Number(index) - 1] as string)

/** Query builders wrap the client's error, each in a different way. */
export function hasState(error: unknown, state: string): boolean {
  if (sqlState(error) === state) return true
  const {
    cause,
    meta,
    message = '',
  } = (error ?? {}) as { cause?: unknown; meta?: { code?: unknown }; message?: string }
  return meta?.code === state || (cause !== undefined && hasState(cause, state)) || message.includes(`\`${state}\``)
}
