import { InvalidArgumentError } from '../../core/errors.ts'
import { checkLockName } from '../../core/names.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { type PostgresTransaction, queryIn } from '../postgres/transaction.ts'
import { isOccupied } from './client.ts'
import { advisoryKey } from './key.ts'
import { advisoryStatements } from './statements.ts'

export interface LockInTransactionOptions {
  /** Beside other shared ones, never beside an exclusive one. False if not said. */
  readonly shared?: boolean
  /**
   * False: answers at once. True, the default: waits for it in the server's own queue, for as long as the transaction's
   * `lock_timeout` lets it.
   */
  readonly wait?: boolean
}

const OPTIONS = optionNames<LockInTransactionOptions>({ shared: true, wait: true })

/**
 * Takes a lock in the caller's own open transaction. Its commit or rollback gives it back, and nothing else does. True:
 * it is held. False: it is held by another, and `wait` was false. Rejects with `InvalidArgumentError` if there is no
 * transaction open, as with a pool or before `BEGIN`: the lock would be free again at once. Also if the transaction is
 * on a `Client` that a postgres-advisory driver uses. Everything else that fails is the client's own error.
 *
 * It excludes, and is excluded by, the postgres-advisory driver's leases on the same name. It works behind a pooler in
 * transaction mode.
 */
export async function lockInTransaction(
  transaction: PostgresTransaction,
  lockName: string,
  options: LockInTransactionOptions = {},
): Promise<boolean> {
  checkLockName(lockName)
  const { shared = false, wait = true } = checkOptions(options, OPTIONS)
  for (const [name, value] of Object.entries({ shared, wait })) {
    if (typeof value !== 'boolean') throw new InvalidArgumentError(name, value, 'true or false')
  }
  if (isOccupied(transaction)) {
    const rule = 'on a Client without a postgres-advisory driver, whose locks it would be given as well'
    throw new InvalidArgumentError('transaction', transaction, rule)
  }
  const statement = wait ? advisoryStatements.lock_in_transaction : advisoryStatements.try_in_transaction
  const [row] = await queryIn(transaction, statement, [advisoryKey(lockName), String(shared)])
  return row?.['got'] === true
}
