import { StaleTokenError, StoreError } from '../../core/errors.ts'
import { checkResource, type FencingGuard, type Token, tokenOf } from '../../core/fencing.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { statementsFor } from './statements.ts'
import { hasState, type PostgresTransaction, rowsIn } from './transaction.ts'

export type { PostgresTransaction } from './transaction.ts'

export interface FenceOptions {
  /**
   * The schema that has the fencing guard.
   * @default 'public'
   */
  readonly schema?: string
}

const OPTIONS = optionNames<FenceOptions>({ schema: true })

/**
 * Checks a fencing token in the transaction that writes to a protected resource. Call it before the first read. Until
 * the transaction ends, other transactions with a token for the same resource wait here.
 *
 * With the transaction alone, it returns a guard whose `accept(resource, token)` does the same.
 *
 * @throws `StaleTokenError` if the resource has seen a larger token: the lease was lost. Roll the transaction back.
 * @throws `StoreError` if the schema has no fencing guard. The message says what to run.
 * @throws `InvalidArgumentError` if there is no open transaction, or another argument is not valid. Every other error
 * is the client's own.
 *
 * @example
 * ```ts
 * await client.query('BEGIN')
 * await postgresFence(client, 'account:7', lease.fencingToken)
 * await client.query('UPDATE accounts SET balance = balance - 10 WHERE id = 7')
 * await client.query('COMMIT')
 * ```
 */
export function postgresFence(
  transaction: PostgresTransaction,
  resource: string,
  token: Token,
  options?: FenceOptions,
): Promise<void>
export function postgresFence(transaction: PostgresTransaction, options?: FenceOptions): PostgresFence
export function postgresFence(transaction: PostgresTransaction, ...rest: unknown[]): Promise<void> | PostgresFence {
  const [first, token, options] = rest as [string | FenceOptions | undefined, Token, FenceOptions | undefined]
  // The number of arguments decides. A resource that is undefined by mistake must be an error: a guard that the caller
  // ignores would skip the check.
  const isGuard = rest.length === 0 || (rest.length === 1 && typeof first === 'object')
  if (!isGuard) return accept(transaction, first as string, token, options)
  const ofGuard = first as FenceOptions | undefined
  return {
    accept: (resource, ofWrite) => accept(transaction, resource, ofWrite, ofGuard),
    reset: (resource) => reset(transaction, resource, ofGuard),
  }
}

export interface PostgresFence extends FencingGuard {
  accept(resource: string, token: Token): Promise<void>
  /**
   * Forgets the largest token when the transaction commits. Then any token is accepted. Use it for a resource that is
   * gone, or whose lock moves to another store, once no process with an old token can reach the resource.
   * @returns Whether the resource had a largest token.
   * @throws `StoreError`, `InvalidArgumentError` and the client's own errors, as `accept` does.
   */
  reset(resource: string): Promise<boolean>
}

async function reset(transaction: PostgresTransaction, resource: string, options?: FenceOptions): Promise<boolean> {
  checkResource(resource)
  return (await ask('reset_fence', transaction, [resource], options)) === 2
}

async function accept(
  transaction: PostgresTransaction,
  resource: string,
  token: Token,
  options?: FenceOptions,
): Promise<void> {
  checkResource(resource)
  const fencingToken = tokenOf(token)
  await ask('fence', transaction, [resource, String(fencingToken)], options).catch((error: unknown) => {
    if (!hasState(error, STALE)) throw error
    throw new StaleTokenError(resource, fencingToken, undefined, { cause: safeCause(error) })
  })
}

async function ask(
  statement: 'fence' | 'reset_fence',
  transaction: PostgresTransaction,
  values: readonly string[],
  options: FenceOptions = {},
): Promise<number> {
  const { schema = 'public' } = checkOptions(options, OPTIONS)
  return rowsIn(transaction, statementsFor(schema)[statement], values).catch((error: unknown) => {
    if (!MISSING.some((state) => hasState(error, state))) throw error
    const command = `holdfast migrate --only fence --schema ${schema}`
    const message = `the schema "${schema}" of this database has no holdfast_fence, or an old one: run "${command}"`
    throw new StoreError(message, { cause: safeCause(error), retryable: false })
  })
}

const STALE = 'HF001'
/** No such function, no such schema, or no table behind the function. */
const MISSING = ['42883', '3F000', '42P01']
