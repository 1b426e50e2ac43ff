import type { Driver } from '../driver.ts'
import { HoldfastError, StoreError } from '../errors.ts'
import { messageOf, safeCause } from '../foreign-errors.ts'
import { type Linked, LinkedSet } from '../linked-set.ts'
import type { Clock, Timer } from '../time/clock.ts'
import { queueMicrotask } from '../time/native-time.ts'

/**
 * Gives every call to one driver a deadline, so that a hanging socket cannot hang the caller. All calls have the same
 * timeout and so expire in the order in which they were made: one timer serves all of them.
 */
export class CallDeadlines {
  readonly #driver: Driver
  readonly #clock: Clock
  readonly #timeoutMs: number
  /** In the order of their deadlines. */
  readonly #inFlight = new LinkedSet<Call<unknown>>()
  #timer: Timer | undefined
  #failedWith: HoldfastError | undefined

  constructor(driver: Driver, clock: Clock, timeoutMs: number) {
    this.#driver = driver
    this.#clock = clock
    this.#timeoutMs = timeoutMs
  }

  get timeoutMs(): number {
    return this.#timeoutMs
  }

  /**
   * Runs a call.
   *
   * @throws `StoreError` when the call times out; a `HoldfastError` when it fails
   */
  run<Answer>(what: string, send: () => Promise<Answer>, late?: (answer: Answer) => void): Promise<Answer> {
    return new Promise((answered, failed) => {
      const dueMs = this.#clock.now().monotonicMs + this.#timeoutMs
      const links = { isLinked: false, before: undefined, after: undefined }
      this.start({ what, dueMs, send, answered, failed, ...(late && { late }), ...links })
    })
  }

  /** As `run`, for a caller that counts every promise. It is called back once, never before this returns. */
  start<Answer>(call: Call<Answer>): void {
    const failure = this.#failedWith
    if (failure !== undefined) {
      this.#fail(call as Call<unknown>, failure)
      return
    }
    this.#inFlight.add(call as Call<unknown>)
    this.#arm()
    answerOf(call).then(
      (answer) => {
        if (this.#ended(call as Call<unknown>)) call.answered(answer)
        else call.late?.(answer)
      },
      (error: unknown) => {
        if (this.#ended(call as Call<unknown>)) call.failed(this.asStoreError(call.what, error))
      },
    )
  }

  /** Whether the call was still in flight. */
  #ended(call: Call<unknown>): boolean {
    const inTime = this.#inFlight.delete(call)
    if (this.#inFlight.size === 0) this.#timer?.keepAlive?.(false)
    return inTime
  }

  /** In a step of its own: what one caller does must not keep the others from their answers. */
  #fail(call: Call<unknown>, error: HoldfastError): void {
    this.#inFlight.delete(call)
    queueMicrotask(() => call.failed(error))
  }

  /**
   * No more calls will be made. Calls in flight keep their deadlines: an `inspect`, for example, for which closing does
   * not wait.
   */
  close(): void {
    if (this.#inFlight.size > 0) return
    this.#timer?.cancel()
    this.#timer = undefined
  }

  /** Fails every call in flight and every later call. */
  failAll(error: HoldfastError): void {
    this.#failedWith = error
    for (const call of this.#inFlight.all()) this.#fail(call, error)
    this.close()
  }

  /** Drivers wrap the errors of their clients. This wraps those that a driver did not. */
  asStoreError(what: string, error: unknown): HoldfastError {
    if (error instanceof HoldfastError) return error
    const message = `the ${this.#driver.name} store failed to ${what}: ${messageOf(error)}`
    return new StoreError(message, { cause: safeCause(error) })
  }

  /**
   * The timer stays when the last call has ended, and then fires once without effect. A timer for each call would cost
   * more than everything else here.
   */
  #arm(): void {
    if (this.#timer !== undefined) {
      if (this.#inFlight.size === 1) this.#timer.keepAlive?.(true)
      return
    }
    const { first } = this.#inFlight
    if (first === undefined) return
    const delayMs = Math.max(0, first.dueMs - this.#clock.now().monotonicMs)
    this.#timer = this.#clock.setTimer(() => this.#tick(), delayMs, true)
  }

  #tick(): void {
    this.#timer = undefined
    const nowMs = this.#clock.now().monotonicMs
    const where = this.#driver.place === undefined ? '' : ` at ${this.#driver.place}`
    for (let call = this.#inFlight.first; call !== undefined && call.dueMs <= nowMs; call = this.#inFlight.first) {
      const late = `did not answer ${call.what} within ${this.#timeoutMs} ms`
      this.#fail(call, new StoreError(`the ${this.#driver.name} store${where} ${late}`))
    }
    this.#arm()
  }
}

/** Turns the error of a driver that throws synchronously into a rejection. */
function answerOf<Answer>(call: Call<Answer>): Promise<Answer> {
  try {
    return Promise.resolve(call.send())
  } catch (error) {
    return Promise.reject(error)
  }
}

export interface Call<Answer> extends Linked<Call<unknown>> {
  readonly what: string
  /** The deadline, on the monotonic clock. */
  readonly dueMs: number
  send(): Promise<Answer>
  answered(answer: Answer): void
  failed(error: HoldfastError): void
  /** The answer has come after the deadline. */
  late?(answer: Answer): void
}
