import { checkBoolean, checkLockName } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { type PostgresTransaction, rowsIn } from '../postgres/transaction.ts'
import { advisoryKey } from './held-locks.ts'
import { advisoryStatements } from './statements.ts'

export interface LockInTransactionOptions {
  /**
   * Takes the lock in shared mode: beside other shared locks, never beside an exclusive one.
   * @default false
   */
  readonly shared?: boolean
  /**
   * Whether to wait for the lock, in the server's own queue, for as long as the `lock_timeout` of the transaction
   * allows. If false, the answer comes at once.
   * @default true
   */
  readonly wait?: boolean
}

const OPTIONS = optionNames<LockInTransactionOptions>({ shared: true, wait: true })

/**
 * Takes a lock in your own open transaction. Its commit or rollback releases the lock. So does a rollback to a
 * savepoint that was set before: take the lock outside of it. It excludes, and is excluded by, the postgres-advisory
 * driver's leases on the same name. It works behind a pooler in transaction mode.
 *
 * @returns True if the lock is held. False if another client holds it and `wait` is false.
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
): Promise<boolean> {
  checkLockName(lockName)
  const { shared = false, wait = true } = checkOptions(options, OPTIONS)
  checkBoolean('shared', shared)
  checkBoolean('wait', wait)
  if (isOccupied(transaction)) {
    const rule = 'on a Client without a postgres-advisory driver: it would be granted that driver’s locks as well'
    throw new InvalidArgumentError('transaction', transaction, rule)
  }
  const values = [advisoryKey(lockName), String(shared), wait ? '' : '0']
  return (await rowsIn(transaction, advisoryStatements.lock_in_transaction, values)) === 2
}

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
