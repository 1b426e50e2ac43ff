import { outsideLocks } from '../reentry-context.ts'
import { clearTimeout, hrtime, setImmediate, setTimeout, wallClock } from './native-time.ts'

/**
 * The source of time and timers. It is passed in, so that tests can run all of Holdfast in virtual time.
 *
 * An instant has the values of two clocks, because neither is enough for a deadline: the monotonic clock does not
 * advance while the machine is suspended, and the wall clock can be set. A deadline has passed as soon as it has on one
 * of them.
 */
export interface Clock {
  /** The current time on both clocks. */
  now(): Instant
  /**
   * Calls `run` once after `delayMs`.
   *
   * @param keepsAlive whether the timer keeps the process alive. By default it does not.
   */
  setTimer(run: () => void, delayMs: number, keepsAlive?: boolean): Timer
  /**
   * Calls `run` after pending timers and I/O have been served. Absent in a clock whose time advances only on command.
   */
  nextTurn?(run: () => void): void
}

/** One moment on both clocks, in milliseconds. */
export interface Instant {
  /** The monotonic clock, which never goes backwards. Its zero point is arbitrary. */
  readonly monotonicMs: number
  /** The wall clock, in milliseconds since 1970. It may jump in either direction. */
  readonly wallMs: number
}

export interface Timer {
  /** Cancels the timer. Has no effect once the timer has fired. */
  cancel(): void
  /** Changes whether the timer keeps the process alive. Absent in a clock that never does, such as a virtual one. */
  keepAlive?(keepsAlive: boolean): void
}

/** Node fires a timer of more than 2^31 − 1 ms (24.8 days) at once. */
const MAX_TIMER_MS = 2_147_483_647

/** The clocks and timers of the operating system. */
export const systemClock: Clock = {
  now() {
    // Not performance.now(): its origin differs between threads, and the main thread reads a worker's deadlines.
    const [seconds, nanoseconds] = hrtime()
    return { monotonicMs: seconds * 1_000 + nanoseconds / 1_000_000, wallMs: wallClock.nowMs() }
  },
  setTimer(run, delayMs, keepsAlive = false) {
    let isAlive = keepsAlive
    let timer = startTimer(run, delayMs)
    // A longer delay takes several timers.
    function startTimer(then: () => void, ms: number): NodeJS.Timeout {
      const isLong = ms > MAX_TIMER_MS
      const startRest = (): void => {
        timer = startTimer(then, ms - MAX_TIMER_MS)
      }
      const started = outsideLocks(() =>
        isLong ? setTimeout(startRest, MAX_TIMER_MS) : setTimeout(then, Math.max(0, ms)),
      )
      if (!isAlive) started.unref()
      return started
    }
    return {
      cancel: () => clearTimeout(timer),
      keepAlive(on) {
        isAlive = on
        if (on) timer.ref()
        else timer.unref()
      },
    }
  },
  nextTurn: (run) => void setImmediate(run),
}

/**
 * Calls `run` when what has arrived was read. If the event loop was blocked, the answer that `run` is about to miss may
 * be in a socket's buffer, which is read before the next turn.
 */
export function afterReading(clock: Clock, run: () => void): void {
  if (clock.nextTurn === undefined) run()
  else clock.nextTurn(run)
}

export const later = (instant: Instant, ms: number): Instant => ({
  monotonicMs: instant.monotonicMs + ms,
  wallMs: instant.wallMs + ms,
})

/** Whether the deadline has passed on either clock. */
export const isPast = (deadline: Instant, now: Instant): boolean =>
  now.monotonicMs >= deadline.monotonicMs || now.wallMs >= deadline.wallMs

/** When the deadline will have passed, on the monotonic clock, if the wall clock is not set before. */
export const dueAtMs = (deadline: Instant, now: Instant): number =>
  Math.min(deadline.monotonicMs, now.monotonicMs + deadline.wallMs - now.wallMs)

/**
 * The earlier value of each clock. They are compared separately, because a suspend or a clock step moves them apart.
 */
export const earlier = (a: Instant, b: Instant): Instant => ({
  monotonicMs: Math.min(a.monotonicMs, b.monotonicMs),
  wallMs: Math.min(a.wallMs, b.wallMs),
})
