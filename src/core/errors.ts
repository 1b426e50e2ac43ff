import type { LockInfo } from './lock-info.ts'
import { withoutLogin } from './secrets.ts'

/** The `code` of every error of this library. */
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
 * The base class of every error of this library. Each class has a literal `code`, so that the compiler checks a
 * `switch` on it. `code` also works where `instanceof` does not: with two copies of the package, or for an error that
 * has ended a worker thread. `postMessage` and `structuredClone` keep only the message of an error: send `toJSON()`.
 *
 * @example
 * ```ts
 * try {
 *   await lock.withLock('report', writeReport)
 * } catch (error) {
 *   if (!(error instanceof HoldfastError)) throw error
 *   if (error.code === 'NOT_ACQUIRED') return // another instance is writing the report
 *   if (error.code === 'STORE_UNAVAILABLE') return retryLater()
 *   throw error
 * }
 * ```
 */
export abstract class HoldfastError extends Error {
  abstract readonly code: HoldfastErrorCode

  /** What the error says, for another thread or process: its name, code and message, and its own fields. */
  toJSON(): Record<string, unknown> & { readonly name: string; readonly code: string; readonly message: string } {
    const { name, code, message } = this
    const fields = Object.entries(this).map(([key, value]) => [key, isSendable(value) ? value : String(value)])
    return { ...Object.fromEntries(fields), name, code, message }
  }
}

/** Neither JSON nor a message port takes everything that a caller can pass as an argument. */
const isSendable = (value: unknown): boolean => !['bigint', 'symbol', 'function'].includes(typeof value)

/**
 * An argument is invalid. Nothing was sent to the store. The message names the argument, the value and the rule.
 *
 * @example
 * ```ts
 * if (error instanceof InvalidArgumentError) console.error(`${error.argument} must be ${error.rule}`)
 * ```
 */
export class InvalidArgumentError extends HoldfastError {
  override readonly name = 'InvalidArgumentError'
  readonly code = 'INVALID_ARGUMENT'
  /** The name of the argument or option. */
  readonly argument: string
  /**
   * The value that was passed. A URL is shown without user name and password. An object or a function is only
   * described, because a client or a driver may contain a password.
   */
  readonly value: unknown
  /** What the value must be. It completes the sentence "argument must be …". */
  readonly rule: string

  constructor(argument: string, value: unknown, rule: string, message?: string) {
    const shown = withoutLogin(value)
    super(message ?? `${argument} must be ${rule}, but is ${describe(shown)}`)
    this.argument = argument
    this.value = isPrimitive(shown) ? shown : describe(shown)
    this.rule = rule
  }
}

/**
 * Another claim holds the lock. Thrown by the methods that do not return a result, such as `withLock` and `hold`. Skip
 * the work, try again later, or pass `blocking: true` to wait.
 *
 * @example
 * ```ts
 * try {
 *   await lock.withLock('nightly-report', writeReport)
 * } catch (error) {
 *   if (!(error instanceof NotAcquiredError)) throw error
 *   console.log(`already running on ${error.holder?.holderId}`)
 * }
 * ```
 */
export class NotAcquiredError extends HoldfastError {
  override readonly name = 'NotAcquiredError'
  readonly code = 'NOT_ACQUIRED'
  readonly lockName: string
  /** One of the current holders, as of the last answer. Undefined if the store does not show it. */
  readonly holder: LockInfo | undefined

  constructor(lockName: string, message: string, holder?: LockInfo) {
    super(message)
    this.lockName = lockName
    this.holder = holder
  }
}

/**
 * The lease ended before its holder released it: it expired, was force-released, or was ended by `releaseAll` or
 * `close`. Work done since then was done without the lock. Check or undo that work; a fencing token prevents stale
 * writes.
 *
 * @example
 * ```ts
 * await lock.withLock('import', async (lease) => {
 *   for (const file of files) {
 *     lease.assertHeld() // throws LeaseLostError
 *     await importFile(file, { signal: lease.signal })
 *   }
 * })
 * ```
 */
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

/**
 * The lease is no longer held because its own holder has released it or handed it over. This is a mistake in the order
 * of the calls: the lease was not lost.
 *
 * @example
 * ```ts
 * await lease.release()
 * lease.assertHeld() // throws NotHeldError
 * ```
 */
export class NotHeldError extends HoldfastError {
  override readonly name = 'NotHeldError'
  readonly code = 'NOT_HELD'
  readonly lockName: string

  constructor(lockName: string, how: 'released' | 'handed over' = 'released') {
    super(`the lease on "${lockName}" is no longer held: it was ${how}`)
    this.lockName = lockName
  }
}

/**
 * The store could not be reached, failed, or did not answer in time. It is unknown whether the lock is held. An acquire
 * that failed like this is withdrawn in the background.
 *
 * @example
 * ```ts
 * try {
 *   return await lock.acquire('order:123')
 * } catch (error) {
 *   if (error instanceof StoreError && error.retryable) return retryLater()
 *   throw error
 * }
 * ```
 */
export class StoreError extends HoldfastError {
  override readonly name = 'StoreError'
  readonly code = 'STORE_UNAVAILABLE'
  /**
   * Whether another try may succeed. False for a permanent error, such as a file that is not a database: a waiting
   * claim then stops waiting.
   *
   * @default true
   */
  readonly retryable: boolean

  constructor(message: string, { retryable = true, ...options }: ErrorOptions & { retryable?: boolean } = {}) {
    super(message, options)
    this.retryable = retryable
  }
}

/** Whether the error is a failure of the store, and another try may succeed. */
export const isOutage = (error: unknown): boolean => error instanceof StoreError && error.retryable

/**
 * The caller's signal was aborted. `cause` is the signal's reason. A waiting claim is withdrawn from the queue.
 *
 * @example
 * ```ts
 * const signal = AbortSignal.timeout(2_000)
 * await lock.hold('report', { blocking: true, signal }).catch((error) => {
 *   if (!(error instanceof AbortedError)) throw error
 * })
 * ```
 */
export class AbortedError extends HoldfastError {
  /** The same name as that of the platform's own abort errors. */
  override readonly name = 'AbortError'
  readonly code = 'ABORTED'

  constructor(what: string, reason: unknown) {
    super(`${what} was aborted by the caller's signal`, { cause: reason })
  }
}

/**
 * A claim was part of a deadlock: it waited for a lock whose holder waits, directly or through others, for a lock that
 * the claim's own callback holds. This claim was ended so that the others can continue. Acquire the locks in the same
 * order everywhere, or with `withLocks`.
 *
 * @example
 * ```ts
 * if (error instanceof DeadlockError) {
 *   for (const { holderId, lockName, heldBy } of error.cycle) {
 *     console.error(`${holderId} waits for ${lockName}, which ${heldBy} holds`)
 *   }
 * }
 * ```
 */
export class DeadlockError extends HoldfastError {
  override readonly name = 'DeadlockError'
  readonly code = 'DEADLOCK'
  /** The lock name for which the claim waited. */
  readonly lockName: string
  /** Who waits for which lock, and who holds it. The last holder waits for the first. */
  readonly cycle: readonly DeadlockStep[]

  constructor(message: string, lockName: string, cycle: readonly DeadlockStep[]) {
    super(message)
    this.lockName = lockName
    this.cycle = cycle
  }
}

/** One waiting holder of a deadlock. */
export interface DeadlockStep {
  holderId: string
  /** The lock for which it waits. */
  lockName: string
  /** The holder of that lock, or a waiter before it in the queue. */
  heldBy: string
}

/**
 * The instance or its driver was closed. Create a new one to go on.
 *
 * @example
 * ```ts
 * await lock.close()
 * await lock.acquire('report') // throws ClosedError
 * ```
 */
export class ClosedError extends HoldfastError {
  override readonly name = 'ClosedError'
  readonly code = 'CLOSED'
}

/**
 * The driver does not support the operation. The message says why, where the driver gives a reason. Use another driver.
 *
 * @example
 * ```ts
 * const semaphore = new Semaphore({ url: 'redlock://a:6379,b:6379,c:6379', limit: 3 })
 * await semaphore.acquire('export') // throws UnsupportedError: majorities do not preserve a count
 * ```
 */
export class UnsupportedError extends HoldfastError {
  override readonly name = 'UnsupportedError'
  readonly code = 'UNSUPPORTED'
}

/**
 * The driver needs a client package that is not installed. The message contains the command that installs it.
 *
 * @example
 * ```ts
 * if (error instanceof MissingClientError) console.error(`npm install ${error.packages[0]}`)
 * ```
 */
export class MissingClientError extends HoldfastError {
  override readonly name = 'MissingClientError'
  readonly code = 'MISSING_CLIENT'
  /** The packages that the driver can use. One of them is enough. */
  readonly packages: readonly string[]

  constructor(driver: string, packages: readonly string[], options?: ErrorOptions) {
    const commands = packages.map((each) => `npm install ${each}`).join(', or ')
    const hint = 'A bundle or a traced build needs it in node_modules where it runs, see docs/guides/bundlers.md'
    super(`${driver} needs a client that is not installed: ${commands}. ${hint}`, options)
    this.packages = packages
  }
}

/**
 * A documented limit was reached, such as the number of pending claims of an instance. Nothing was done. Try again when
 * there is less load.
 *
 * @example
 * ```ts
 * if (error instanceof OverloadError) response.writeHead(503, { 'Retry-After': '5' }).end()
 * ```
 */
export class OverloadError extends HoldfastError {
  override readonly name = 'OverloadError'
  readonly code = 'OVERLOADED'
}

/**
 * A protected resource refused a write because it has seen a larger fencing token. The sender has lost its lock without
 * noticing it, and must stop working.
 *
 * @example
 * ```ts
 * try {
 *   fence.accept('invoice:7', lease)
 * } catch (error) {
 *   if (error instanceof StaleTokenError) return // a newer holder is at work
 *   throw error
 * }
 * ```
 */
export class StaleTokenError extends HoldfastError {
  override readonly name = 'StaleTokenError'
  readonly code = 'STALE_TOKEN'
  readonly resource: string
  /** The token that was refused. */
  readonly fencingToken: number
  /** The largest token that the resource has seen. Undefined if the guard does not report it. */
  readonly largestToken: number | undefined

  constructor(resource: string, fencingToken: number, largestToken?: number, options?: ErrorOptions) {
    const seen = largestToken === undefined ? 'a larger one' : String(largestToken)
    super(`the write to "${resource}" with fencing token ${fencingToken} was refused: ${seen} has been seen`, options)
    this.resource = resource
    this.fencingToken = fencingToken
    this.largestToken = largestToken
  }
}

/**
 * The rate limit is exceeded. Thrown by the methods that do not return a result: `consumeOrThrow` and `wait`. No units
 * were taken.
 *
 * @example
 * ```ts
 * if (error instanceof RateLimitedError) response.setHeader('Retry-After', Math.ceil(error.retryAfterSeconds))
 * ```
 */
export class RateLimitedError extends HoldfastError {
  override readonly name = 'RateLimitedError'
  readonly code = 'RATE_LIMITED'
  readonly key: string
  /** After how long the same call can succeed, if no other client takes the units before. */
  readonly retryAfterSeconds: number

  constructor(key: string, retryAfterSeconds: number) {
    super(
      `"${key}" is over its rate limit, and can be tried again in ${Math.ceil(retryAfterSeconds * 1_000) / 1_000} s`,
    )
    this.key = key
    this.retryAfterSeconds = retryAfterSeconds
  }
}

/**
 * A once-only job has finished, but its result could not be stored because it is not JSON or is too large. The job does
 * not run again: every later call for its key throws this error, too.
 *
 * @example
 * ```ts
 * if (error instanceof ResultNotKeptError) return loadInvoice(error.key) // the job is done, only its result is missing
 * ```
 */
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
  return typeof value === 'object' && value !== null ? describeObject(value) : String(value)
}

/** A proxy that was revoked, or one whose handlers throw, must not replace the error that names the argument. */
function describeObject(value: object): string {
  try {
    if (Array.isArray(value)) return 'an array'
    const name: unknown = value.constructor?.name ?? 'no prototype'
    return typeof name === 'string' ? `an object (${name.slice(0, 60)})` : 'an object'
  } catch {
    return 'an object that cannot be read'
  }
}
