import { HoldfastError } from './errors.ts'
import { MAX_FOREIGN_MESSAGE } from './limits.ts'
import { withoutSecrets } from './secrets.ts'

/*
 * What the code of others has thrown. It may be any value: a `toString`, a getter or a proxy may throw when it is read.
 * The functions of this file never throw.
 */

/** Undefined if the value of others' code that `read` reads cannot be read. */
export function attempt<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch {
    return undefined
  }
}

/** What `String` returns for a thrown value, bounded and without secrets. */
export const textOf = (thrown: unknown): string => attempt(() => safeText(String(thrown))) ?? UNREADABLE

/** Whether a thrown value is an instance of a class. */
export const isA = <T>(thrown: unknown, type: abstract new (...args: never[]) => T): thrown is T =>
  attempt(() => thrown instanceof type) === true

/** The `code` of an error of Node or of a client. */
export const codeOf = (thrown: unknown): unknown => attempt(() => (thrown as { code?: unknown }).code)

const UNREADABLE = 'a value that cannot be printed'

/**
 * A copy of a client's error that is safe to use as a `cause`. Errors are logged with all their properties, and clients
 * attach secrets to them: ioredis the arguments of the failed command (the password, if that was AUTH), pg the client
 * with its settings, Node the URL that it could not parse. The copy has the message, the stack and the fields that
 * identify a failure, and no others.
 */
export function safeCause(error: unknown): Error {
  return readableCopy(error, 0)
}

const readableCopy = (error: unknown, depth: number): Error =>
  attempt(() => copyOf(error, depth)) ?? new Error(textOf(error))

function copyOf(error: unknown, depth: number): Error {
  if (error instanceof HoldfastError) return error
  if (!(error instanceof Error)) return new Error(safeText(String(error)))
  const { errors, cause } = error as { errors?: unknown; cause?: unknown }
  const copy = new Error(safeText(error.message))
  // So that `instanceof` returns the same for the copy as for the original.
  Object.setPrototypeOf(copy, Object.getPrototypeOf(error) as object)
  const set = (name: string, value: unknown, enumerable = false): void => {
    Object.defineProperty(copy, name, { value, enumerable, writable: true, configurable: true })
  }
  set('stack', safeText(error.stack ?? '', MAX_STACK))
  for (const name of KEPT_FIELDS) {
    const value: unknown = Object.getOwnPropertyDescriptor(error, name)?.value
    if (typeof value === 'string') set(name, safeText(value), true)
    else if (typeof value === 'number') set(name, value, true)
  }
  if (depth >= MAX_CAUSE_DEPTH) return copy
  if (Array.isArray(errors)) {
    set(
      'errors',
      errors.slice(0, MAX_ERRORS).map((each) => readableCopy(each, depth + 1)),
    )
  }
  if (cause !== undefined) set('cause', readableCopy(cause, depth + 1))
  return copy
}

/** Fields of the errors of Node, PostgreSQL and SQLite. */
const KEPT_FIELDS = [
  ...['name', 'code', 'errno', 'syscall', 'address', 'port', 'hostname', 'path', 'reason', 'library'],
  ...['severity', 'detail', 'hint', 'position', 'where', 'schema', 'table', 'column', 'constraint', 'routine'],
  ...['schema_name', 'table_name', 'constraint_name', 'errcode', 'errstr', 'rawCode'],
]
/** Without secrets, and bounded: a server may send a message of any length, and errors are kept and logged. */
function safeText(text: string, most = MAX_FOREIGN_MESSAGE): string {
  // A login that the first cut splits is far behind the second one.
  const safe = withoutSecrets(text.slice(0, most * 10))
  return text.length <= most ? safe : `${safe.slice(0, most)}… (${text.length} characters)`
}

const MAX_STACK = 2 * MAX_FOREIGN_MESSAGE
const MAX_CAUSE_DEPTH = 5
const MAX_ERRORS = 20

/** The message of a client's error. Never empty: the `AggregateError` of several connection attempts has no message. */
export const messageOf = (error: unknown): string => attempt(() => readMessage(error)) ?? textOf(error)

function readMessage(error: unknown): string {
  if (!(error instanceof Error)) return safeText(String(error))
  const { errors } = error as { errors?: unknown }
  const [first] = Array.isArray(errors) ? (errors as readonly unknown[]) : []
  if (error.message === '' && first instanceof Error) return readMessage(first)
  return safeText(error.message || error.name)
}
