import { StaleTokenError } from '../../core/errors.ts'
import { sqlState } from './postgres-errors.ts'
import { statementsFor } from './postgres-migrate.ts'
import { type PostgresTransaction, queryIn } from './postgres-transaction.ts'

export type { PostgresTransaction } from './postgres-transaction.ts'

export interface FenceOptions {
  readonly schema?: string
}

/**
 * The guard of a protected resource, called in the transaction that writes to it, before or after the write. Rejects with `StaleTokenError`
 * when a larger token has been seen; every other error is the client's own. Until the transaction ends, others with a token for
 * the same resource wait here.
 */
export async function postgresFence(
  transaction: PostgresTransaction,
  resource: string,
  fencingToken: number,
  { schema = 'public' }: FenceOptions = {},
): Promise<void> {
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
