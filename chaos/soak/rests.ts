/** Longer pauses are multiples of this: Node keeps a list for each length of a timer, and thousands cost too much. */
const STEP_MS = 100

/** The pauses of all tasks. They can all be ended at once. */
export class Rests {
  readonly #waking = new Set<() => void>()
  readonly #setTimer: typeof setTimeout
  readonly #clearTimer: typeof clearTimeout
  #isOver = false

  /** Takes the timers as they are now, before those of the package under test are counted. */
  constructor() {
    this.#setTimer = globalThis.setTimeout
    this.#clearTimer = globalThis.clearTimeout
  }

  get isOver(): boolean {
    return this.#isOver
  }

  rest(ms: number): Promise<void> {
    if (this.#isOver) return Promise.resolve()
    return new Promise((resolve) => {
      const wake = (): void => {
        this.#clearTimer.call(globalThis, timer)
        this.#waking.delete(wake)
        resolve()
      }
      const roundMs = ms > 10 * STEP_MS ? Math.ceil(ms / STEP_MS) * STEP_MS : ms
      const timer = this.#setTimer.call(globalThis, wake, roundMs)
      this.#waking.add(wake)
    })
  }

  /** Ends all pauses, and those to come. */
  end(): void {
    this.#isOver = true
    for (const wake of [...this.#waking]) wake()
  }
}
