import { StaleTokenError, StoreError } from '../../core/errors.ts'
import { checkResource, type FencingGuard, type Token, tokenOf } from '../../core/fencing.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { sqlState } from './errors.ts'
import { statementsFor } from './migrate.ts'
import { type PostgresTransaction, queryIn } from './transaction.ts'

export type { PostgresTransaction } from './transaction.ts'

export interface FenceOptions {
  readonly schema?: string
}

const OPTIONS = optionNames<FenceOptions>({ schema: true })

/**
 * The guard of a protected resource, called in the transaction that writes to it, before its first read. Rejects
 * with `StaleTokenError` when a larger token has been seen, and with a `StoreError` that says what to run where the
 * function of the guard is missing; every other error is the client's own. Until the transaction ends, others with a
 * token for the same resource wait here.
 *
 * With the transaction alone it gives a guard whose `accept(resource, token)` does the same.
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
  // By their number: a resource that is missing by mistake must not turn a check into an object that nobody looks at.
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
   * Forgets the largest token with the transaction's commit: the next one is let through, whatever it is. For a resource
   * that is gone, and for one whose lock moves to another store, when no process that could have an old token can reach
   * it any more. True if it was known.
   */
  reset(resource: string): Promise<boolean>
}

async function reset(transaction: PostgresTransaction, resource: string, options: FenceOptions = {}): Promise<boolean> {
  const { schema = 'public' } = checkOptions(options, OPTIONS)
  checkResource(resource)
  const [row] = await queryIn(transaction, statementsFor(schema).reset_fence, [resource]).catch((error: unknown) => {
    throw missingFence(error, schema) ?? error
  })
  return row?.['forgotten'] === '1'
}

async function accept(
  transaction: PostgresTransaction,
  resource: string,
  token: Token,
  options: FenceOptions = {},
): Promise<void> {
  const { schema = 'public' } = checkOptions(options, OPTIONS)
  checkResource(resource)
  const fencingToken = tokenOf(token)
  try {
    await queryIn(transaction, statementsFor(schema).fence, [resource, String(fencingToken)])
  } catch (error) {
    if (hasState(error, STALE)) {
      throw new StaleTokenError(resource, fencingToken, undefined, { cause: safeCause(error) })
    }
    throw missingFence(error, schema) ?? error
  }
}

function missingFence(error: unknown, schema: string): StoreError | undefined {
  if (!MISSING.some((state) => hasState(error, state))) return undefined
  const command = `holdfast migrate --only fence --schema ${schema}`
  const message = `the schema "${schema}" of this database has no holdfast_fence, or an old one: run "${command}"`
  return new StoreError(message, { cause: safeCause(error), retryable: false })
}

/** Query builders wrap the client's error, each in its own way. */
function hasState(error: unknown, state: string): boolean {
  if (sqlState(error) === state) return true
  const {
    cause,
    meta,
    message = '',
  } = (error ?? {}) as { cause?: unknown; meta?: { code?: unknown }; message?: string }
  return meta?.code === state || (cause !== undefined && hasState(cause, state)) || message.includes(`\`${state}\``)
}

const STALE = 'HF001'
/** No such function, no such schema, and no table behind the function. */
const MISSING = ['42883', '3F000', '42P01']
