import type { Clock, Instant, Timer } from '../core/time/clock.ts'
import { setImmediate } from '../core/time/native-time.ts'
import type { Random } from '../core/time/random.ts'

/**
 * Time that passes only when a test advances it. Due events run one after the other. Each is followed by everything
 * that it caused in its own turn of the event loop, so a run is the same every time.
 *
 * @example
 * ```ts
 * const time = new VirtualTime()
 * const lock = new DistributedLock({ driver, clock: time.clock() })
 * const held = lock.hold('order:123', { timeoutSeconds: 30, heartbeat: false })
 * await time.run(31_000)
 * console.log((await held).held) // false
 * ```
 */
export class VirtualTime {
  #nowMs = 0
  #stalledUntilMs = 0
  #sequence = 0
  /** Sorted by time, and by the order in which they were added. */
  readonly #events: TimeEvent[] = []

  get nowMs(): number {
    return this.#nowMs
  }

  /** The end of the last `stall`, in which nothing ran. */
  get stalledUntilMs(): number {
    return this.#stalledUntilMs
  }

  /** The clock of one process in this time. */
  clock(options: VirtualClockOptions = {}): VirtualClock {
    return new VirtualClock(this, options)
  }

  /** Runs `run` in `delayMs` from now, unless the returned timer is cancelled. */
  in(delayMs: number, run: () => void): Timer {
    const event = { atMs: this.#nowMs + Math.max(delayMs, 0), sequence: this.#sequence++, run }
    this.#events.splice(this.#placeOf(event), 0, event)
    return {
      cancel: () => {
        const place = this.#placeOf(event)
        if (this.#events[place] === event) this.#events.splice(place, 1)
      },
    }
  }

  /**
   * Blocks the event loop: the time is later in the next statement, and nothing has run meanwhile. Every other process
   * stops as well, as on a machine with one core.
   */
  stall(ms: number): void {
    this.#nowMs += ms
    this.#stalledUntilMs = this.#nowMs
  }

  /** Lets `ms` pass, and runs all that becomes due. */
  async run(ms: number): Promise<void> {
    const untilMs = this.#nowMs + ms
    await this.runUntil(() => (this.#events[0]?.atMs ?? Number.POSITIVE_INFINITY) > untilMs)
    this.#nowMs = Math.max(this.#nowMs, untilMs)
  }

  /** Runs event after event until `done` returns true or no event is left. Returns how many ran. */
  async runUntil(done: () => boolean): Promise<number> {
    let ran = 0
    for (await turn(); !done(); await turn()) {
      const event = this.#events.shift()
      if (event === undefined) break
      this.#nowMs = Math.max(this.#nowMs, event.atMs)
      event.run()
      ran += 1
    }
    return ran
  }

  #placeOf(event: TimeEvent): number {
    let low = 0
    let high = this.#events.length
    while (low < high) {
      const middle = (low + high) >> 1
      const other = this.#events[middle] as TimeEvent
      const before = other.atMs < event.atMs || (other.atMs === event.atMs && other.sequence < event.sequence)
      if (before) low = middle + 1
      else high = middle
    }
    return low
  }
}

interface TimeEvent {
  readonly atMs: number
  readonly sequence: number
  readonly run: () => void
}

export interface VirtualClockOptions {
  /**
   * How far the wall clock of this process is ahead.
   * @default 0
   */
  readonly wallOffsetMs?: number
  /**
   * How fast both of its clocks run: 0.99 is 1 % slow.
   * @default 1
   */
  readonly rate?: number
  /**
   * What a process runs first when it resumes: what was due first, its timers, or its messages.
   * @default 'due'
   */
  readonly resumeOrder?: ResumeOrder
}

export type ResumeOrder = 'due' | 'timers' | 'messages'

/**
 * The clocks of one process, which can be wrong, set, paused or suspended. While the process is stopped, its timers and
 * its messages wait. They run when it resumes, as in a real process.
 *
 * @example
 * ```ts
 * const time = new VirtualTime()
 * const clock = time.clock({ rate: 0.99 })
 * const lock = new DistributedLock({ driver, clock })
 * const lease = await lock.hold('order:123', { timeoutSeconds: 30 })
 * clock.pause(60_000) // as SIGSTOP and, a minute later, SIGCONT
 * await time.run(60_001)
 * console.log(lease.held) // false
 * ```
 */
export class VirtualClock implements Clock {
  readonly rate: number
  /** Called when the process resumes, before anything of the process itself has run. */
  readonly onResume = new Set<() => void>()
  readonly #time: VirtualTime
  readonly #resumeOrder: ResumeOrder
  #wallOffsetMs: number
  #suspendedSinceMs: number | undefined
  #stoodStillMs = 0
  #running = true
  #resumedAtMs = 0
  #wallMovedAtMs = Number.NEGATIVE_INFINITY
  #timers = 0
  #backlog: Backlogged[] = []

  constructor(time: VirtualTime, { wallOffsetMs = 0, rate = 1, resumeOrder = 'due' }: VirtualClockOptions) {
    this.#time = time
    this.#wallOffsetMs = wallOffsetMs
    this.rate = rate
    this.#resumeOrder = resumeOrder
  }

  get running(): boolean {
    return this.#running
  }

  /** The end of the last stop of the process. */
  get runningSinceMs(): number {
    return Math.max(this.#resumedAtMs, this.#time.stalledUntilMs)
  }

  /** When the wall clock was last set, or went on while the monotonic clock was stopped. */
  get wallMovedAtMs(): number {
    return this.#wallMovedAtMs
  }

  /** How many timers have neither run nor been cancelled. */
  get timers(): number {
    return this.#timers
  }

  now(): Instant {
    const stillMs = this.#suspendedSinceMs === undefined ? 0 : this.#time.nowMs - this.#suspendedSinceMs
    return {
      monotonicMs: (this.#time.nowMs - this.#stoodStillMs - stillMs) * this.rate,
      wallMs: EPOCH_MS + this.#wallOffsetMs + this.#time.nowMs * this.rate,
    }
  }

  /** As in Node: whole milliseconds, at least one, and one for NaN. */
  setTimer(run: () => void, delayMs: number): Timer {
    const atMs = this.now().monotonicMs + (delayMs >= 1 ? Math.trunc(delayMs) : 1)
    let event: Timer | undefined
    let over = false
    this.#timers += 1
    const end = (): void => {
      if (!over) this.#timers -= 1
      over = true
      event?.cancel()
    }
    const fire = (): void => {
      if (over) return
      if (!this.#running) {
        this.#backlog.push({ timer: true, run: fire })
        return
      }
      const missingMs = atMs - this.now().monotonicMs
      if (missingMs > ROUNDING_MS) {
        event = this.#time.in(missingMs / this.rate, fire)
        return
      }
      end()
      run()
    }
    event = this.#time.in((atMs - this.now().monotonicMs) / this.rate, fire)
    return { cancel: end }
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.setTimer(resolve, ms)
    })
  }

  /** A message that reaches this process after `delayMs`, or when it runs again. */
  receive(delayMs: number, run: () => void): void {
    const arrive = (): void => {
      if (this.#running) run()
      else this.#backlog.push({ timer: false, run: arrive })
    }
    this.#time.in(delayMs, arrive)
  }

  /** Sets the wall clock, forwards or back. */
  stepWall(ms: number): void {
    this.#wallOffsetMs += ms
    this.#wallMovedAtMs = this.#time.nowMs
  }

  /** SIGSTOP and SIGCONT. Has no effect on a process that is already stopped. */
  pause(ms: number): void {
    if (!this.#running) return
    this.#running = false
    this.#time.in(ms, () => this.#resume())
  }

  /** The machine sleeps: as `pause`, and the monotonic clock stops. */
  suspend(ms: number): void {
    if (!this.#running) return
    this.#suspendedSinceMs = this.#time.nowMs
    this.pause(ms)
  }

  #resume(): void {
    const { nowMs } = this.#time
    if (this.#suspendedSinceMs !== undefined) {
      this.#stoodStillMs += nowMs - this.#suspendedSinceMs
      this.#suspendedSinceMs = undefined
      this.#wallMovedAtMs = nowMs
    }
    this.#running = true
    this.#resumedAtMs = nowMs
    const backlog = this.#backlog
    this.#backlog = []
    const first = this.#resumeOrder === 'timers'
    if (this.#resumeOrder !== 'due') backlog.sort((a, b) => Number(b.timer === first) - Number(a.timer === first))
    for (const { run } of backlog) this.#time.in(0, run)
    for (const tell of [...this.onResume]) tell()
  }
}

interface Backlogged {
  readonly timer: boolean
  readonly run: () => void
}

/** Random numbers from a seed. The same seed gives the same numbers. */
export interface SeededRandom extends Random {
  /** At least `least`, at most `most`. */
  whole(least: number, most: number): number
  chance(probability: number): boolean
  pick<T>(list: readonly [T, ...T[]]): T
  /** An independent sequence: drawing from it does not change what others draw. */
  fork(): SeededRandom
}

/** Random numbers from a seed, by Mulberry32: small, and good enough to choose faults. */
export function seededRandom(seed: number): SeededRandom {
  let state = seed >>> 0
  const fraction = (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  const whole = (least: number, most: number): number => least + Math.floor(fraction() * (most - least + 1))
  return {
    fraction,
    id: () => Array.from({ length: 16 }, () => whole(0, 35).toString(36)).join(''),
    whole,
    chance: (probability) => fraction() < probability,
    pick: (list) => list[whole(0, list.length - 1)] as (typeof list)[0],
    fork: () => seededRandom(Math.floor(fraction() * 2 ** 32)),
  }
}

/** All microtasks and ticks run before an immediate. */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

const EPOCH_MS = Date.UTC(2026, 0, 1)
const ROUNDING_MS = 1e-6
