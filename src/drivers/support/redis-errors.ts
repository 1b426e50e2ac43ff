import { ClosedError, HoldfastError, StoreError } from '../../core/errors.ts'

/** Wraps a client's error once, with what can be done about those that an operator has to act on. */
export function storeErrorFrom(what: string, error: unknown): HoldfastError {
  if (error instanceof HoldfastError) return error
  const message = error instanceof Error ? error.message : String(error)
  const hint = hints.find(([sign]) => sign.test(message))?.[1]
  return new StoreError(`redis failed to ${what}: ${message}${hint === undefined ? '' : ` (${hint})`}`, {
    cause: error,
  })
}

export const closedError = (): ClosedError => new ClosedError('the redis driver is closed')

/** The server's access control lists do not allow it. */
export const isForbidden = (error: unknown): boolean => error instanceof Error && error.message.includes('NOPERM')

export const isNoScript = (error: unknown): boolean => error instanceof Error && error.message.includes('NOSCRIPT')

/** The server is a replica, and takes no writes. */
export const isReadOnly = (error: unknown): boolean =>
  error instanceof Error && /\bREADONLY\b|\bMASTERDOWN\b|can't write against a read only/i.test(error.message)

const hints: readonly (readonly [RegExp, string])[] = [
  [
    /^READONLY|-READONLY|can't write against a read only/i,
    'this server is a replica: connect to the master, or through Sentinel',
  ],
  [/OOM command not allowed/i, 'the server is out of memory: raise maxmemory, or give locks a server of their own'],
  [/^LOADING/i, 'the server is still loading its data'],
  [/CLUSTERDOWN/i, 'the Cluster does not serve this slot at the moment'],
  [/TRYAGAIN|too many cluster redirections/i, 'the slot is being moved to another node: try again'],
  [/NOAUTH|WRONGPASS/i, 'the user name or the password is wrong'],
  [
    /NOPERM|ACL failure in script|user executing the script can't/i,
    'the user may not do this: it needs the keys lock:* and holdfast:*, the channels holdfast:*, scripting, and WAIT if `replicas` is set',
  ],
  [/unknown command.*(EVAL|SSUBSCRIBE)/i, 'the server is too old, or forbids scripts'],
]

/** Rejects when time is up, whatever the client does. What comes later is dropped, and never unhandled. */
export function inTime<Answer>(what: string, timeoutMs: number, call: () => Promise<Answer>): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new StoreError(`redis did not answer within ${timeoutMs} ms when asked to ${what}`))
    }, timeoutMs)
    new Promise<Answer>((go) => go(call())).then(
      (answer) => {
        clearTimeout(timer)
        resolve(answer)
      },
      (error: unknown) => {
        clearTimeout(timer)
        reject(storeErrorFrom(what, error))
      },
    )
  })
}
