import { StaleTokenError } from '../../core/errors.ts'
import { checkResource, type FencingGuard, type Token, tokenOf } from '../../core/fencing.ts'
import { sqlState } from './postgres-errors.ts'
import { statementsFor } from './postgres-migrate.ts'
import { type PostgresTransaction, queryIn } from './postgres-transaction.ts'

export type { PostgresTransaction } from './postgres-transaction.ts'

export interface FenceOptions {
  readonly schema?: string
}

/**
 * The guard of a protected resource, called in the transaction that writes to it, before or after the write. Rejects
 * with `StaleTokenError` when a larger token has been seen; every other error is the client's own. Until the
 * transaction ends, others with a token for the same resource wait here.
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
  return { accept: (resource, ofWrite) => accept(transaction, resource, ofWrite, first as FenceOptions | undefined) }
}

export interface PostgresFence extends FencingGuard {
  accept(resource: string, token: Token): Promise<void>
}

async function accept(
  transaction: PostgresTransaction,
  resource: string,
  token: Token,
  { schema = 'public' }: FenceOptions = {},
): Promise<void> {
  checkResource(resource)
  const fencingToken = tokenOf(token)
  try {
    await queryIn(transaction, statementsFor(schema).fence, [resource, String(fencingToken)])
  } catch (error) {
    if (isStale(error)) throw new StaleTokenError(resource, fencingToken, undefined, { cause: error })
    throw error
  }
}

/** Query builders wrap the client's error, each in its own way. */
function isStale(error: unknown): boolean {
  if (sqlState(error) === STALE) return true
  const {
    cause,
    meta,
    message = '',
  } = (error ?? {}) as { cause?: unknown; meta?: { code?: unknown }; message?: string }
  return meta?.code === STALE || (cause !== undefined && isStale(cause)) || message.includes(`\`${STALE}\``)
}

const STALE = 'HF001'
