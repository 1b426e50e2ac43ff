import { checkBoolean, checkLockName, waitMsFrom } from '../../core/arguments.ts'
import { InvalidArgumentError, NotAcquiredError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { hasState, type PostgresTransaction, rowsIn } from '../postgres/transaction.ts'
import { advisoryKey } from './held-locks.ts'
import { advisoryStatements } from './statements.ts'

export interface TryLockInTransactionOptions {
  /**
   * Takes the lock in shared mode: beside other shared locks, never beside an exclusive one.
   * @default false
   */
  readonly shared?: boolean
}

export interface LockInTransactionOptions extends TryLockInTransactionOptions {
  /**
   * Whether to wait for the lock, in the server's own queue.
   * @default false, or true with a `blockingTimeoutSeconds` above 0
   */
  readonly blocking?: boolean
  /**
   * How long to wait. The wait has its own `lock_timeout`, and leaves that of the transaction as it was.
   * @default 10
   */
  readonly blockingTimeoutSeconds?: number
}

const TRY_OPTIONS = optionNames<TryLockInTransactionOptions>({ shared: true })
const OPTIONS = optionNames<LockInTransactionOptions>({ shared: true, blocking: true, blockingTimeoutSeconds: true })

/**
 * Takes a lock in your own open transaction. Its commit or rollback releases the lock. So does a rollback to a
 * savepoint that was set before: take the lock outside of it. It excludes, and is excluded by, the postgres-advisory
 * driver's leases on the same name. It works behind a pooler in transaction mode.
 *
 * @throws `NotAcquiredError` if another client holds the lock. If it waited before, the transaction is aborted, as by
 * every statement that fails: roll it back.
 * @throws `InvalidArgumentError` if no transaction is open, for example because a pool was passed, or an object that
 * sends to one, or a client before `BEGIN`: the lock would be free again at once. Nothing is locked then. Also if the
 * transaction is on a `Client` that a postgres-advisory driver uses. Every other error is the client's own.
 *
 * @example
 * ```ts
 * await client.query('BEGIN')
 * await lockInTransaction(client, 'invoice:2026')
 * // …
 * await client.query('COMMIT')
 * ```
 */
export async function lockInTransaction(
  transaction: PostgresTransaction,
  lockName: string,
  options: LockInTransactionOptions = {},
): Promise<void> {
  const { shared = false, blockingTimeoutSeconds, ...rest } = checkOptions(options, OPTIONS)
  const { blocking = blockingTimeoutSeconds !== undefined } = rest
  const waitMs = waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds ?? 10)
  const patienceMs = checkBoolean('blocking', blocking) ? Math.min(waitMs, MAX_LOCK_TIMEOUT_MS) : 0
  const isTaken = await take(transaction, lockName, { shared, patienceMs }).catch((error: unknown) => {
    if (patienceMs === 0 || !hasState(error, LOCK_NOT_AVAILABLE)) throw error
    const waited = `waited ${patienceMs / 1_000} s, which has aborted the transaction: roll it back`
    const late = new NotAcquiredError(lockName, `"${lockName}" is held by another client (${waited})`)
    late.cause = safeCause(error)
    throw late
  })
  if (!isTaken) throw new NotAcquiredError(lockName, `"${lockName}" is held by another client`)
}

/** Like `lockInTransaction` without waiting, but resolves with false if another client holds the lock. */
export function tryLockInTransaction(
  transaction: PostgresTransaction,
  lockName: string,
  options: TryLockInTransactionOptions = {},
): Promise<boolean> {
  const { shared = false } = checkOptions(options, TRY_OPTIONS)
  return take(transaction, lockName, { shared, patienceMs: 0 })
}

async function take(
  transaction: PostgresTransaction,
  lockName: string,
  { shared, patienceMs }: { shared: boolean; patienceMs: number },
): Promise<boolean> {
  checkLockName(lockName)
  checkBoolean('shared', shared)
  if (isOccupied(transaction)) {
    const rule = 'on a Client without a postgres-advisory driver: it would be granted that driver’s locks as well'
    throw new InvalidArgumentError('transaction', transaction, rule)
  }
  const values = [advisoryKey(lockName), String(shared), String(Math.ceil(patienceMs))]
  return (await rowsIn(transaction, advisoryStatements.lock_in_transaction, values)) === 2
}

const LOCK_NOT_AVAILABLE = '55P03'
/** What `lock_timeout` can be: 24 days. */
const MAX_LOCK_TIMEOUT_MS = 2 ** 31 - 1

const OCCUPIED: unique symbol = Symbol.for('holdfast.postgres-advisory.occupied')

/**
 * The clients that a driver uses. A connection has one session, and the server grants a session a lock that it already
 * has. So two drivers on one `Client` would both hold one name, and so would a driver and a transaction. The set is
 * global, because a program may have loaded two copies of this package.
 */
const everywhere = globalThis as { [OCCUPIED]?: WeakSet<object> }
everywhere[OCCUPIED] ??= new WeakSet()
const occupied = everywhere[OCCUPIED]

/** Returns a function that frees the client again. */
export function occupy(client: object): () => void {
  if (isOccupied(client)) {
    const rule = 'a Client without another postgres-advisory driver. Close that one first, share it, or pass in a Pool'
    throw new InvalidArgumentError('client', client, rule)
  }
  occupied.add(client)
  return () => occupied.delete(client)
}

const isOccupied = (client: unknown): boolean => typeof client === 'object' && client !== null && occupied.has(client)
