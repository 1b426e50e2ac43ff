import type { Clock } from '../../core/time/clock.ts'
import { setImmediate } from '../../core/time/native-time.ts'
import { type Random, systemRandom } from '../../core/time/random.ts'
import { isBusy, storeErrorFrom } from './errors.ts'

/** How long to try for the write lock. A transaction of ours takes well under a millisecond. */
export const MAX_BUSY_MS = 2_000

export interface Wait {
  readonly untilMs?: number | undefined
  /** It goes before others: its pauses stay short. */
  readonly isUrgent?: boolean
  readonly mayPass?: (error: unknown) => boolean
}

/**
 * How the connections of many processes wait for one write lock. The processes that wait must leave the machine to the
 * one that works, and it must not have to pass the lock on after each transaction: its caches are warm. So the pauses
 * grow, with jitter. A process that has waited long pauses less again, so that none waits too long. A wait begins with
 * half of the pause that the last one needed.
 */
export class Patience {
  readonly #clock: Clock
  readonly #random: Random
  #lastPauseMs = 0
  #forgetAtMs = 0

  constructor(clock: Clock, random: Random = systemRandom) {
    this.#clock = clock
    this.#random = random
  }

  /** Repeats `attempt` while another process has the lock that it needs. A failed attempt must change nothing. */
  async untilFree<T>(path: string, attempt: () => T, wait: Wait = {}): Promise<T> {
    const startedMs = this.#clock.now().monotonicMs
    const { untilMs = startedMs + MAX_BUSY_MS, isUrgent = false, mayPass = isBusy } = wait
    let pauseMs = 0
    for (let tries = 1; ; tries += 1) {
      try {
        return attempt()
      } catch (error) {
        const nowMs = this.#clock.now().monotonicMs
        if (!mayPass(error) || nowMs >= untilMs) throw storeErrorFrom(error, path)
        pauseMs = isUrgent
          ? urgentPauseMs(tries)
          : this.#nextPauseMs(pauseMs, { tries, nowMs, waitedMs: nowMs - startedMs })
        await this.#pause(pauseMs)
      }
    }
  }

  /** At first, 0 for one turn of the event loop: most transactions of another process are over by then. */
  #nextPauseMs(
    beforeMs: number,
    { tries, nowMs, waitedMs }: { tries: number; nowMs: number; waitedMs: number },
  ): number {
    const knownMs = nowMs < this.#forgetAtMs ? this.#lastPauseMs : 0
    if (beforeMs === 0 && tries <= SPINS && knownMs < CROWD_PAUSE_MS) return 0
    const longestMs = Math.max(MAX_PAUSE_MS / 2 ** Math.floor(waitedMs / EAGER_EVERY_MS), EAGER_PAUSE_MS)
    const pauseMs = Math.min(beforeMs === 0 ? Math.max(knownMs / 2, 1) : beforeMs * GROWTH, longestMs)
    this.#lastPauseMs = pauseMs
    this.#forgetAtMs = nowMs + pauseMs + FORGET_AFTER_MS
    return pauseMs
  }

  #pause(ms: number): Promise<void> {
    if (ms === 0) return new Promise((resolve) => setImmediate(resolve))
    const jitter = 0.5 + this.#random.fraction() / 2
    return new Promise((resolve) => {
      this.#clock.setTimer(resolve, Math.max(ms * jitter, 1), true)
    })
  }
}

const urgentPauseMs = (tries: number): number => (tries <= SPINS ? 0 : Math.min(2 ** (tries - SPINS), URGENT_PAUSE_MS))

const SPINS = 16
const GROWTH = 1.5
const MAX_PAUSE_MS = 128
/** The longest pause is halved each time that a call has waited for so long, down to the other one. */
const EAGER_EVERY_MS = 500
const EAGER_PAUSE_MS = 16
const URGENT_PAUSE_MS = 8
/** If the last wait needed such a pause, the next one does not begin with turns of the event loop. */
const CROWD_PAUSE_MS = 8
const FORGET_AFTER_MS = 1_000
