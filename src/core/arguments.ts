import type { InspectQuery, Metadata } from './driver.ts'
import { InvalidArgumentError } from './errors.ts'
import { isA, messageOf } from './foreign-errors.ts'
import {
  MAX_HOLDER_ID_LENGTH,
  MAX_METADATA_BYTES,
  MAX_METADATA_DEPTH,
  MAX_NAME_LENGTH,
  MAX_PAGE_SIZE,
  MAX_TTL_MS,
  MAX_WAIT_MS,
  MIN_TTL_MS,
} from './limits.ts'
import { checkOptions, isArray, isReadable, optionNames } from './options.ts'

/**
 * Validation of public arguments, before anything is sent. Every function throws an `InvalidArgumentError` that names
 * the argument, the value and the rule.
 */

export function ttlMsFrom(argument: string, seconds: unknown): number {
  return checkSeconds(argument, seconds, MIN_TTL_MS, MAX_TTL_MS)
}

export function waitMsFrom(argument: string, seconds: unknown): number {
  return checkSeconds(argument, seconds, 0, MAX_WAIT_MS)
}

export function checkOneOf<T extends string>(argument: string, value: unknown, allowed: readonly T[]): T {
  const found = allowed.find((each) => each === value)
  if (found === undefined) {
    throw new InvalidArgumentError(argument, value, `one of ${allowed.map((each) => `'${each}'`).join(', ')}`)
  }
  return found
}

export function checkBoolean(argument: string, value: unknown): boolean {
  if (typeof value !== 'boolean') throw new InvalidArgumentError(argument, value, 'true or false')
  return value
}

export function checkFunction(argument: string, value: unknown): void {
  if (typeof value !== 'function') throw new InvalidArgumentError(argument, value, 'a function')
}

/** For an object that the caller implements, such as a driver or a clock. */
export function checkMethods(argument: string, value: unknown, methods: readonly string[], rule: string): void {
  const has = (method: string): boolean => {
    try {
      return typeof (value as Record<string, unknown> | null)?.[method] === 'function'
    } catch {
      // A proxy that was revoked.
      return false
    }
  }
  if (!methods.every(has)) throw new InvalidArgumentError(argument, value, rule)
}

export function checkSignal(argument: string, value: unknown): AbortSignal {
  if (!isReadable(value) || !(value instanceof AbortSignal))
    throw new InvalidArgumentError(argument, value, 'an AbortSignal')
  return value
}

export function checkWhole(argument: string, value: unknown, min: number, max: number): number {
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < min || value > max) {
    throw new InvalidArgumentError(argument, value, `a whole number from ${min} to ${max}`)
  }
  return value
}

const QUERY = optionNames<InspectQuery>({ lockName: true, prefix: true, after: true, pageSize: true })

/**
 * Validates the query of a driver's `inspect` and returns it with its defaults. Every driver calls this before it sends
 * anything. Without it, a negative page size would return everything on one store and fail on another, and a lone
 * surrogate in a prefix could match a name that does not contain it.
 *
 * @throws `InvalidArgumentError` for an unknown field or an invalid value
 */
export function checkInspectQuery(query: InspectQuery): CheckedInspectQuery {
  checkOptions(query, QUERY, 'query')
  const { lockName, prefix = '', after, pageSize = 100 } = query
  if (lockName !== undefined) checkLockName(lockName)
  if (typeof prefix !== 'string' || prefix.length > MAX_NAME_LENGTH || !isStorable(prefix)) {
    const rule = `a string of at most ${MAX_NAME_LENGTH} characters, without NUL and without lone surrogates`
    throw new InvalidArgumentError('prefix', prefix, rule)
  }
  if (after !== undefined && (typeof after !== 'string' || after === '' || !isStorable(after))) {
    throw new InvalidArgumentError('after', after, '`next` of the previous page')
  }
  return {
    prefix,
    pageSize: checkWhole('pageSize', pageSize, 1, MAX_PAGE_SIZE),
    ...(lockName !== undefined && { lockName }),
    ...(after !== undefined && { after }),
  }
}

/** A validated query, with defaults for `prefix` (`''`) and `pageSize` (100). */
export type CheckedInspectQuery = InspectQuery & Required<Pick<InspectQuery, 'prefix' | 'pageSize'>>

/**
 * Every store returns metadata exactly as it was passed in. So only values that JSON preserves are accepted: a `Date`,
 * a `Map` or a `NaN` would come back as something else. A property that is `undefined` counts as absent.
 */
export function checkMetadata(value: unknown): Metadata {
  if (!isPlainObject(value)) throw new InvalidArgumentError('metadata', value, 'a plain object of JSON values')
  return jsonCopy('metadata', value, MAX_METADATA_BYTES)
}

/** For a single value that a primitive stores in a lease's metadata, under its own property name. */
export function checkJson(argument: string, value: unknown): unknown {
  return jsonCopy(argument, value, MAX_METADATA_BYTES - WRAPPING_BYTES)
}

/**
 * Returns a copy, so that later changes to the caller's object do not change what is stored. Each property is read
 * once: a getter may return another value the next time.
 */
function jsonCopy<T>(argument: string, value: T, maxBytes: number): T {
  const json = jsonOf(argument, value)
  const bytes = Buffer.byteLength(json)
  if (bytes > maxBytes) {
    throw new InvalidArgumentError(argument, value, `at most ${maxBytes} bytes as JSON (it has ${bytes})`)
  }
  return JSON.parse(json) as T
}

/** Reading the value may run the caller's code, which may throw. Its JSON may be longer than a string can be. */
function jsonOf(argument: string, value: unknown): string {
  try {
    return JSON.stringify(checkedJson(value, argument, 0))
  } catch (error) {
    if (isA(error, InvalidArgumentError)) throw error
    const message = `${argument} cannot be encoded as JSON: ${messageOf(error)}`
    throw new InvalidArgumentError(argument, value, JSON_RULE, message)
  }
}

/** For the property name and the braces around the value. */
const WRAPPING_BYTES = 16

function checkedJson(value: unknown, path: string, depth: number): unknown {
  if (depth > MAX_METADATA_DEPTH) {
    throw new InvalidArgumentError(
      path,
      value,
      `nested at most ${MAX_METADATA_DEPTH} levels deep, without circular references`,
    )
  }
  if (value === null || value === undefined || typeof value === 'boolean') return value
  if (typeof value === 'number' && Number.isFinite(value)) return value
  if (typeof value === 'string' && isStorable(value)) return value
  if (isArray(value)) {
    // Not with `map`, which leaves out the holes of a sparse array.
    return Array.from(value, (each, index) => {
      if (each === undefined) throw new InvalidArgumentError(`${path}[${index}]`, each, JSON_RULE)
      return checkedJson(each, `${path}[${index}]`, depth + 1)
    })
  }
  if (isPlainObject(value)) {
    const entries = Object.entries(value).map(([name, each]) => {
      if (!isStorable(name)) throw new InvalidArgumentError(`${path} property name`, name, JSON_RULE)
      return [name, checkedJson(each, `${path}.${name}`, depth + 1)] as const
    })
    return Object.fromEntries(entries)
  }
  throw new InvalidArgumentError(path, value, JSON_RULE)
}

const JSON_RULE =
  'a value that JSON keeps unchanged ' +
  '(null, boolean, finite number, string without NUL or lone surrogates, array, plain object)'

function checkSeconds(argument: string, seconds: unknown, minMs: number, maxMs: number): number {
  const ms = typeof seconds === 'number' ? Math.round(seconds * 1_000) : Number.NaN
  if (!(ms >= minMs && ms <= maxMs)) {
    throw new InvalidArgumentError(argument, seconds, `a number of seconds from ${minMs / 1_000} to ${maxMs / 1_000}`)
  }
  return ms
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null || !isReadable(value)) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype
}

/**
 * A lock name has 1 to 255 UTF-16 code units of well-formed text without NUL. `VARCHAR(255)`, a Redis key and a UTF-8
 * file can all store that, so that a name is valid on every store or on none.
 *
 * @throws `InvalidArgumentError`
 */
export function checkLockName(lockName: unknown, argument = 'lockName'): asserts lockName is string {
  checkText(argument, lockName, MAX_NAME_LENGTH)
}

export function checkHolderId(holderId: unknown): asserts holderId is string {
  checkText('holderId', holderId, MAX_HOLDER_ID_LENGTH)
}

export function checkText(argument: string, value: unknown, maxLength: number): asserts value is string {
  if (typeof value !== 'string' || value.length === 0 || value.length > maxLength || !isStorable(value)) {
    const rule = `a string of 1 to ${maxLength} characters, without NUL and without lone surrogates`
    throw new InvalidArgumentError(argument, value, rule)
  }
}

/** PostgreSQL cannot store NUL. A lone surrogate has no UTF-8 form, so two different names would become one. */
export const isStorable = (text: string): boolean => !text.includes('\0') && text.isWellFormed()
