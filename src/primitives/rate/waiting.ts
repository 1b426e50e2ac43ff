import { AbortedError, OverloadError, RateLimitedError, StoreError } from '../../core/errors.ts'
import { MAX_PENDING_CLAIMS } from '../../core/limits.ts'
import { onAbort, pause, unlessAborted } from '../../core/time/abort.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { RateLimitResult } from './limits.ts'

export interface RateWaitingParts {
  readonly clock: Clock
  consume(key: string, cost: number): Promise<RateLimitResult>
  /** A remembered refusal. */
  refusal(key: string, cost: number): RateLimitResult | undefined
}

export interface RateWait {
  readonly key: string
  readonly cost: number
  readonly waitMs: number
  readonly signal: AbortSignal | undefined
}

/** The calls that wait for units. The calls for one key form a queue, and only the first of it asks the store. */
export class RateWaiting {
  readonly #parts: RateWaitingParts
  readonly #calls = new Set<Call>()
  /** For each key with a queue: resolves when all calls of the queue have ended. */
  readonly #ends = new Map<string, Promise<unknown>>()

  constructor(parts: RateWaitingParts) {
    this.#parts = parts
  }

  async wait({ key, cost, waitMs, signal }: RateWait): Promise<RateLimitResult> {
    const what = `waiting for "${key}"`
    if (signal?.aborted) throw new AbortedError(what, signal.reason)
    if (this.#calls.size >= MAX_PENDING_CLAIMS) {
      throw new OverloadError(`${MAX_PENDING_CLAIMS} calls are already waiting in this limiter`)
    }
    const { clock } = this.#parts
    const untilMs = clock.now().monotonicMs + waitMs
    const call: Call = { key, cost, untilMs, over: new AbortController(), changed: new AbortController() }
    const ended = new Promise<never>((_, reject) => onAbort(call.over.signal, () => reject(call.over.signal.reason)))
    // For calls that are not first in the queue by then. A call that is asking gets its answer if the store gives one.
    const onDeadline = (): void => {
      const { retryAfterSeconds = 0 } = this.#parts.refusal(key, cost) ?? {}
      if (!call.isAsking) call.over.abort(new RateLimitedError(key, retryAfterSeconds))
      else deadline = clock.setTimer(onSilence, ANSWER_GRACE_MS, true)
    }
    const onSilence = (): void =>
      call.over.abort(new StoreError(`the store did not answer a wait for "${key}" in time`))
    let deadline = clock.setTimer(onDeadline, waitMs + DEADLINE_GRACE_MS, true)
    this.#calls.add(call)
    try {
      return await unlessAborted(Promise.race([this.#take(call, ended), ended]), signal, what)
    } finally {
      deadline.cancel()
      this.#calls.delete(call)
      call.over.abort()
    }
  }

  /** The key may have units earlier than expected. */
  wake(key: string): void {
    for (const call of this.#calls) if (call.key === key) call.changed.abort()
  }

  giveUp(error: Error): void {
    for (const { over } of this.#calls) over.abort(error)
  }

  async #take(call: Call, ended: Promise<never>): Promise<RateLimitResult> {
    const { key, cost, over } = call
    const { clock, refusal } = this.#parts
    const first = refusal(key, cost) ?? (this.#ends.has(key) ? undefined : await this.#ask(call))
    if (first?.allowed) return first
    if (first !== undefined) this.#assertInTime(call, first)
    await this.#turn(key, ended)
    for (;;) {
      const result = await this.#ask(call)
      if (result.allowed) return result
      this.#assertInTime(call, result)
      await pause(clock, Math.ceil(result.retryAfterSeconds * 1_000), over.signal, call.changed.signal)
    }
  }

  /** A refusal that was in flight when the key was reset is void. */
  async #ask(call: Call): Promise<RateLimitResult> {
    for (;;) {
      call.over.signal.throwIfAborted()
      const changed = new AbortController()
      Object.assign(call, { changed, isAsking: true })
      const result = await this.#parts.consume(call.key, call.cost).finally(() => {
        call.isAsking = false
      })
      if (result.allowed || !changed.signal.aborted) return result
    }
  }

  /** Units are never given back, so it is certain that they are not there in time, unless the key is reset. */
  #assertInTime({ key, untilMs }: Call, { retryAfterSeconds }: RateLimitResult): void {
    if (retryAfterSeconds * 1_000 > untilMs - this.#parts.clock.now().monotonicMs) {
      throw new RateLimitedError(key, retryAfterSeconds)
    }
  }

  /** Joins the queue of the key, and resolves when all earlier calls have ended. */
  async #turn(key: string, ended: Promise<never>): Promise<void> {
    const before = this.#ends.get(key)
    const all = Promise.allSettled([before, ended]).then(() => {
      if (this.#ends.get(key) === all) this.#ends.delete(key)
    })
    this.#ends.set(key, all)
    await before
  }
}

/** A call that waits. */
interface Call {
  readonly key: string
  readonly cost: number
  readonly untilMs: number
  /** Aborts when the call ends, with its error. */
  readonly over: AbortController
  /** Aborts when the key has changed since the call last asked. */
  changed: AbortController
  isAsking?: boolean
}

/** The timer of a sleep and the deadline may be due at the same time. Then there is still time to ask. */
const DEADLINE_GRACE_MS = 5
/** How long the answer to a request that was sent in time may still take. */
const ANSWER_GRACE_MS = 100
