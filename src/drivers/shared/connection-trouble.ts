import { attempt } from '../../core/foreign-errors.ts'

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
  '^(?:connection is closed|socket closed unexpectedly|the client is closed|disconnects client|' +
    'connection terminated|connection closed|the server closed)',
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
