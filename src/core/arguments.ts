import type { InspectQuery, Metadata } from './driver.ts'
import { InvalidArgumentError } from './errors.ts'
import {
  MAX_METADATA_BYTES,
  MAX_METADATA_DEPTH,
  MAX_NAME_LENGTH,
  MAX_PAGE_SIZE,
  MAX_TTL_MS,
  MAX_WAIT_MS,
  MIN_TTL_MS,
} from './limits.ts'
import { checkLockName, isStorable } from './names.ts'
import { checkOptions, optionNames } from './options.ts'

/** Checks at the public edge. Each names the argument, the value and the rule, before anything is sent. */

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

/** For what a caller makes: a driver, a clock. */
export function checkMethods(argument: string, value: unknown, methods: readonly string[], rule: string): void {
  const has = (method: string): boolean => typeof (value as Record<string, unknown> | null)?.[method] === 'function'
  if (!methods.every(has)) throw new InvalidArgumentError(argument, value, rule)
}

export function checkSignal(argument: string, value: unknown): AbortSignal {
  if (!(value instanceof AbortSignal)) throw new InvalidArgumentError(argument, value, 'an AbortSignal')
  return value
}

export function checkWhole(argument: string, value: unknown, least: number, most: number): number {
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < least || value > most) {
    throw new InvalidArgumentError(argument, value, `a whole number from ${least} to ${most}`)
  }
  return value
}

const QUERY = optionNames<InspectQuery>({ lockName: true, prefix: true, after: true, pageSize: true })

/**
 * What a driver's `inspect` was asked for, with its defaults. Every driver checks a query with this before it asks its store. Without it a negative page
 * size meant everything on one store and an error on another, and half of a surrogate pair could match a name that it is not part of.
 *
 * @throws `InvalidArgumentError`
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
    throw new InvalidArgumentError('after', after, '`next` of the page before')
  }
  return {
    prefix,
    pageSize: checkWhole('pageSize', pageSize, 1, MAX_PAGE_SIZE),
    ...(lockName !== undefined && { lockName }),
    ...(after !== undefined && { after }),
  }
}

export type CheckedInspectQuery = InspectQuery & Required<Pick<InspectQuery, 'prefix' | 'pageSize'>>

/**
 * Metadata comes back from every store exactly as it went in, so only what JSON keeps unchanged is taken: a `Date`, a
 * `Map` or a `NaN` would be something else on the way back. A property that is `undefined` counts as absent.
 */
export function checkMetadata(value: unknown): Metadata {
  if (!isPlainObject(value)) throw new InvalidArgumentError('metadata', value, 'a plain object of JSON values')
  return jsonCopy('metadata', value, MAX_METADATA_BYTES)
}

/** A single value that a primitive keeps as a lease's metadata, under a name of its own. */
export function checkJson(argument: string, value: unknown): unknown {
  return jsonCopy(argument, value, MAX_METADATA_BYTES - WRAPPING_BYTES)
}

/** A copy: what the caller does to its object later is not what was stored. */
function jsonCopy<T>(argument: string, value: T, mostBytes: number): T {
  assertJson(value, argument, 0)
  const json = JSON.stringify(value)
  const bytes = Buffer.byteLength(json)
  if (bytes > mostBytes) {
    throw new InvalidArgumentError(argument, value, `at most ${mostBytes} bytes as JSON (it has ${bytes})`)
  }
  return JSON.parse(json) as T
}

const WRAPPING_BYTES = 16

function assertJson(value: unknown, path: string, depth: number): void {
  if (depth > MAX_METADATA_DEPTH) {
    throw new InvalidArgumentError(path, value, `nested at most ${MAX_METADATA_DEPTH} deep, and not in a circle`)
  }
  if (value === null || value === undefined || typeof value === 'boolean') return
  if (typeof value === 'number' && Number.isFinite(value)) return
  if (typeof value === 'string' && isStorable(value)) return
  if (Array.isArray(value)) {
    value.forEach((each, index) => {
      if (each === undefined) throw new InvalidArgumentError(`${path}[${index}]`, each, JSON_RULE)
      assertJson(each, `${path}[${index}]`, depth + 1)
    })
    return
  }
  if (isPlainObject(value)) {
    for (const [name, each] of Object.entries(value)) {
      if (!isStorable(name)) throw new InvalidArgumentError(`${path} property name`, name, JSON_RULE)
      assertJson(each, `${path}.${name}`, depth + 1)
    }
    return
  }
  throw new InvalidArgumentError(path, value, JSON_RULE)
}

const JSON_RULE =
  'a value that JSON keeps unchanged (null, boolean, finite number, text without NUL or lone surrogates, array, plain object)'

function checkSeconds(argument: string, seconds: unknown, leastMs: number, mostMs: number): number {
  const ms = typeof seconds === 'number' ? Math.round(seconds * 1_000) : Number.NaN
  if (!(ms >= leastMs && ms <= mostMs)) {
    throw new InvalidArgumentError(
      argument,
      seconds,
      `a number of seconds from ${leastMs / 1_000} to ${mostMs / 1_000}`,
    )
  }
  return ms
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype
}
