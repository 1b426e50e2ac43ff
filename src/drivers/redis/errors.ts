import { ClosedError, HoldfastError, StoreError } from '../../core/errors.ts'
import { type ConnectionTrouble, connectionTrouble, messageOf, safeCause } from '../../core/foreign-errors.ts'
import { systemClock } from '../../core/time/clock.ts'
import { withTimeout } from '../../core/time/timeout.ts'

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
  if (error instanceof HoldfastError) return error
  const failure = server?.failureBehind?.(error) ?? error
  // It may have been wrapped already, by the code that opens the client.
  if (failure instanceof HoldfastError) return failure
  if (server === undefined || !(failure instanceof Error)) return wrapped(what, failure, server)
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
  const known = hints.find(({ sign }) => sign.test(message))
  const retryable = !(isReplica || known?.isPermanent || trouble?.isPermanent)
  const options = { cause: safeCause(failure), retryable }
  if (trouble === undefined) {
    const where = server === undefined ? '' : ` at ${server.place}`
    return new StoreError(`redis failed to ${what}${where}: ${message}${known ? ` (${known.hint})` : ''}`, options)
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
export const isForbidden = (error: unknown): boolean => error instanceof Error && error.message.includes('NOPERM')

export const isNoScript = (error: unknown): boolean => error instanceof Error && error.message.includes('NOSCRIPT')

/** The server is a replica and accepts no writes. */
export const isReadOnly = (error: unknown): boolean =>
  error instanceof Error && /\bREADONLY\b|\bMASTERDOWN\b|can't write against a read only/i.test(error.message)

interface Hint {
  readonly sign: RegExp
  readonly hint: string
  /** Another attempt fails as well, until a setting is changed. */
  readonly isPermanent?: boolean
}

const hints: readonly Hint[] = [
  {
    sign: /^READONLY|-READONLY|can't write against a read only/i,
    hint: 'this server is a replica: connect to the master, or through Sentinel',
  },
  {
    sign: /OOM command not allowed/i,
    hint: 'the server is out of memory: raise maxmemory, or use a separate server for locks',
  },
  { sign: /^LOADING/i, hint: 'the server is still loading its data' },
  { sign: /CLUSTERDOWN/i, hint: 'the Cluster does not serve this slot at the moment' },
  {
    sign: /cluster support disabled/i,
    hint: 'the server is no node of a Cluster: use redis:// instead of redis+cluster://',
    isPermanent: true,
  },
  { sign: /TRYAGAIN|too many cluster redirections/i, hint: 'the slot is being moved to another node: try again' },
  {
    sign: /NOAUTH|WRONGPASS|^ERR invalid password/i,
    hint: 'the user name or the password is wrong, or missing: redis://user:password@host',
    isPermanent: true,
  },
  {
    sign: /called without any password configured|^ERR Client sent AUTH, but no password is set/i,
    hint: 'the server has no password: leave it out',
    isPermanent: true,
  },
  {
    sign: /NOPERM|ACL failure in script|user executing the script can't/i,
    hint:
      'the user lacks a right: it needs the keys lock:* and holdfast:*, the channels holdfast:*, scripting, and WAIT ' +
      'if `replicas` is set',
    isPermanent: true,
  },
  {
    sign: /unknown command.*(EVAL|SSUBSCRIBE)/i,
    hint: 'the server is too old, or forbids scripts',
    isPermanent: true,
  },
  {
    sign: /^Protocol error, got/i,
    hint: 'the server does not speak the Redis protocol on this port. If it expects TLS, use rediss:// or tls=true',
  },
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
