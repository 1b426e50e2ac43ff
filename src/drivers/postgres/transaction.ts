import { InvalidArgumentError } from '../../core/errors.ts'
import type { Row } from './connections.ts'

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

/** Rejects if no transaction is open: what the statement locks would be free again before the answer is here. */
export async function queryIn(
  transaction: PostgresTransaction,
  text: string,
  values: readonly string[],
): Promise<readonly Row[]> {
  if (isOutside(transaction)) throw new InvalidArgumentError('transaction', transaction, RULE)
  const rows = await rowsIn(transaction, text, values)
  // A client of pg learns its transaction status from each answer, so it can only be checked afterwards.
  const { getTransactionStatus } = transaction as { getTransactionStatus?(): string | null }
  if (typeof getTransactionStatus === 'function' && getTransactionStatus.call(transaction) === 'I') {
    throw new InvalidArgumentError('transaction', transaction, `${RULE}: after BEGIN, and before COMMIT`)
  }
  return rows
}

const RULE = 'an open transaction of pg, postgres, Knex, Kysely, Drizzle or Prisma'

/** Whether it is an object that transactions are begun from. It has methods that a transaction lacks, or lacks some. */
function isOutside(transaction: unknown): boolean {
  if (transaction === null || (typeof transaction !== 'object' && typeof transaction !== 'function')) return true
  const tx = transaction as Record<string, unknown>
  const has = (name: string): boolean => typeof tx[name] === 'function'
  if (has('$queryRawUnsafe')) return has('$connect')
  if (has('executeQuery') || has('raw')) return tx['isTransaction'] !== true
  if (has('unsafe')) return has('begin')
  if (has('query')) return 'totalCount' in tx
  return !has('rollback')
}

async function rowsIn(
  transaction: PostgresTransaction,
  text: string,
  values: readonly string[],
): Promise<readonly Row[]> {
  const tx = transaction as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>
  if (typeof tx['$queryRawUnsafe'] === 'function') return rowsOf(await tx['$queryRawUnsafe'](text, ...values))
  if (typeof tx['executeQuery'] === 'function') {
    // Kysely: a compiled query, as `CompiledQuery.raw` creates it.
    const query = { sql: text, parameters: values, query: { kind: 'RawNode', sqlFragments: [text], parameters: [] } }
    return rowsOf(await tx['executeQuery']({ ...query, queryId: { queryId: 'holdfast' } }))
  }
  if (typeof tx['raw'] === 'function') return rowsOf(await tx['raw'](withQuestionMarks(text), repeated(text, values)))
  if (typeof tx['unsafe'] === 'function') return rowsOf(await tx['unsafe'](text, [...values]))
  if (typeof tx['query'] === 'function') return rowsOf(await tx['query'](text, [...values]))
  const { _: drizzle } = transaction as unknown as { _?: { session?: DrizzleSession } }
  if (typeof drizzle?.session?.prepareQuery === 'function') {
    // A raw query: no fields to map, no name to prepare it under, and rows as objects.
    const query = drizzle.session.prepareQuery({ sql: text, params: [...values] }, undefined, undefined, false)
    return rowsOf(await query.execute())
  }
  throw new InvalidArgumentError('transaction', transaction, RULE)
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

function rowsOf(result: unknown): readonly Row[] {
  const { rows } = result as { rows?: unknown }
  return (Array.isArray(result) ? result : (rows ?? [])) as readonly Row[]
}

/** Knex has `?` for each value, in the order of the text. */
const withQuestionMarks = (text: string): string => text.replaceAll('?', '\\?').replaceAll(/\$\d+/g, '?')

const repeated = (text: string, values: readonly string[]): string[] =>
  [...text.matchAll(/\$(\d+)/g)].map(([, index]) => values[Number(index) - 1] as string)
