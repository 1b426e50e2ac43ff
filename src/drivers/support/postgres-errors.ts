import { HoldfastError, StoreError } from '../../core/errors.ts'

/** PostgreSQL's five characters, as both clients tell them. */
export function sqlState(error: unknown): string | undefined {
  const { code } = (error ?? {}) as { code?: unknown }
  return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) ? code : undefined
}

/** Says what is wrong, and what to do, before it says what PostgreSQL said. */
export function storeErrorFrom(error: unknown): HoldfastError {
  if (error instanceof HoldfastError) return error
  const state = sqlState(error)
  const said = error instanceof Error ? error.message || error.name : String(error)
  const reason = state === undefined ? 'could not be reached, or the connection broke' : reasonFor(state)
  const from = (error as { code?: unknown } | undefined)?.code
  return new StoreError(`PostgreSQL ${reason} (${from ?? 'no code'}: ${said})`, { cause: error })
}

function reasonFor(state: string): string {
  return reasons[state] ?? reasons[state.slice(0, 2)] ?? 'refused the statement'
}

const reasons: Record<string, string> = {
  '08': 'could not be reached, or the connection broke',
  '28': 'did not accept the user or the password',
  '3D000': 'has no such database',
  '40001':
    'could not serialize the transaction: somebody has set its isolation above READ COMMITTED since this driver was opened',
  '42501':
    'does not let this role use the lock tables; grant it what docs/drivers/postgres.md lists under "A role of its own"',
  '53': 'has run out of something',
  '53200':
    'has no room left for locks: raise max_locks_per_transaction, or take fewer advisory locks at once (shared memory)',
  '53300': 'has no connection left: raise max_connections',
  '55P03': 'waited in vain for a lock name that somebody’s open transaction keeps to itself',
  '57014': 'canceled the statement',
  '57P01': 'ended the connection on an administrator’s command',
  '57P03': 'is starting up or shutting down',
  '57P05': 'ended the connection because it was idle for too long',
}
