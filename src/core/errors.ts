import type { LockInfo } from './lock-info.ts'
import { withoutLogin } from './secrets.ts'

export type HoldfastErrorCode =
  | 'INVALID_ARGUMENT'
  | 'NOT_ACQUIRED'
  | 'LEASE_LOST'
  | 'NOT_HELD'
  | 'STORE_UNAVAILABLE'
  | 'ABORTED'
  | 'CLOSED'
  | 'UNSUPPORTED'
  | 'MISSING_CLIENT'
  | 'OVERLOADED'
  | 'STALE_TOKEN'
  | 'RATE_LIMITED'
  | 'DEADLOCK'
  | 'RESULT_NOT_KEPT'

/**
 * What every error of this library is. `code` is a literal in each class, so that a `switch` on it is checked by the compiler, and it
 * survives where `instanceof` does not (two copies of the package, a worker's boundary).
 */
export abstract class HoldfastError extends Error {
  abstract readonly code: HoldfastErrorCode
}

/** A bad argument. Nothing was sent. */
export class InvalidArgumentError extends HoldfastError {
  override readonly name = 'InvalidArgumentError'
  readonly code = 'INVALID_ARGUMENT'
  readonly argument: string
  /** Without the login of a URL. An object or a function is only described: a client, or a driver made of one, may hold a password. */
  readonly value: unknown
  readonly rule: string

  constructor(argument: string, value: unknown, rule: string, message?: string) {
    const shown = withoutLogin(value)
    super(message ?? `${argument} must be ${rule}, but is ${describe(shown)}`)
    this.argument = argument
    this.value = isPrimitive(shown) ? shown : describe(shown)
    this.rule = rule
  }
}

/** Contention, where the caller asked for an error instead of an answer (`withLock`, `hold`). */
export class NotAcquiredError extends HoldfastError {
  override readonly name = 'NotAcquiredError'
  readonly code = 'NOT_ACQUIRED'
  readonly lockName: string
  /** Who stood in the way when last asked, where the store tells. */
  readonly holder: LockInfo | undefined

  constructor(lockName: string, message: string, holder?: LockInfo) {
    super(message)
    this.lockName = lockName
    this.holder = holder
  }
}

/** The lease ended before its holder gave it back. Whatever was done since then was done without the lock. */
export class LeaseLostError extends HoldfastError {
  override readonly name = 'LeaseLostError'
  readonly code = 'LEASE_LOST'
  readonly lockName: string
  readonly fencingToken: number

  constructor(lockName: string, fencingToken: number, reason: string, options?: ErrorOptions) {
    super(`the lease on "${lockName}" (fencing token ${fencingToken}) was lost: ${reason}`, options)
    this.lockName = lockName
    this.fencingToken = fencingToken
  }
}

/** The lease was already given back, or handed over, by its own holder. */
export class NotHeldError extends HoldfastError {
  override readonly name = 'NotHeldError'
  readonly code = 'NOT_HELD'
  readonly lockName: string

  constructor(lockName: string, how: 'released' | 'handed over' = 'released') {
    super(`the lease on "${lockName}" is not held any more: it was ${how}`)
    this.lockName = lockName
  }
}

/** The store could not be asked, or did not answer in time: whether the lock is held is not known. */
export class StoreError extends HoldfastError {
  override readonly name = 'StoreError'
  readonly code = 'STORE_UNAVAILABLE'
  /** False: asking again cannot help, as with a file that is no database. A claim that waits gives up on it. */
  readonly retryable: boolean

  constructor(message: string, { retryable = true, ...options }: ErrorOptions & { retryable?: boolean } = {}) {
    super(message, options)
    this.retryable = retryable
  }
}

/** Whether the store may answer when it is asked again. */
export const isOutage = (error: unknown): boolean => error instanceof StoreError && error.retryable

/** The caller's signal was aborted. `cause` is the signal's reason. */
export class AbortedError extends HoldfastError {
  /** The name by which the platform's own functions mark an abort. */
  override readonly name = 'AbortError'
  readonly code = 'ABORTED'

  constructor(what: string, reason: unknown) {
    super(`${what} was aborted by the caller's signal`, { cause: reason })
  }
}

/** A claim waited for what only its own end could free, by way of the others in the circle. It was ended so that they can go on. */
export class DeadlockError extends HoldfastError {
  override readonly name = 'DeadlockError'
  readonly code = 'DEADLOCK'
  /** What was waited for. */
  readonly lockName: string
  /** Who waits for what, held by whom; the last one waits for the first. */
  readonly cycle: readonly DeadlockStep[]

  constructor(message: string, lockName: string, cycle: readonly DeadlockStep[]) {
    super(message)
    this.lockName = lockName
    this.cycle = cycle
  }
}

export interface DeadlockStep {
  holderId: string
  /** What it waits for. */
  lockName: string
  /** Who holds that, or stands before it in the queue. */
  heldBy: string
}

/** The instance was closed. */
export class ClosedError extends HoldfastError {
  override readonly name = 'ClosedError'
  readonly code = 'CLOSED'
}

/** The driver cannot do this; `reason` says why. */
export class UnsupportedError extends HoldfastError {
  override readonly name = 'UnsupportedError'
  readonly code = 'UNSUPPORTED'
}

/** The store's driver needs a package that is not installed. The message has the command that installs it. */
export class MissingClientError extends HoldfastError {
  override readonly name = 'MissingClientError'
  readonly code = 'MISSING_CLIENT'
  /** Any one of them is enough. */
  readonly packages: readonly string[]

  constructor(driver: string, packages: readonly string[], options?: ErrorOptions) {
    const commands = packages.map((each) => `npm install ${each}`).join(', or ')
    super(`${driver} needs a client that is not installed: ${commands}`, options)
    this.packages = packages
  }
}

/** A stated bound was reached, such as the number of claims under way. Nothing was done. */
export class OverloadError extends HoldfastError {
  override readonly name = 'OverloadError'
  readonly code = 'OVERLOADED'
}

/** A protected resource refused a write: it has seen a larger fencing token, so whoever sent this one has lost its lock without knowing it. */
export class StaleTokenError extends HoldfastError {
  override readonly name = 'StaleTokenError'
  readonly code = 'STALE_TOKEN'
  readonly resource: string
  readonly fencingToken: number
  /** The largest that was seen, where the guard tells. */
  readonly largestToken: number | undefined

  constructor(resource: string, fencingToken: number, largestToken?: number, options?: ErrorOptions) {
    const seen = largestToken === undefined ? 'a larger one' : String(largestToken)
    super(`the write to "${resource}" with fencing token ${fencingToken} was refused: ${seen} has been seen`, options)
    this.resource = resource
    this.fencingToken = fencingToken
    this.largestToken = largestToken
  }
}

/** Over the limit, where the caller asked for an error instead of an answer (`consumeOrThrow`, `wait`). Nothing was taken. */
export class RateLimitedError extends HoldfastError {
  override readonly name = 'RateLimitedError'
  readonly code = 'RATE_LIMITED'
  readonly key: string
  /** When the same call can succeed, if nobody else takes what comes back until then. */
  readonly retryAfterSeconds: number

  constructor(key: string, retryAfterSeconds: number) {
    super(
      `"${key}" is over its rate limit, and can be tried again in ${Math.ceil(retryAfterSeconds * 1_000) / 1_000} s`,
    )
    this.key = key
    this.retryAfterSeconds = retryAfterSeconds
  }
}

/** A once-only job is done, but its result could not be kept: not JSON, or too large. Everybody who asks for it is told so; it is not run again. */
export class ResultNotKeptError extends HoldfastError {
  override readonly name = 'ResultNotKeptError'
  readonly code = 'RESULT_NOT_KEPT'
  readonly key: string

  constructor(key: string, reason: string, options?: ErrorOptions) {
    super(`the job "${key}" is done, but its result was not kept: ${reason}`, options)
    this.key = key
  }
}

const isPrimitive = (value: unknown): boolean =>
  value === null || (typeof value !== 'object' && typeof value !== 'function')

function describe(value: unknown): string {
  if (typeof value === 'string') {
    return value.length > 60
      ? `a string of ${value.length} characters (${JSON.stringify(value.slice(0, 40))}…)`
      : JSON.stringify(value)
  }
  if (typeof value === 'bigint') return `${value}n`
  if (typeof value === 'function') return 'a function'
  if (typeof value === 'object' && value !== null) {
    return Array.isArray(value) ? 'an array' : `an object (${value.constructor?.name ?? 'no prototype'})`
  }
  return String(value)
}
