import { InvalidArgumentError } from './errors.ts'
import { isStorable } from './names.ts'

/** A lease, a term, a run: whatever has a fencing token. Or the number itself. */
export type Token = number | { readonly fencingToken: number }

/** What every guard of a protected resource has in common, wherever it keeps the largest token it has seen. */
export interface FencingGuard {
  /**
   * To be called before the first read of what a write depends on: a token that is presented with the write alone does not stop an older holder from writing in
   * between. Lets a write to `resource` go on, or refuses it with a `StaleTokenError`, because a larger token has been seen. Equal tokens are let through: one holder
   * writes more than once.
   */
  accept(resource: string, token: Token): void | Promise<void>
}

export function tokenOf(token: Token): number {
  const fencingToken: unknown = typeof token === 'object' && token !== null ? token.fencingToken : token
  if (typeof fencingToken === 'number' && Number.isSafeInteger(fencingToken) && fencingToken >= 1) return fencingToken
  throw new InvalidArgumentError('token', fencingToken, 'a lease, or its fencing token: a whole number from 1')
}

export function checkResource(resource: unknown): asserts resource is string {
  if (typeof resource !== 'string' || resource === '' || !isStorable(resource)) {
    throw new InvalidArgumentError(
      'resource',
      resource,
      'a text of at least one character, without NUL and without lone surrogates',
    )
  }
}
