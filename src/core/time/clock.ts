import { outsideLocks } from '../reentry-context.ts'
import { clearTimeout, hrtime, setImmediate, setTimeout, wallClock } from './native-time.ts'

/**
 * Time, handed in, so that the whole core runs in virtual time under test.
 *
 * An instant is read off both clocks: the monotonic one stands still while a machine sleeps, the wall clock can be set;
 * whoever judges a deadline asks both.
 */
export interface Clock {
  now(): Instant
  /** A timer that does not keep the process alive unless told to. */
  setTimer(run: () => void, delayMs: number, keepsAlive?: boolean): Timer
  /** Runs when timers and sockets have had their turn. Absent where time passes only when told to. */
  nextTurn?(run: () => void): void
}

export interface Instant {
  readonly monotonicMs: number
  readonly wallMs: number
}

export interface Timer {
  cancel(): void
  /** Whether it keeps the process alive from now on. A clock that keeps nothing alive, as a test's, has no such thing. */
  keepAlive?(keepsAlive: boolean): void
}

/** Node fires a timer of more than 2^31 − 1 ms at once. */
const MAX_TIMER_MS = 2_147_483_647

export const systemClock: Clock = {
  now() {
    // Not performance.now(): its origin differs from thread to thread, and a worker's deadlines are read by the main one.
    const [seconds, nanoseconds] = hrtime()
    return { monotonicMs: seconds * 1_000 + nanoseconds / 1_000_000, wallMs: wallClock.nowMs() }
  },
  setTimer(run, delayMs, keepsAlive = false) {
    let isAlive = keepsAlive
    let timer = startTimer(run, delayMs)
    // A longer delay goes in steps: Node's longest is 24.8 days.
    function startTimer(then: () => void, ms: number): NodeJS.Timeout {
      const isLong = ms > MAX_TIMER_MS
      const goOn = (): void => {
        timer = startTimer(then, ms - MAX_TIMER_MS)
      }
      const started = outsideLocks(() => (isLong ? setTimeout(goOn, MAX_TIMER_MS) : setTimeout(then, Math.max(0, ms))))
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

export const later = (instant: Instant, ms: number): Instant => ({
  monotonicMs: instant.monotonicMs + ms,
  wallMs: instant.wallMs + ms,
})

/** Past as soon as either clock says so. */
export const isPast = (deadline: Instant, now: Instant): boolean =>
  now.monotonicMs >= deadline.monotonicMs || now.wallMs >= deadline.wallMs

/** When a deadline will be past, as a moment of the monotonic clock, if both clocks go on as they do. */
export const dueAtMs = (deadline: Instant, now: Instant): number =>
  Math.min(deadline.monotonicMs, now.monotonicMs + deadline.wallMs - now.wallMs)

/** Each clock is judged on its own: after one of them stood still or was set, the two no longer move together. */
export const earlier = (a: Instant, b: Instant): Instant => ({
  monotonicMs: Math.min(a.monotonicMs, b.monotonicMs),
  wallMs: Math.min(a.wallMs, b.wallMs),
})
