import { HoldfastError, StoreError } from '../../core/errors.ts'
import { type ConnectionTrouble, connectionTrouble, messageOf, safeCause } from '../../core/foreign-errors.ts'

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

/** What is known of where a statement was sent. */
export interface AskedServer {
  /** As an error names it: a URL without its login. */
  readonly place?: string
  /** Another try may come to another connection, which decides whether one helps where just this one cannot be used. */
  readonly several?: boolean
  /** This driver has written there before: a server that is read-only now has been demoted. */
  readonly hasWritten?: boolean
}

/** Says what is wrong, where, and what to do, before it says what PostgreSQL said. */
export function storeErrorFrom(
  error: unknown,
  { place, several = true, hasWritten = false }: AskedServer = {},
): HoldfastError {
  if (error instanceof HoldfastError) return error
  const cause = safeCause(error)
  const state = sqlState(error)
  if (state === '2D000' || state === '25P02') return new StoreError(IN_TRANSACTION, { cause, retryable: several })
  const said = messageOf(error)
  const trouble = state === undefined ? connectionTrouble(error) : undefined
  const isPermanent = trouble?.isPermanent ?? (isRefusal(state, said) || (state === READ_ONLY && !hasWritten))
  const reason = trouble === undefined ? reasonFor(state, said) : wordsFor(trouble)
  const code = (error as { code?: unknown } | undefined)?.code
  const where = place === undefined ? '' : ` at ${place}`
  const message = `PostgreSQL${where} ${reason} (${typeof code === 'string' ? code : 'no code'}: ${said})`
  return new StoreError(message, { cause, retryable: !isPermanent })
}

/** What no further try can change: the login, the database, the rights. */
const isRefusal = (state: string | undefined, said: string): boolean =>
  state === undefined ? said.startsWith('SASL') : ['28', '3D'].includes(state.slice(0, 2)) || state === '42501'

function wordsFor({ kind, reason, advice }: ConnectionTrouble): string {
  if (kind === 'closed') return BROKEN
  const remedy = kind === 'no-tls' ? 'Use sslmode=disable, or switch TLS on at the server.' : advice
  return `could not be reached: ${reason}${remedy && `. ${remedy}`}`
}

function reasonFor(state: string | undefined, said: string): string {
  if (state === undefined) return isRefusal(state, said) ? LOGIN : BROKEN
  if (state === '28000' && /no encryption|SSL off/i.test(said)) return NOT_WITHOUT_TLS
  return reasons[state] ?? reasons[state.slice(0, 2)] ?? 'refused the statement'
}

const BROKEN = 'could not be reached, or the connection broke'
const LOGIN = 'did not accept the user or the password'
const NOT_WITHOUT_TLS =
  'does not accept this user without TLS: add sslmode=require to the URL, or an entry to pg_hba.conf'
const READ_ONLY = '25006'

/** What a server says of itself that is in recovery, where it was asked before anything was written. */
export const standbyError = (): Error => Object.assign(new Error('it is in recovery'), { code: READ_ONLY })

const ROW_LOCKED = 'the row of the lock name is locked by another transaction, which has been open for too long'

/** For one entry of a list, while the others have their answers. */
export const rowLocked = (lockName = ''): StoreError =>
  new StoreError(`whether "${lockName}" is held is not known: ${ROW_LOCKED}`)

const reasons: Record<string, string> = {
  '08': BROKEN,
  '25006': 'is a standby, or read-only, on which no lock can be taken: connect to the primary',
  '28': LOGIN,
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
