import { isStorable } from './arguments.ts'
import { InvalidArgumentError } from './errors.ts'
import { isReadable } from './options.ts'

/** A fencing token, or an object that has one: a lease, a leader's term, a once-only run. */
export type Token = number | { readonly fencingToken: number }

/**
 * Protects a resource against a holder that has lost its lock without noticing it. The guard remembers the largest
 * fencing token of each resource and refuses smaller ones. Implementations differ in where they store it.
 */
export interface FencingGuard {
  /**
   * Accepts the token if no larger one has been seen for `resource`. An equal token is accepted, because one holder
   * writes more than once.
   *
   * Call it before the first read on which a write depends. If the token is presented only with the write, an older
   * holder can still write between that read and the write.
   *
   * @throws `StaleTokenError` if a larger token has been seen. Do not write then.
   * @throws `InvalidArgumentError` for an invalid resource name or token
   */
  accept(resource: string, token: Token): void | Promise<void>
}

export function tokenOf(token: Token): number {
  const isLease = typeof token === 'object' && token !== null && isReadable(token)
  const fencingToken: unknown = isLease ? token.fencingToken : token
  if (typeof fencingToken === 'number' && Number.isSafeInteger(fencingToken) && fencingToken >= 1) return fencingToken
  throw new InvalidArgumentError('token', fencingToken, 'a lease, or its fencing token (a whole number, at least 1)')
}

export function checkResource(resource: unknown): asserts resource is string {
  if (typeof resource !== 'string' || resource === '' || !isStorable(resource)) {
    throw new InvalidArgumentError('resource', resource, 'a non-empty string without NUL and without lone surrogates')
  }
}
