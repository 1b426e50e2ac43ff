import type { LockGrantedCallback, LockMode, WebLockOptions } from './lock.ts'

export interface Arguments {
  readonly name: string
  readonly options: RequestOptions
  readonly callback: LockGrantedCallback<unknown>
}

export interface RequestOptions {
  readonly ifAvailable: boolean
  readonly mode: LockMode
  readonly signal: AbortSignal | undefined
  readonly steal: boolean
}

/**
 * The conversions of WebIDL in their order: the name, the members of the dictionary by name, the callback. Throws
 * `TypeError`, or what the conversion of a value throws.
 */
export function argumentsFrom(args: readonly unknown[]): Arguments {
  if (args.length < 2) throw new TypeError(`request() has 2 required arguments, and got ${args.length}`)
  const [name, second, third] = args
  const [options, callback] = args.length === 2 ? [undefined, second] : [second, third]
  // A template throws for a Symbol, as the conversion must. `String` would return its description.
  const converted = { name: `${name as string}`, options: optionsFrom(options) }
  if (typeof callback !== 'function') throw new TypeError('the callback given to request() is not a function')
  return { ...converted, callback: callback as LockGrantedCallback<unknown> }
}

/** The checks of request() in their order. Throws a `DOMException`, or the reason of an aborted signal. */
export function checkRequest(name: string, { ifAvailable, mode, signal, steal }: RequestOptions): void {
  if (name.startsWith('-')) throw notSupported('names that begin with "-" are reserved')
  if (steal && ifAvailable) throw notSupported('steal and ifAvailable exclude each other')
  if (steal && mode !== 'exclusive') throw notSupported('steal is only for an exclusive lock')
  if (signal !== undefined && (steal || ifAvailable)) {
    throw notSupported('a signal cannot be given together with steal or ifAvailable')
  }
  signal?.throwIfAborted()
}

function optionsFrom(value: unknown): RequestOptions {
  if (value !== undefined && value !== null && typeof value !== 'object' && typeof value !== 'function') {
    throw new TypeError('the options given to request() are not an object')
  }
  const options = (value ?? {}) as Readonly<Record<keyof WebLockOptions, unknown>>
  const ifAvailable = Boolean(options.ifAvailable)
  const mode = modeFrom(options.mode)
  const signal = signalFrom(options.signal)
  return { ifAvailable, mode, signal, steal: Boolean(options.steal) }
}

function modeFrom(value: unknown): LockMode {
  if (value === undefined) return 'exclusive'
  const mode = `${value as string}`
  if (mode !== 'exclusive' && mode !== 'shared')
    throw new TypeError(`"${mode}" is not a lock mode: exclusive or shared`)
  return mode
}

function signalFrom(value: unknown): AbortSignal | undefined {
  if (value === undefined) return undefined
  try {
    // Only the getter knows whether it is a signal. A prototype can be faked.
    isAborted.call(value)
  } catch {
    throw new TypeError('the signal given to request() is not an AbortSignal')
  }
  return value as AbortSignal
}

const isAborted = Object.getOwnPropertyDescriptor(AbortSignal.prototype, 'aborted')?.get as (this: unknown) => boolean

const notSupported = (message: string): DOMException => domException('NotSupportedError', message)

/** A `DOMException` with a `cause`, which those of the platform do not have. */
export function domException(name: string, message: string, cause?: unknown): DOMException {
  const exception = new DOMException(message, name)
  if (cause !== undefined)
    Object.defineProperty(exception, 'cause', { value: cause, configurable: true, writable: true })
  return exception
}
