import type { HoldfastError } from 'holdfast'
import { secretsIn } from '../../test/harness/secrets.ts'
import { CODES } from '../codes.ts'
import type { Library } from '../wire/library.ts'

/** What one case did, and what it must not do. */
export class Judge {
  /** What was drawn, for people. */
  readonly notes: string[] = []
  readonly violations: string[] = []
  /** What took too long. On a busy machine that may be no fault, so it counts only if it happens again. */
  readonly late: string[] = []
  /** How the calls of the case ended: `ok`, or the code of the error. */
  readonly outcomes: string[] = []
  /** A name that no other case has. */
  readonly name: string
  readonly #library: Library
  readonly #secrets: string[] = []

  constructor(library: Library, name: string) {
    this.#library = library
    this.name = name
  }

  note(text: string): void {
    if (this.notes.length < MAX_NOTES) this.notes.push(shortened(text))
  }

  violation(text: string): void {
    if (this.violations.length < MAX_NOTES) this.violations.push(shortened(text, 2_000))
  }

  /** A text that no error and no output may contain from here on. */
  keepSecret(text: string): void {
    this.#secrets.push(text)
  }

  /** Looks for the secrets of this case in everything that could be logged of a value. */
  checkSecrets(what: string, thing: unknown): void {
    const found = secretsIn(thing, this.#secrets)
    if (found !== undefined) this.violation(`${what} shows a secret: ${found}`)
  }

  /**
   * Makes a call. It must settle in time. It may only fail with an error of the library, with one of its codes.
   *
   * @returns its result, or undefined if it failed or is late
   */
  async settles<T>(what: string, call: () => T | PromiseLike<T>, expected: Expected = {}): Promise<T | undefined> {
    const { boundMs = BOUND_MS, refuses = ['INVALID_ARGUMENT'] } = expected
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<typeof LATE>((resolve) => {
      timer = setTimeout(() => resolve(LATE), boundMs)
    })
    try {
      const result = await Promise.race([Promise.resolve().then(call), late])
      if (result === LATE) {
        this.late.push(`${what} did not settle within ${boundMs} ms`)
        return undefined
      }
      this.outcomes.push('ok')
      return result as T
    } catch (error) {
      this.failed(what, error, refuses)
      return undefined
    } finally {
      clearTimeout(timer)
    }
  }

  /** Judges an error of the library. `refuses`: codes that this call must not fail with. */
  failed(what: string, error: unknown, refuses: readonly string[] = []): void {
    this.checkSecrets(what, error)
    if (!(error instanceof this.#library.HoldfastError)) {
      this.violation(`${what} failed with an untyped error: ${described(error)}`)
      return
    }
    const { code, message } = error as HoldfastError
    this.outcomes.push(code)
    if (!CODES.has(code)) this.violation(`${what} failed with the unknown code ${String(code)}`)
    if (isLate(error)) {
      if (refuses.includes(code)) this.late.push(`${what}: ${message}`)
    } else if (refuses.includes(code))
      this.violation(`${what} failed with ${code}, but its arguments are valid: ${message}`)
    if (message === '') this.violation(`${what} failed with an empty message`)
    if (message.length > MAX_MESSAGE) this.violation(`${what} failed with a message of ${message.length} characters`)
  }

  check(isRight: boolean, text: () => string): void {
    if (!isRight) this.violation(text())
  }
}

export interface Expected {
  readonly boundMs?: number
  readonly refuses?: readonly string[]
}

/** The timeout of a call, and what a busy machine may add to that. */
export const BOUND_MS = 10_000
const MAX_NOTES = 12
const MAX_MESSAGE = 4_000
const LATE = Symbol('late')

/** The store did not answer in time, as on a busy machine. */
export const isLate = (error: unknown): boolean =>
  (error as { code?: unknown }).code === 'STORE_UNAVAILABLE' && /in time|did not answer/.test((error as Error).message)

export const described = (error: unknown): string =>
  error instanceof Error ? (error.stack ?? String(error)) : `${typeof error} ${String(error)}`

/** A copy: a part of a text would keep the whole one in memory. */
const shortened = (text: string, most = 300): string =>
  Buffer.from(text.length <= most ? text : `${text.slice(0, most)}…`).toString()
