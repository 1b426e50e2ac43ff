import {
  type AbortedError,
  type ClosedError,
  HoldfastError,
  type InvalidArgumentError,
  type LeaseLostError,
  type NotAcquiredError,
  type NotHeldError,
  type OverloadError,
  type RateLimitedError,
  type ResultNotKeptError,
  type StoreError,
  type UnsupportedError,
} from 'holdfast'
import type { Equal } from './equal.ts'

type AnyError =
  | AbortedError
  | ClosedError
  | InvalidArgumentError
  | LeaseLostError
  | NotAcquiredError
  | NotHeldError
  | OverloadError
  | RateLimitedError
  | ResultNotKeptError
  | StoreError
  | UnsupportedError

export const codesAreLiterals: Equal<
  AnyError['code'],
  | 'ABORTED'
  | 'CLOSED'
  | 'INVALID_ARGUMENT'
  | 'LEASE_LOST'
  | 'NOT_ACQUIRED'
  | 'NOT_HELD'
  | 'OVERLOADED'
  | 'RATE_LIMITED'
  | 'RESULT_NOT_KEPT'
  | 'STORE_UNAVAILABLE'
  | 'UNSUPPORTED'
> = true

export function codeTellsThemApart(error: AnyError): string | number {
  // @ts-expect-error only some of them have a lock name
  void error.lockName
  if (error.code === 'LEASE_LOST') return error.fencingToken
  if (error.code === 'INVALID_ARGUMENT') return error.rule
  // @ts-expect-error no error has this code
  if (error.code === 'LOST') return 0
  return error.message
}

export function allHaveOneAncestor(error: AnyError): HoldfastError & Error {
  return error
}

// @ts-expect-error the base class is abstract: use it with `instanceof`
export const made = new HoldfastError('nothing in particular')
