import { LIMIT, ONCE_SECONDS } from './program.ts'
import type { Rule } from './rules.ts'

export interface JobsAndLimitsOptions {
  readonly nowMs: () => number
  readonly violate: (rule: Rule, text: string) => void
}

/** The rules of once-only jobs and rate limits. */
export class JobsAndLimits {
  readonly #options: JobsAndLimitsOptions
  readonly #done = new Map<string, { readonly fromMs: number; readonly untilMs: number; readonly result: string }>()
  readonly #consumed = new Map<string, number[]>()

  constructor(options: JobsAndLimitsOptions) {
    this.#options = options
  }

  /** A once-only job begins. */
  jobBegan(key: string): void {
    const done = this.#done.get(key)
    if (done === undefined || this.#options.nowMs() < done.fromMs || this.#options.nowMs() >= done.untilMs) return
    this.#options.violate('a job runs once', `"${key}" began again in its period`)
  }

  /** `ranHere`: when its function ended, if this call ran it. */
  jobDone(key: string, result: unknown, ranHere: number | undefined): void {
    const done = this.#done.get(key)
    if (ranHere !== undefined) {
      const untilMs = ranHere + ONCE_SECONDS * 1_000 - 10
      this.#done.set(key, { fromMs: this.#options.nowMs(), untilMs, result: String(result) })
    } else if (done !== undefined && this.#options.nowMs() < done.untilMs && done.result !== result) {
      this.#options.violate('a job runs once', `"${key}" gave ${result}, not ${done.result}`)
    }
  }

  consumed(key: string, sentMs: number): void {
    const taken = this.#consumed.get(key) ?? []
    this.#consumed.set(key, taken)
    taken.push(sentMs)
    const most = LIMIT.limit + LIMIT.burst
    const within = taken.filter((each) => this.#options.nowMs() - each < LIMIT.periodSeconds * 1_000)
    if (within.length > most)
      this.#options.violate('a limit is kept', `${within.length} units of "${key}" in one period`)
  }
}
