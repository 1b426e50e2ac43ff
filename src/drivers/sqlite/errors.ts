import { HoldfastError, StoreError } from '../../core/errors.ts'

/** SQLite's primary result code, from the error of any client. */
export function sqliteCode(error: unknown): string | undefined {
  const { code, errcode, message = '' } = error as { code?: unknown; errcode?: unknown; message?: string }
  if (typeof errcode === 'number') return codes[errcode & 0xff]
  // Extended codes such as SQLITE_IOERR_WRITE or SQLITE_BUSY_RECOVERY begin with the primary one.
  if (typeof code === 'string' && code.startsWith('SQLITE_')) return code.split('_', 2).join('_')
  const [, number] = /Unable to open connection.*: (\d+)/.exec(message) ?? []
  if (number !== undefined) return codes[Number(number) & 0xff]
  // libsql reports some errors without their code. The messages of SQLite have not changed for many years.
  return Object.keys(messages).find((each) => message.includes(messages[each] as string))
}

export const isBusy = (error: unknown): boolean => ['SQLITE_BUSY', 'SQLITE_LOCKED'].includes(sqliteCode(error) ?? '')

/**
 * SQLite says this about an open transaction, and also while a statement has not ended. A package may leave one behind
 * that found the file busy, until it is used again.
 */
export const isInTransaction = (error: unknown): boolean =>
  error instanceof Error && error.message.includes('within a transaction')

/** Wraps an error of a client. It says what is wrong with the file and what to do, and then what SQLite said. */
export function storeErrorFrom(error: unknown, path: string): HoldfastError {
  if (error instanceof HoldfastError) return error
  const code = sqliteCode(error)
  const said = error instanceof Error ? error.message : String(error)
  const known = isInTransaction(error) ? IN_TRANSACTION : reasons[code ?? '']
  const reason = known ?? 'SQLite could not work with it'
  return new StoreError(`the lock file ${path}: ${reason} (${code ?? 'no code'}: ${said})`, {
    cause: error,
    retryable: code === undefined || TRANSIENT.has(code),
  })
}

const IN_TRANSACTION =
  'the database that was passed in has an open transaction; end it first, or pass in another connection for the locks'

const codes: Record<number, string> = {
  5: 'SQLITE_BUSY',
  6: 'SQLITE_LOCKED',
  8: 'SQLITE_READONLY',
  10: 'SQLITE_IOERR',
  11: 'SQLITE_CORRUPT',
  13: 'SQLITE_FULL',
  14: 'SQLITE_CANTOPEN',
  26: 'SQLITE_NOTADB',
}

const messages: Record<string, string> = {
  SQLITE_BUSY: 'database is locked',
  SQLITE_LOCKED: 'database table is locked',
  SQLITE_READONLY: 'attempt to write a readonly database',
  SQLITE_IOERR: 'disk I/O error',
  SQLITE_CORRUPT: 'database disk image is malformed',
  SQLITE_FULL: 'database or disk is full',
  SQLITE_CANTOPEN: 'unable to open database file',
  SQLITE_NOTADB: 'file is not a database',
}

/** Errors that may disappear with time, or when another process goes on. */
const TRANSIENT = new Set(['SQLITE_BUSY', 'SQLITE_LOCKED', 'SQLITE_IOERR', 'SQLITE_FULL'])

const reasons: Record<string, string> = {
  SQLITE_BUSY:
    'another process has kept the write lock for too long, as a process does that is paused during a transaction',
  SQLITE_LOCKED: 'the connection itself has an open transaction',
  SQLITE_READONLY: 'this user cannot write to it, or to its folder',
  SQLITE_IOERR: 'the disk failed or is full, or the file was removed or replaced while in use',
  SQLITE_CORRUPT: 'it is damaged; end all processes that use it, then delete it (locks are lost, tokens still rise)',
  SQLITE_FULL: 'the disk is full',
  SQLITE_CANTOPEN: 'it cannot be opened. Does its folder exist, and may this user write to it?',
  SQLITE_NOTADB: 'it is not an SQLite database; choose another path',
}
