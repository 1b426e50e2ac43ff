import { HoldfastError, StoreError } from '../../core/errors.ts'
import { attempt, codeOf, isA, messageOf, safeCause } from '../../core/foreign-errors.ts'

/** SQLite's primary result code, from the error of any client. */
export function sqliteCode(error: unknown): string | undefined {
  const errcode = attempt(() => (error as { errcode?: unknown }).errcode)
  if (typeof errcode === 'number') return nameOf(errcode)
  const code = codeOf(error)
  // Extended codes such as SQLITE_IOERR_WRITE or SQLITE_BUSY_RECOVERY begin with the primary one.
  if (typeof code === 'string' && code.startsWith('SQLITE_')) return code.split('_', 2).join('_')
  const message = messageOf(error)
  const [, number] = /Unable to open connection.*: (\d+)/.exec(message) ?? []
  if (number !== undefined) return nameOf(Number(number))
  // libsql reports some errors without their code.
  return CODES.find((each) => message.includes(each.message))?.name
}

/** SQLite gives up with SQLITE_PROTOCOL when it has lost a race for the index of the log many times. */
export const isBusy = (error: unknown): boolean =>
  ['SQLITE_BUSY', 'SQLITE_LOCKED', 'SQLITE_PROTOCOL'].includes(sqliteCode(error) ?? '')

/** Also for a statement that has not ended, which a package may leave behind on a busy file. */
export const isInTransaction = (error: unknown): boolean => messageOf(error).includes('within a transaction')

/** Wraps an error of a client. It says what is wrong with the file and what to do, and then what SQLite said. */
export function storeErrorFrom(error: unknown, path: string): HoldfastError {
  if (isA(error, HoldfastError)) return error
  const code = sqliteCode(error)
  const known = isInTransaction(error) ? IN_TRANSACTION : reasons[code ?? '']
  const reason = known ?? 'SQLite could not work with it'
  return new StoreError(`the lock file ${path}: ${reason} (${code ?? 'no code'}: ${messageOf(error)})`, {
    cause: safeCause(error),
    retryable: code === undefined || TRANSIENT.has(code),
  })
}

const IN_TRANSACTION =
  'the database that was passed in has an open transaction; end it first, or pass in another connection for the locks'

/** SQLite's primary result codes. Their messages have not changed for many years. */
const CODES = [
  { number: 5, name: 'SQLITE_BUSY', message: 'database is locked' },
  { number: 6, name: 'SQLITE_LOCKED', message: 'database table is locked' },
  { number: 8, name: 'SQLITE_READONLY', message: 'attempt to write a readonly database' },
  { number: 10, name: 'SQLITE_IOERR', message: 'disk I/O error' },
  { number: 11, name: 'SQLITE_CORRUPT', message: 'database disk image is malformed' },
  { number: 13, name: 'SQLITE_FULL', message: 'database or disk is full' },
  { number: 14, name: 'SQLITE_CANTOPEN', message: 'unable to open database file' },
  { number: 15, name: 'SQLITE_PROTOCOL', message: 'locking protocol' },
  { number: 26, name: 'SQLITE_NOTADB', message: 'file is not a database' },
]

const nameOf = (extended: number): string | undefined => CODES.find(({ number }) => number === (extended & 0xff))?.name

/** Errors that may disappear with time, or when another process goes on. */
const TRANSIENT = new Set(['SQLITE_BUSY', 'SQLITE_LOCKED', 'SQLITE_PROTOCOL', 'SQLITE_IOERR', 'SQLITE_FULL'])

const reasons: Record<string, string> = {
  SQLITE_BUSY:
    'another process has kept the write lock for too long, as a process does that is paused during a transaction',
  SQLITE_LOCKED: 'the connection itself has an open transaction',
  SQLITE_PROTOCOL: 'many processes open it and close it at the same time',
  SQLITE_READONLY: 'this user cannot write to it, or to its folder',
  SQLITE_IOERR: 'the disk failed or is full, or the file was removed or replaced while in use',
  SQLITE_CORRUPT: 'it is damaged; end all processes that use it, then delete it (locks are lost, tokens still rise)',
  SQLITE_FULL: 'the disk is full',
  SQLITE_CANTOPEN: 'it cannot be opened. Does its folder exist, and may this user write to it?',
  SQLITE_NOTADB: 'it is not an SQLite database; choose another path',
}
