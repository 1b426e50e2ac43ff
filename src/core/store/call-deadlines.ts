import type { Driver } from '../driver.ts'
import { HoldfastError, StoreError } from '../errors.ts'
import { messageOf, safeCause } from '../foreign-errors.ts'
import type { Clock, Timer } from '../time/clock.ts'

/**
 * Calls to one driver, each with the same time to be answered in, whatever the socket does. One timer stands for all of them: they fall due in
 * the order in which they were made.
 */
export class CallDeadlines {
  readonly #driver: Driver
  readonly #clock: Clock
  readonly #timeoutMs: number
  readonly #inFlight = new Set<Call>()
  #timer: Timer | undefined
  #givenUp: HoldfastError | undefined

  constructor(driver: Driver, clock: Clock, timeoutMs: number) {
    this.#driver = driver
    this.#clock = clock
    this.#timeoutMs = timeoutMs
  }

  get timeoutMs(): number {
    return this.#timeoutMs
  }

  /** Rejects when the call's time is up, or with a `HoldfastError` when it fails. An answer that comes later still reaches `late`. */
  run<Answer>(what: string, call: () => Promise<Answer>, late?: (answer: Answer) => void): Promise<Answer> {
    if (this.#givenUp !== undefined) return Promise.reject(this.#givenUp)
    return new Promise((resolve, reject) => {
      const dueMs = this.#clock.now().monotonicMs + this.#timeoutMs
      const inFlight: Call = { what, dueMs, fail: reject }
      this.#inFlight.add(inFlight)
      this.#arm()
      const ended = (): boolean => {
        const inTime = this.#inFlight.delete(inFlight)
        if (this.#inFlight.size === 0) this.#timer?.keepAlive?.(false)
        return inTime
      }
      answerOf(call).then(
        (answer) => {
          if (ended()) resolve(answer)
          else late?.(answer)
        },
        (error: unknown) => {
          ended()
          reject(this.asStoreError(what, error))
        },
      )
    })
  }

  /** Nothing more will be asked. What is under way, such as a look at the store, which closing does not wait for, still has its deadline. */
  close(): void {
    if (this.#inFlight.size > 0) return
    this.#timer?.cancel()
    this.#timer = undefined
  }

  /** Fails what is under way, and whatever is asked from now on. */
  giveUp(error: HoldfastError): void {
    this.#givenUp = error
    for (const call of this.#inFlight) call.fail(error)
    this.#inFlight.clear()
    this.close()
  }

  /** Drivers wrap their clients' errors themselves; this stands behind a driver that forgot to. */
  asStoreError(what: string, error: unknown): HoldfastError {
    if (error instanceof HoldfastError) return error
    const message = `the ${this.#driver.name} store failed to ${what}: ${messageOf(error)}`
    return new StoreError(message, { cause: safeCause(error) })
  }

  /** The timer stays when the last call has ended, and fires for nothing once: setting one for each call costs more than the call's own way through here. */
  #arm(): void {
    if (this.#timer !== undefined) {
      if (this.#inFlight.size === 1) this.#timer.keepAlive?.(true)
      return
    }
    const [first] = this.#inFlight
    if (first === undefined) return
    const delayMs = Math.max(0, first.dueMs - this.#clock.now().monotonicMs)
    this.#timer = this.#clock.setTimer(() => this.#tick(), delayMs, true)
  }

  #tick(): void {
    this.#timer = undefined
    const nowMs = this.#clock.now().monotonicMs
    const where = this.#driver.place === undefined ? '' : ` at ${this.#driver.place}`
    for (const call of this.#inFlight) {
      if (call.dueMs > nowMs) break
      this.#inFlight.delete(call)
      call.fail(
        new StoreError(
          `the ${this.#driver.name} store${where} did not answer ${call.what} within ${this.#timeoutMs} ms`,
        ),
      )
    }
    this.#arm()
  }
}

/** A driver that throws instead of rejecting is caught, too. */
function answerOf<Answer>(call: () => Promise<Answer>): Promise<Answer> {
  try {
    return Promise.resolve(call())
  } catch (error) {
    return Promise.reject(error)
  }
}

interface Call {
  readonly what: string
  readonly dueMs: number
  fail(error: HoldfastError): void
}
