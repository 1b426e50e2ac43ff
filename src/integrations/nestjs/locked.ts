import { AsyncLocalStorage } from 'node:async_hooks'
import { checkLockName, checkText, isStorable } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { DistributedLock } from '../../primitives/lock/any-store-lock.ts'
import { claimRequestFrom, type LockOptions } from '../../primitives/lock/claims.ts'
import { decorate } from './decorate.ts'

/** The options of `withLock` that are the same for all calls. */
export type LockedOptions = Omit<LockOptions, 'signal' | 'under'>

/** Decorates a method that returns a promise, and takes at least the arguments of the function that makes the name. */
export type LockedDecorator<Args extends readonly unknown[]> = <Method extends (...args: never[]) => Promise<unknown>>(
  target: object,
  key: string | symbol,
  descriptor: TypedPropertyDescriptor<Method> & (Parameters<Method> extends [...Args, ...unknown[]] ? unknown : never),
) => void

const OPTIONS = optionNames<LockedOptions>({
  timeoutSeconds: true,
  blocking: true,
  blockingTimeoutSeconds: true,
  metadata: true,
  heartbeat: true,
  minHoldSeconds: true,
  maxHoldSeconds: true,
})

/**
 * A method decorator: each call runs under a lock, as with `withLock`, on the `DistributedLock` of the application's
 * `HoldfastModule`. The class may be a provider or a controller. A call whose lock is held rejects with
 * `NotAcquiredError`, unless `options` say that it waits. Errors of the method are passed on.
 *
 * `name` is a template in which `{0}` is the first argument and `{0.id}` a property of it, or a function of the
 * arguments. A template accepts strings without control characters, safe integers and bigints. They are used as they
 * are: with `a:{0}:{1}`, the arguments `x:y` and `z` make the same name as `x` and `y:z`.
 *
 * Template and options are checked when the class is defined. The method has to return a promise: what runs after that
 * has settled, such as an Observable, runs without the lock. `currentLease()` returns the lease inside of it. It works
 * above and below other decorators, with `experimentalDecorators` in tsconfig.json.
 *
 * @throws `InvalidArgumentError`. The method rejects with it for arguments that make no good name
 *
 * @example
 * ```ts
 * class OrderService {
 *   @Locked('order:{0}', { blockingTimeoutSeconds: 5 })
 *   async ship(orderId: string): Promise<void> {}
 * }
 * ```
 */
export function Locked<Args extends readonly unknown[] = []>(
  name: string | ((...args: Args) => string),
  options: LockedOptions = {},
): LockedDecorator<Args> {
  claimRequestFrom('checks the options', checkOptions(options, OPTIONS), true)
  const lockOptions = { ...options }
  return (target: object, key: string | symbol, descriptor: PropertyDescriptor | undefined) => {
    const where = `${target.constructor.name}.${String(key)}`
    const nameOf =
      typeof name === 'function'
        ? (args: readonly unknown[]) => checkedName(name(...(args as unknown as Args)), where)
        : nameFromTemplate(name, where)
    decorate(
      '@Locked',
      { target, key, descriptor, provider: DistributedLock, property: LOCK },
      (lock, args, method) => {
        const work = (lease: Lease): unknown => leases.run(lease, () => method())
        return lock.withLock(nameOf(args), work, lockOptions)
      },
    )
  }
}

/**
 * The lease of the innermost method with `@Locked` that is running: for its `signal`, `fencingToken` and `assertHeld`.
 *
 * @throws `InvalidArgumentError` outside of such a method
 */
export function currentLease(): Lease {
  const lease = leases.getStore()
  if (lease !== undefined) return lease
  const rule = 'called inside a method with @Locked'
  throw new InvalidArgumentError('currentLease', undefined, rule, `currentLease() must be ${rule}`)
}

const leases = new AsyncLocalStorage<Lease>()
const LOCK = Symbol('holdfast.lock')

/** Returns the lock name of a call. Throws `InvalidArgumentError`. */
type NameOfCall = (args: readonly unknown[]) => string

/**
 * Reads a template such as `order:{0}` or `order:{0.id}`. `where` is the method, for errors.
 *
 * @throws `InvalidArgumentError`. So does the returned function, for an argument that makes no good name
 */
export function nameFromTemplate(template: unknown, where: string): NameOfCall {
  checkText(`the template of @Locked on ${where}`, template, MAX_NAME_LENGTH)
  // Split by a pattern with a group: texts are at even places, placeholders at odd ones.
  const parts = template.split(PLACEHOLDER)
  if (parts.some((part, at) => at % 2 === 0 && /[{}]/.test(part))) {
    const rule = 'made of text and placeholders such as {0} and {0.id}; use a function for a name with other braces'
    throw new InvalidArgumentError(`the template of @Locked on ${where}`, template, rule)
  }
  return (args) => {
    const texts = parts.map((part, at) => (at % 2 === 0 ? part : textAt(args, part, where)))
    return checkedName(texts.join(''), where)
  }
}

/** Throws `InvalidArgumentError`. */
function checkedName(name: unknown, where: string): string {
  checkLockName(name, `the lock name of ${where}`)
  return name
}

const PLACEHOLDER = /\{(\d{1,2}(?:\.[\p{ID_Start}$_][\p{ID_Continue}$]*)*)\}/u

/**
 * Only texts and whole numbers make a name. An object would become `[object Object]`, and a missing value `undefined`:
 * one lock for all of them.
 */
function textAt(args: readonly unknown[], path: string, where: string): string {
  const [index, ...properties] = path.split('.')
  const value = properties.reduce<unknown>(
    (inner, property) => (inner as Record<string, unknown> | null | undefined)?.[property],
    args[Number(index)],
  )
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return String(value)
  if (typeof value !== 'string' || !isGoodText(value))
    throw new InvalidArgumentError(`{${path}} of ${where}`, value, RULE)
  return value
}

/** Control characters and line ends would forge lines in logs, and in what the command line shows. */
const isGoodText = (text: string): boolean =>
  text.length > 0 && text.length <= MAX_NAME_LENGTH && isStorable(text) && !/[\p{Cc}\p{Zl}\p{Zp}]/u.test(text)

const RULE =
  `a string of 1 to ${MAX_NAME_LENGTH} characters without control characters and lone surrogates, ` +
  'a safe integer or a bigint, to be part of a lock name'
