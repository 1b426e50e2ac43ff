import { ClosedError, HoldfastError, StoreError } from '../../core/errors.ts'
import { isA, messageOf, safeCause } from '../../core/foreign-errors.ts'
import { withTimeout } from '../../core/time/abort.ts'
import { systemClock } from '../../core/time/clock.ts'
import { type ConnectionTrouble, connectionTrouble } from '../shared/connection-trouble.ts'

/** The server that a command was sent to. */
export interface AskedServer {
  /** As an error names it: a URL without user name and password. */
  readonly place: string
  /** Returns the reason behind an error that only says that the connection is lost. */
  failureBehind?(error: unknown): unknown
  readonly master?: { readonly neverWrote: boolean }
}

/** Wraps an error of the client once: where it happened, what the server or the network said, and what to do. */
export function storeErrorFrom(what: string, error: unknown, server?: AskedServer): HoldfastError {
  if (isA(error, HoldfastError)) return error
  const failure = server?.failureBehind?.(error) ?? error
  // It may have been wrapped already, by the code that opens the client.
  if (isA(failure, HoldfastError)) return failure
  if (server === undefined || !isA(failure, Error)) return wrapped(what, failure, server)
  // All commands that wait for a connection fail with one error, often many at once. To wrap it means to copy its
  // stack, which takes longer than everything else about a command. So it is done once for each kind of command.
  let last = lastFailures.get(server)
  if (last?.failure !== failure) {
    last = { failure, errors: new Map() }
    lastFailures.set(server, last)
  }
  const known = last.errors.get(what) ?? wrapped(what, failure, server)
  last.errors.set(what, known)
  return known
}

const lastFailures = new WeakMap<AskedServer, { failure: Error; errors: Map<string, StoreError> }>()

function wrapped(what: string, failure: unknown, server: AskedServer | undefined): StoreError {
  const message = messageOf(failure)
  const trouble = connectionTrouble(failure)
  const neverWrote = server?.master?.neverWrote === true
  const isReplica = isReadOnly(failure) && neverWrote
  const [, hint, permanent] = hints.find(([sign]) => sign.test(message)) ?? []
  const retryable = !(isReplica || permanent || trouble?.isPermanent)
  const options = { cause: safeCause(failure), retryable }
  if (trouble === undefined) {
    const where = server === undefined ? '' : ` at ${server.place}`
    return new StoreError(`redis failed to ${what}${where}: ${message}${hint ? ` (${hint})` : ''}`, options)
  }
  const advice = adviceFor(trouble, neverWrote)
  const reason = `cannot reach ${server?.place ?? 'the server'}: ${trouble.reason}`
  return new StoreError(`redis failed to ${what}: ${reason}${advice && `. ${advice}`}`, options)
}

function adviceFor({ kind, advice }: ConnectionTrouble, neverWrote: boolean): string {
  if (kind === 'no-tls') return 'Use redis:// instead of rediss://, or tls=false.'
  // If the connection never worked, the server may have closed it because it expects TLS.
  return kind === 'closed' && neverWrote ? 'If the server expects TLS, use rediss:// or tls=true.' : advice
}

export const closedError = (): ClosedError => new ClosedError('the redis driver is closed')

/** The server's access control lists forbid it. */
export const isForbidden = (error: unknown): boolean => messageOf(error).includes('NOPERM')

/**
 * For the channel of forced releases: a user without the right to it learns of them with the next renewal. Any other
 * error is a broken connection.
 */
export function unlessForbidden(error: unknown): void {
  if (!isForbidden(error)) throw error
}

/** The server's access control lists forbid the command, or it was renamed. */
export const isRefusedCommand = (error: unknown): boolean => /\bNOPERM\b|unknown command/i.test(messageOf(error))

export const isNoScript = (error: unknown): boolean => messageOf(error).includes('NOSCRIPT')

/** The server is a replica and accepts no writes. */
export const isReadOnly = (error: unknown): boolean =>
  /\bREADONLY\b|\bMASTERDOWN\b|can't write against a read only/i.test(messageOf(error))

/** `permanent`: another attempt fails as well, until a setting is changed. */
const hints: readonly (readonly [sign: RegExp, hint: string, permanent?: 'permanent'])[] = [
  [
    /^READONLY|-READONLY|can't write against a read only/i,
    'this server is a replica: connect to the master, or through Sentinel',
  ],
  [/OOM command not allowed/i, 'the server is out of memory: raise maxmemory, or use a separate server for locks'],
  [/WRONGTYPE/, 'another program has written a key of this lock: delete that key', 'permanent'],
  [/^LOADING/i, 'the server is still loading its data'],
  [/CLUSTERDOWN/i, 'the Cluster does not serve this slot at the moment'],
  [
    /cluster support disabled/i,
    'the server is no node of a Cluster: use redis:// instead of redis+cluster://',
    'permanent',
  ],
  [/TRYAGAIN|too many cluster redirections/i, 'the slot is being moved to another node: try again'],
  [
    /NOAUTH|WRONGPASS|^ERR invalid password/i,
    'the user name or the password is wrong, or missing: redis://user:password@host',
    'permanent',
  ],
  [
    /called without any password configured|^ERR Client sent AUTH, but no password is set/i,
    'the server has no password: leave it out',
    'permanent',
  ],
  [
    /NOPERM INFO/,
    'the user lacks the right to INFO, by which Redlock notices that a server was restarted: allow +info, or set ' +
      '`persistent` if no server can lose data',
    'permanent',
  ],
  [
    /NOPERM|ACL failure in script|user executing the script can't/i,
    'the user lacks a right: it needs the keys lock:* and holdfast:*, the channels holdfast:*, scripting, and WAIT ' +
      'if `replicas` is set',
    'permanent',
  ],
  [/unknown command.*(EVAL|SSUBSCRIBE)/i, 'the server is too old, or forbids scripts', 'permanent'],
  [
    /^Protocol error, got/i,
    'the server does not speak the Redis protocol on this port. If it expects TLS, use rediss:// or tls=true',
  ],
]

/** Rejects after `timeoutMs`, even if the client never answers. A later answer or error is dropped. */
export function inTime<Answer>(
  what: string,
  timeoutMs: number,
  call: () => Promise<Answer>,
  server?: AskedServer,
): Promise<Answer> {
  const work = new Promise<Answer>((go) => go(call())).catch((error: unknown) => {
    throw storeErrorFrom(what, error, server)
  })
  return withTimeout(systemClock, timeoutMs, work, () => {
    const where = server === undefined ? '' : ` at ${server.place}`
    return new StoreError(`redis${where} did not answer within ${timeoutMs} ms when asked to ${what}`)
  })
}
