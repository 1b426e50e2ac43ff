import type { Clock } from '../../core/time/clock.ts'
import { setImmediate } from '../../core/time/native-time.ts'
import { isBusy, storeErrorFrom } from './errors.ts'

/**
 * How long to try for the write lock before the store counts as unavailable. A transaction of ours takes well under a
 * millisecond.
 */
export const MAX_BUSY_MS = 2_000

/**
 * Repeats `attempt` while another process has the lock that it needs, without blocking the event loop. An attempt that
 * fails for that reason must have changed nothing.
 */
export async function untilFree<T>(
  clock: Clock,
  path: string,
  attempt: () => T,
  { untilMs = clock.now().monotonicMs + MAX_BUSY_MS, mayPass = isBusy }: BusyOptions = {},
): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return attempt()
    } catch (error) {
      if (!mayPass(error) || clock.now().monotonicMs >= untilMs) throw storeErrorFrom(error, path)
      await pause(clock, tries)
    }
  }
}

export interface BusyOptions {
  readonly untilMs?: number
  /** Which errors are worth another attempt. */
  readonly mayPass?: (error: unknown) => boolean
}

/** The first pauses last one turn of the event loop: most transactions of another process are over by then. */
function pause(clock: Clock, tries: number): Promise<void> {
  if (tries <= SPINS) return new Promise((resolve) => setImmediate(resolve))
  return new Promise((resolve) => {
    clock.setTimer(resolve, 1 + (tries % 3), true)
  })
}

const SPINS = 16
