import { setTimeout as sleep } from 'node:timers/promises'
import type { Driver } from '../core/driver.ts'
import { HoldfastError, StoreError } from '../core/errors.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { say } from './text.ts'

/**
 * Reports a store that does not answer as soon as that is known, and gives up after `boundMs`. The library itself
 * retries for as long as a claim may wait, and `holdfast run` waits without a limit by default: without this class, a
 * wrong port would look like a lock that is held.
 */
export class Outage {
  readonly #boundMs: number
  readonly #waitMs: number
  readonly #givenUp = new AbortController()
  #last: unknown
  #timer: NodeJS.Timeout | undefined

  /** `waitMs` is how long the claim itself waits. */
  constructor({ boundMs, waitMs }: { boundMs: number; waitMs: number }) {
    this.#boundMs = boundMs
    this.#waitMs = waitMs
  }

  /** Aborts when the store has not answered for `boundMs`. */
  get signal(): AbortSignal {
    return this.#givenUp.signal
  }

  /** Why the claim was given up. */
  get message(): string {
    return `gave up: the store has not answered for ${this.#boundMs / 1_000} s: ${messageOf(this.#last)}`
  }

  /** Opens the store. Retries while a retry may help, and then throws the last error of `connect`. */
  async open(connect: () => Promise<Driver>): Promise<Driver> {
    for (;;) {
      try {
        return this.#watch(await this.#attempt(connect))
      } catch (error) {
        if (!this.#mayPass(error) || this.signal.aborted) throw error
        await sleep(OPEN_AGAIN_MS)
      }
    }
  }

  /** Stops watching. From here on, the renewer handles a store that does not answer. */
  end(): void {
    clearTimeout(this.#timer)
  }

  #watch(driver: Driver): Driver {
    return {
      ...driver,
      acquire: (claims, call) =>
        this.#attempt(async () => {
          const answers = await driver.acquire(claims, call)
          const failure = answers.find((answer) => answer instanceof Error)
          if (failure !== undefined) this.#failed(failure)
          return answers
        }),
    }
  }

  async #attempt<T>(call: () => Promise<T>): Promise<T> {
    const late = new StoreError(`the store has not answered for ${LATE_MS / 1_000} s`)
    // The error of an earlier attempt says more than "late".
    const timer = setTimeout(() => this.#failed(this.#last ?? late), LATE_MS)
    try {
      const answer = await call()
      if (!Array.isArray(answer) || answer.some((each) => !(each instanceof Error))) this.#answered()
      return answer
    } catch (error) {
      this.#failed(error)
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  #failed(error: unknown): void {
    // The claim fails at once, and its caller prints the error.
    if (!this.#mayPass(error)) return
    this.#last = error
    if (this.#timer !== undefined) return
    const message = messageOf(error)
    const seconds = Math.min(this.#boundMs, this.#waitMs) / 1_000
    say(`${message}${/[.?!]$/.test(message) ? '' : '.'} Retrying for ${seconds} s`)
    this.#timer = setTimeout(() => this.#givenUp.abort(), this.#boundMs)
  }

  #answered(): void {
    if (this.#timer === undefined) return
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#last = undefined
    if (!this.signal.aborted) say('the store answers again')
  }

  #mayPass(error: unknown): boolean {
    if (this.#waitMs === 0) return false
    return error instanceof StoreError ? error.retryable : !(error instanceof HoldfastError)
  }
}

/** An answer takes milliseconds. After this long, a user at a terminal wants to know why nothing happens. */
const LATE_MS = 2_000
const OPEN_AGAIN_MS = 500
