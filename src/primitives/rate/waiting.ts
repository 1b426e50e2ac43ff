import { AbortedError, OverloadError, RateLimitedError, StoreError } from '../../core/errors.ts'
import { MAX_PENDING_CLAIMS } from '../../core/limits.ts'
import { unwatchAbort, watchAbort } from '../../core/time/abort.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import { queueMicrotask } from '../../core/time/native-time.ts'
import type { RateLimitResult } from './limits.ts'

export interface RateWaitingParts {
  readonly clock: Clock
  consume(key: string, cost: number): Promise<RateLimitResult>
  /** What is known without asking. */
  refusal(key: string, cost: number): RateLimitResult | undefined
}

export interface RateWait {
  readonly key: string
  readonly cost: number
  readonly waitMs: number
  readonly signal: AbortSignal | undefined
}

/** Those who wait for units. Who has to wait for a key stands in line, and only the first of a line asks. */
export class RateWaiting {
  readonly #parts: RateWaitingParts
  readonly #lines = new Map<string, Set<() => void>>()
  /** Who sleeps until its key has units again: the first of each line. */
  readonly #sleepers = new Map<string, () => void>()
  /** What is being asked for. A refusal that was on its way when the key was reset says nothing any more. */
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

  /** There may be units for the key before it was expected. */
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
    let state: 'in line' | 'asking' | 'sleeping' | 'over' = 'in line'
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
      // Nobody gives units back, so this is certain as long as the key is not reset.
      if (retryAfterSeconds * 1_000 > untilMs - clock.now().monotonicMs) {
        refuse(retryAfterSeconds)
      } else if (leave === undefined) {
        state = 'in line'
        leave = this.#join(key, ask)
      } else {
        state = 'sleeping'
        this.#sleepers.set(key, wakeUp)
        sleep = clock.setTimer(wakeUp, Math.ceil(retryAfterSeconds * 1_000), true)
      }
    }

    // For those who are still behind others by then. One that is asking gets its answer, unless the store is silent.
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
    else if (this.#lines.has(key)) leave = this.#join(key, ask)
    else void ask()
  }

  /** Calls `lead`, once, when everybody who came before has left; at once for the first. Returns what leaves the line. */
  #join(key: string, lead: () => Promise<void>): () => void {
    const line = this.#lines.get(key) ?? new Set()
    this.#lines.set(key, line)
    const turn = (): void => void lead()
    line.add(turn)
    // In a microtask: the caller has to know how to leave first.
    if (line.size === 1) queueMicrotask(turn)
    return () => {
      const [first] = line
      if (!line.delete(turn)) return
      const [next] = line
      if (next === undefined) this.#lines.delete(key)
      else if (first === turn) next()
    }
  }
}

/** A timer and the one that it is measured against may fall into the same moment: then there is still time to ask. */
const DEADLINE_GRACE_MS = 5
/** How long an answer may still take that was asked for in time. */
const ANSWER_GRACE_MS = 100
