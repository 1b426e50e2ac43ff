import { HoldfastError, StoreError } from '../../core/errors.ts'
import { codeOf, isA, messageOf, safeCause } from '../../core/foreign-errors.ts'
import { type ConnectionTrouble, connectionTrouble } from '../shared/connection-trouble.ts'

/** The five-character SQLSTATE, which both clients put into `code`. */
export function sqlState(error: unknown): string | undefined {
  const code = codeOf(error)
  return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) ? code : undefined
}

/** Why a call is refused on a connection on which the caller has begun a transaction. */
export const IN_TRANSACTION =
  'this connection is inside a transaction that your code has begun: a lock taken or released there would change ' +
  'only with its COMMIT, and not at all with its ROLLBACK. Give the driver a connection or a pool of its own, ' +
  'and return a client to its pool only after COMMIT or ROLLBACK. For a lock that lasts as long as a transaction, ' +
  'use lockInTransaction'

/** What is known about the server that a statement was sent to. */
export interface AskedServer {
  /** As an error names it: a URL without its login. */
  readonly place?: string
  /** A second try may get another connection. So it can help where only this connection cannot be used. */
  readonly isPool?: boolean
  /** This driver has written there before. So a server that is read-only now has been demoted. */
  readonly hasWritten?: boolean
}

/** The message says what is wrong, where, and what to do, then what PostgreSQL said. */
export function storeErrorFrom(
  error: unknown,
  { place, isPool = true, hasWritten = false }: AskedServer = {},
): HoldfastError {
  if (isA(error, HoldfastError)) return error
  const cause = safeCause(error)
  const state = sqlState(error)
  if (state === '2D000' || state === '25P02') return new StoreError(IN_TRANSACTION, { cause, retryable: isPool })
  const said = messageOf(error)
  const trouble = state === undefined ? connectionTrouble(error) : undefined
  const isPermanent = trouble?.isPermanent ?? (isRefusal(state, said) || (state === READ_ONLY && !hasWritten))
  const reason = trouble === undefined ? reasonFor(state, said, error) : wordsFor(trouble)
  const code = codeOf(error)
  const where = place === undefined ? '' : ` at ${place}`
  const message = `PostgreSQL${where} ${reason} (${typeof code === 'string' ? code : 'no code'}: ${said})`
  return new StoreError(message, { cause, retryable: !isPermanent })
}

/** The login, the database and the privileges: another try cannot change the answer. */
const isRefusal = (state: string | undefined, said: string): boolean =>
  state === undefined
    ? said.startsWith('SASL')
    : ['28', '3D'].includes(state.slice(0, 2)) || state === '42501' || state === UNSTORABLE

function wordsFor({ kind, reason, advice }: ConnectionTrouble): string {
  if (kind === 'closed') return BROKEN
  const remedy = kind === 'no-tls' ? 'Use sslmode=disable, or switch TLS on at the server.' : advice
  return `could not be reached: ${reason}${remedy && `. ${remedy}`}`
}

function reasonFor(state: string | undefined, said: string, error: unknown): string {
  if (state === undefined) return isRefusal(state, said) ? LOGIN : BROKEN
  if (state === '28000' && /no encryption|SSL off/i.test(said)) return NOT_WITHOUT_TLS
  if (state === '55P03' && !isOfRow(error)) return FILE_GROWS
  return reasons[state] ?? reasons[state.slice(0, 2)] ?? 'refused the statement'
}

/**
 * `lock_timeout` also ends waits for a file that another session makes grow. In every language, the context of a row
 * has its place. A second transaction that waits for a row shows none, but the statement, or the gate of its queue.
 */
const isOfRow = (error: unknown): boolean =>
  /\(\d+,\d+\)|\bFOR (?:NO KEY |KEY )?(?:UPDATE|SHARE)\b|pg_advisory_xact_lock/.test(
    String((error as { where?: unknown } | undefined)?.where ?? '(0,0)'),
  )

const FILE_GROWS = 'waited too long for a file to grow. Is the disk slow or full?'
const BROKEN = 'could not be reached, or the connection broke'
const LOGIN = 'did not accept the user or the password'
const NOT_WITHOUT_TLS =
  'does not accept this user without TLS: add sslmode=require to the URL, or an entry to pg_hba.conf'
const READ_ONLY = '25006'

/** For a server that says that it is in recovery, before anything was written. */
export const standbyError = (): Error => Object.assign(new Error('it is in recovery'), { code: READ_ONLY })

const ROW_LOCKED = 'its row has been locked by another transaction for too long. End that transaction'

/** The answer to one entry of a list. The other entries have answers of their own. */
export const rowLocked = (lockName = ''): StoreError =>
  new StoreError(`it is not known whether "${lockName}" is held: ${ROW_LOCKED}`)

/** The encoding of the database lacks a character of a text that was sent. */
export const UNSTORABLE = '22P05'

const reasons: Record<string, string> = {
  '08': BROKEN,
  [UNSTORABLE]:
    'cannot keep this text: the encoding of the database lacks one of its characters. Use a database in UTF8',
  '25006': 'is a standby, or read-only, on which no lock can be taken: connect to the primary',
  '28': LOGIN,
  '3D000': 'has no such database',
  '42501':
    'does not let this role use the lock tables: grant it the privileges listed in docs/drivers/postgres.md ' +
    'under "A role of its own"',
  '42883':
    'has no lock functions like those that this version of Holdfast calls: a newer version may have replaced them. ' +
    'Upgrade Holdfast',
  '53': 'has run out of resources',
  '53200':
    'has no room left for locks: raise max_locks_per_transaction, or take fewer advisory locks at once (shared memory)',
  '53300': 'has no connection left: raise max_connections',
  '55P03': 'did not answer: the row of the lock name has been locked by another transaction for too long',
  '57014': 'canceled the statement',
  '57P01': 'ended the connection on an administrator’s command',
  '57P03': 'is starting up or shutting down',
  '57P05': 'ended the connection because it was idle for too long',
}
