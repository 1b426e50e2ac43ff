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

/** A network or TLS error, described for an error message. */
export interface ConnectionTrouble {
  readonly reason: string
  /** What to check, as a full sentence. May be empty. */
  readonly advice: string
  /**
   * `unreachable`: no connection was made. `closed`: the connection ended. `no-tls`: the server does not use TLS.
   * `tls`: the TLS handshake failed, for example because of the certificate.
   */
  readonly kind: 'unreachable' | 'closed' | 'no-tls' | 'tls'
  /** Whether a setting is wrong, so that another try cannot succeed. */
  readonly isPermanent: boolean
}

/** Undefined if the error is neither a network nor a TLS error. */
export const connectionTrouble = (error: unknown): ConnectionTrouble | undefined => attempt(() => findTrouble(error))

function findTrouble(error: unknown): ConnectionTrouble | undefined {
  const { code, message = '', errors, cause } = (error ?? {}) as Partial<AggregateError> & { code?: unknown }
  const known = TROUBLES.find(({ codes, text }) => codes.includes(String(code)) || text?.test(message))
  if (known !== undefined) {
    const { kind = 'unreachable', advice = '' } = known
    const reason = kind === 'tls' ? `${known.reason} (${String(code)})` : known.reason
    return { reason, advice, kind, isPermanent: kind === 'tls' || kind === 'no-tls' }
  }
  // One error for each address of the host: the first one is representative.
  if (Array.isArray(errors) && errors.length > 0) return findTrouble(errors[0])
  return cause === undefined ? undefined : findTrouble(cause)
}

interface Trouble {
  readonly codes: readonly string[]
  /** Matches the message of clients that set no code. */
  readonly text?: RegExp
  readonly reason: string
  readonly advice?: string
  readonly kind?: ConnectionTrouble['kind']
}

const CLOSED_MESSAGE = new RegExp(
  '^(?:connection is closed|socket closed unexpectedly|the client is closed|connection terminated|' +
    'connection closed|the server closed)',
  'i',
)

const TROUBLES: readonly Trouble[] = [
  { codes: ['ECONNREFUSED'], reason: 'connection refused', advice: 'Is the server running?' },
  { codes: ['ENOTFOUND'], reason: 'the host name is unknown', advice: 'Is it spelled correctly?' },
  { codes: ['EAI_AGAIN'], reason: 'the host name could not be looked up', advice: 'Is the DNS server reachable?' },
  { codes: ['EHOSTUNREACH', 'ENETUNREACH'], reason: 'there is no route to the host' },
  {
    codes: ['ETIMEDOUT', 'CONNECT_TIMEOUT', 'UND_ERR_CONNECT_TIMEOUT'],
    text: /^(?:connection timeout|timeout expired|.*due to connection timeout|.*trying to connect)$/i,
    reason: 'no connection in time',
    advice: 'Are host and port correct, and does a firewall drop the packets?',
  },
  {
    codes: [
      ...['ERR_SSL_WRONG_VERSION_NUMBER', 'ERR_SSL_PACKET_LENGTH_TOO_LONG', 'ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION'],
      ...['ERR_SSL_UNSUPPORTED_PROTOCOL', 'ERR_SSL_NO_SHARED_CIPHER', 'EPROTO'],
    ],
    text: /server does not support SSL|wrong version number|packet length too long/i,
    reason: 'the server does not speak TLS on this port',
    kind: 'no-tls',
  },
  {
    codes: [
      ...['DEPTH_ZERO_SELF_SIGNED_CERT', 'SELF_SIGNED_CERT_IN_CHAIN', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE'],
      ...['UNABLE_TO_GET_ISSUER_CERT', 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY', 'CERT_HAS_EXPIRED', 'CERT_NOT_YET_VALID'],
      ...['CERT_UNTRUSTED', 'CERT_REVOKED', 'HOSTNAME_MISMATCH', 'ERR_TLS_CERT_ALTNAME_INVALID'],
    ],
    reason: 'the server’s TLS certificate is not accepted',
    advice: 'Set NODE_EXTRA_CA_CERTS to the certificate of its authority, and use the host name in the certificate.',
    kind: 'tls',
  },
  {
    codes: ['ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED', 'ERR_SSL_SSLV3_ALERT_HANDSHAKE_FAILURE'],
    reason: 'the server rejected the TLS handshake',
    advice: 'It may require a client certificate: pass your own client to the driver.',
    kind: 'tls',
  },
  {
    // The postgres package starts the handshake even if the server has refused TLS.
    codes: [],
    text: /before secure TLS connection was established/i,
    reason: 'the connection was closed during the TLS handshake',
    advice: 'Does the server speak TLS on this port?',
  },
  {
    codes: ['ECONNRESET', 'EPIPE', 'CONNECTION_CLOSED', 'CONNECTION_ENDED', 'CONNECTION_DESTROYED'],
    text: CLOSED_MESSAGE,
    reason: 'the connection was closed',
    kind: 'closed',
  },
]
