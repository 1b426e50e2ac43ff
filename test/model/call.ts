import type { Clock, Timer } from '../../src/core/time/clock.ts'
import { HoldfastError, type HoldfastErrorCode, type Semaphore } from '../../src/index.ts'
import type { Closes } from './instance.ts'
import type { Model } from './model.ts'
import type { Call, Step } from './program.ts'

interface CallOptions {
  readonly clock: Clock
  readonly model: Model
  readonly step: Step
  readonly what: string
  /** How long a call may take beside the time that it waits for a lock. */
  readonly patienceMs: number
  /** Whether the store may lack what the call needs. */
  readonly unsupported: boolean
  readonly ended: (how: string) => void
}

/** One call: what it is called, when it must have an answer, and which errors are expected. */
export class CallInFlight {
  readonly what: string
  readonly signal: AbortSignal | undefined
  readonly #model: Model
  readonly #timers: Timer[] = []
  readonly #ended: (how: string) => void
  readonly #always: readonly HoldfastErrorCode[]

  constructor({ clock, model, step, what, patienceMs, unsupported, ended }: CallOptions) {
    this.what = what
    this.#always = unsupported ? ['UNSUPPORTED'] : []
    this.#model = model
    this.#ended = ended
    const { abortAfterSeconds, blockingTimeoutSeconds } = step.options
    const waits = CLAIMS.has(step.call) ? blockingTimeoutSeconds : step.call === 'close' ? step.seconds + 1 : 0
    const rule = waits > 0 ? 'everything settles' : 'nothing waits that did not ask to'
    const late = (): void => model.violate(rule, `${what} has no answer`)
    this.#timers.push(clock.setTimer(late, waits * 1_000 + patienceMs))
    if (abortAfterSeconds === 0) return
    const abort = new AbortController()
    this.signal = abort.signal
    this.#timers.push(clock.setTimer(() => abort.abort(new Error('by the program')), abortAfterSeconds * 1_000))
  }

  /** It has its lease: what it does from now on takes as long as it likes. */
  answered(): void {
    this.#timers[0]?.cancel()
  }

  /** The result, or undefined after an error that was to be expected. */
  async result<T>(work: Promise<T>, expected: Expected): Promise<T | undefined> {
    let result: T | undefined
    const error = await this.error(
      work.then((value) => {
        result = value
      }),
      expected,
    )
    return error === undefined ? result : undefined
  }

  /** The error that it rejects with, if any. */
  async error(work: Promise<unknown>, { codes, object }: Expected): Promise<unknown> {
    try {
      await work
      this.#ended('done')
      return undefined
    } catch (error) {
      this.#ended(error instanceof HoldfastError ? error.code : 'thrown')
      const isKnown = (code: HoldfastErrorCode): boolean =>
        [...codes, ...this.#always].includes(code) || (code === 'CLOSED' && object?.closed === true)
      const isExpected = error instanceof HoldfastError ? isKnown(error.code) : error instanceof ThrownByProgram
      if (!isExpected) this.#model.violate('errors are expected', `${this.what} rejected with ${error}`)
      return error
    } finally {
      for (const timer of this.#timers) timer.cancel()
    }
  }
}

export interface Expected {
  readonly codes: readonly HoldfastErrorCode[]
  /** `ClosedError` is expected once it is closed. */
  readonly object?: Closes
}

const CLAIMS: ReadonlySet<Call> = new Set<Call>(['acquire', 'hold', 'using', 'with', 'withLocks', 'once', 'campaign'])
export const NONE: Expected = { codes: [] }

/** `asksAgain`: a claim that is overtaken by another task of its instance, and a later member of several locks. */
export function claimErrors(
  { call, options }: Step,
  object: Closes,
  { latencyMs, asksAgain }: { readonly latencyMs: number; readonly asksAgain: boolean },
): Expected {
  const codes: HoldfastErrorCode[] = call === 'acquire' ? [] : ['NOT_ACQUIRED']
  if (options.abortAfterSeconds > 0) codes.push('ABORTED')
  const { blockingTimeoutSeconds } = options
  if (blockingTimeoutSeconds > 0) codes.push('DEADLOCK')
  // Nothing is known of a store that cannot answer in the waiting time, or in what is left of it.
  const isShort = blockingTimeoutSeconds * 1_000 <= 10 * latencyMs || (asksAgain && latencyMs > 0)
  if (blockingTimeoutSeconds > 0 && isShort) codes.push('STORE_UNAVAILABLE')
  return { codes, object }
}

export function lockOptions({ options, share, call }: Step, signal: AbortSignal | undefined): PermitOptions {
  const { timeoutSeconds, blockingTimeoutSeconds, heartbeat, minHoldSeconds, maxHoldSeconds, permits } = options
  return {
    ...(timeoutSeconds > 0 && { timeoutSeconds }),
    ...(blockingTimeoutSeconds > 0 && { blockingTimeoutSeconds }),
    ...(heartbeat !== undefined && { heartbeat }),
    ...(minHoldSeconds > 0 && { minHoldSeconds }),
    ...(maxHoldSeconds > 0 && { maxHoldSeconds }),
    ...(signal && { signal }),
    ...(share === 'permits' && call !== 'withLocks' && { permits }),
  }
}

type PermitOptions = NonNullable<Parameters<Semaphore['hold']>[1]>

export class ThrownByProgram extends Error {
  constructor() {
    super('thrown by the program')
  }
}

export function ignoreThrown(error: unknown): void {
  if (!(error instanceof ThrownByProgram)) throw error
}
