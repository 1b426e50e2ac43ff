import { AbortedError, OverloadError, RateLimitedError, StoreError } from '../../core/errors.ts'
import { MAX_PENDING_CLAIMS } from '../../core/limits.ts'
import { unwatchAbort, watchAbort } from '../../core/time/abort.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import { queueMicrotask } from '../../core/time/native-time.ts'
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
  readonly #queues = new Map<string, Set<() => void>>()
  /** The first call of each queue, while it sleeps until its key has units again. */
  readonly #sleepers = new Map<string, () => void>()
  /** The requests in flight. A refusal that was in flight when the key was reset is void. */
  readonly #asks = new Set<{ readonly key: string; isOld: boolean }>()
  readonly #waiting = new Set<(error: Error) => void>()

  constructor(parts: RateWaitingParts) {
    this.#parts = parts
  }

  async wait(wait: RateWait): Promise<RateLimitResult> {
    if (wait.signal?.aborted) throw new AbortedError(`waiting for "${wait.key}"`, wait.signal.reason)
    if (this.#waiting.size >= MAX_PENDING_CLAIMS) {
      throw new OverloadError(`${MAX_PENDING_CLAIMS} calls are already waiting in this limiter`)
    }
    return new Promise((resolve, reject) => this.#wait(wait, resolve, reject))
  }

  /** The key may have units earlier than expected. */
  wake(key: string): void {
    for (const ask of this.#asks) if (ask.key === key) ask.isOld = true
    this.#sleepers.get(key)?.()
  }

  giveUp(error: Error): void {
    for (const fail of [...this.#waiting]) fail(error)
  }

  #wait(
    { key, cost, waitMs, signal }: RateWait,
    resolve: (result: RateLimitResult) => void,
    reject: (error: unknown) => void,
  ): void {
    const { clock } = this.#parts
    const untilMs = clock.now().monotonicMs + waitMs
    let state: 'queued' | 'asking' | 'sleeping' | 'over' = 'queued'
    let sleep: Timer | undefined
    let leave: (() => void) | undefined

    const stopSleeping = (): void => {
      sleep?.cancel()
      if (this.#sleepers.get(key) === wakeUp) this.#sleepers.delete(key)
    }
    const wakeUp = (): void => {
      stopSleeping()
      void ask()
    }
    const isOver = (): boolean => state === 'over'
    const end = (): void => {
      state = 'over'
      stopSleeping()
      deadline.cancel()
      if (signal !== undefined) unwatchAbort(signal, watcher)
      this.#waiting.delete(fail)
      leave?.()
    }
    const fail = (error: unknown): void => {
      if (isOver()) return
      end()
      reject(error)
    }
    const refuse = (retryAfterSeconds: number): void => fail(new RateLimitedError(key, retryAfterSeconds))
    const watcher = { aborted: () => fail(new AbortedError(`waiting for "${key}"`, signal?.reason)) }

    const ask = async (): Promise<void> => {
      if (isOver()) return
      state = 'asking'
      const asked = { key, isOld: false }
      this.#asks.add(asked)
      try {
        const result = await this.#parts.consume(key, cost)
        if (isOver()) return
        if (result.allowed) {
          end()
          resolve(result)
        } else if (asked.isOld) void ask()
        else refused(result)
      } catch (error) {
        fail(error)
      } finally {
        this.#asks.delete(asked)
      }
    }
    const refused = ({ retryAfterSeconds }: RateLimitResult): void => {
      // Units are never given back, so this is certain unless the key is reset.
      if (retryAfterSeconds * 1_000 > untilMs - clock.now().monotonicMs) {
        refuse(retryAfterSeconds)
      } else if (leave === undefined) {
        state = 'queued'
        leave = this.#join(key, ask)
      } else {
        state = 'sleeping'
        this.#sleepers.set(key, wakeUp)
        sleep = clock.setTimer(wakeUp, Math.ceil(retryAfterSeconds * 1_000), true)
      }
    }

    // For calls that are not first in the queue by then. A call that is asking gets its answer if the store gives one.
    const onDeadline = (): void => {
      if (state !== 'asking') refuse(this.#parts.refusal(key, cost)?.retryAfterSeconds ?? 0)
      else deadline = clock.setTimer(onSilence, ANSWER_GRACE_MS, true)
    }
    const onSilence = (): void => fail(new StoreError(`the store did not answer a wait for "${key}" in time`))
    let deadline = clock.setTimer(onDeadline, waitMs + DEADLINE_GRACE_MS, true)
    if (signal !== undefined) watchAbort(signal, watcher)
    this.#waiting.add(fail)
    const known = this.#parts.refusal(key, cost)
    if (known !== undefined) refused(known)
    else if (this.#queues.has(key)) leave = this.#join(key, ask)
    else void ask()
  }

  /** Calls `lead` once, when all earlier calls have left the queue. Returns a function that leaves the queue. */
  #join(key: string, lead: () => Promise<void>): () => void {
    const queue = this.#queues.get(key) ?? new Set()
    this.#queues.set(key, queue)
    const turn = (): void => void lead()
    queue.add(turn)
    // In a microtask, so that the caller has the returned function first.
    if (queue.size === 1) queueMicrotask(turn)
    return () => {
      const [first] = queue
      if (!queue.delete(turn)) return
      const [next] = queue
      if (next === undefined) this.#queues.delete(key)
      else if (first === turn) next()
    }
  }
}

/** The timer of a sleep and the deadline may be due at the same time. Then there is still time to ask. */
const DEADLINE_GRACE_MS = 5
/** How long the answer to a request that was sent in time may still take. */
const ANSWER_GRACE_MS = 100
