import { HoldfastError, StoreError } from '../../core/errors.ts'

/** PostgreSQL's five characters, as both clients tell them. */
export function sqlState(error: unknown): string | undefined {
  const { code } = (error ?? {}) as { code?: unknown }
  return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) ? code : undefined
}

/** Why a call is refused on a connection that the caller has begun a transaction on. */
export const IN_TRANSACTION =
  'this connection is inside a transaction that was begun by others: a lock that is taken or released there would be taken ' +
  'or released only with its COMMIT, and not at all with its ROLLBACK. Give the driver a connection or a pool of its own, and ' +
  'give no client back to a pool before its COMMIT or ROLLBACK. For a lock that lasts as long as a transaction, use lockInTransaction'

/**
 * Says what is wrong, and what to do, before it says what PostgreSQL said. `several`: another try may come to another
 * connection, which decides whether one helps where just this one cannot be used.
 */
export function storeErrorFrom(error: unknown, { several = true }: { readonly several?: boolean } = {}): HoldfastError {
  if (error instanceof HoldfastError) return error
  const state = sqlState(error)
  if (state === '2D000' || state === '25P02')
    return new StoreError(IN_TRANSACTION, { cause: error, retryable: several })
  const said = error instanceof Error ? error.message || error.name : String(error)
  const reason = state === undefined ? 'could not be reached, or the connection broke' : reasonFor(state)
  const from = (error as { code?: unknown } | undefined)?.code
  return new StoreError(`PostgreSQL ${reason} (${from ?? 'no code'}: ${said})`, { cause: error })
}

function reasonFor(state: string): string {
  return reasons[state] ?? reasons[state.slice(0, 2)] ?? 'refused the statement'
}

const ROW_LOCKED = 'the row of the lock name is locked by another transaction, which has been open for too long'

/** For one entry of a list, while the others have their answers. */
export const rowLocked = (lockName = ''): StoreError =>
  new StoreError(`whether "${lockName}" is held is not known: ${ROW_LOCKED}`)

const reasons: Record<string, string> = {
  '08': 'could not be reached, or the connection broke',
  '28': 'did not accept the user or the password',
  '3D000': 'has no such database',
  '42501':
    'does not let this role use the lock tables; grant it what docs/drivers/postgres.md lists under "A role of its own"',
  '53': 'has run out of something',
  '53200':
    'has no room left for locks: raise max_locks_per_transaction, or take fewer advisory locks at once (shared memory)',
  '53300': 'has no connection left: raise max_connections',
  '55P03': `did not answer: ${ROW_LOCKED}`,
  '57014': 'canceled the statement',
  '57P01': 'ended the connection on an administrator’s command',
  '57P03': 'is starting up or shutting down',
  '57P05': 'ended the connection because it was idle for too long',
}
