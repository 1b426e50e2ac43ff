import { type Clock, systemClock } from '../../core/time/clock.ts'
import { wallClock } from '../../core/time/native-time.ts'

/** Reads only the wall clock of the two clocks of the system: the other one would double the cost of a step. */
export const wallClockOf = (clock: Clock): (() => number) =>
  clock === systemClock ? () => wallClock.nowMs() : () => clock.now().wallMs

/**
 * Sweeps what is no longer used out of memory, a bounded part at a time, so that no call waits for it.
 *
 * @param round checks everything once, and yields after each check. Returns whether anything is left
 * @returns call it when something is added. It sweeps until nothing is left
 */
export function createSweep(clock: Clock, round: () => Generator<undefined, boolean>): () => void {
  let current = round()
  let isSweeping = false

  function sweepPart(): void {
    for (let checked = 0; checked < MAX_CHECKED; checked += 1) {
      const { done, value } = current.next()
      if (!done) continue
      current = round()
      isSweeping = value
      if (isSweeping) clock.setTimer(sweepPart, SWEEP_EVERY_MS)
      return
    }
    clock.setTimer(sweepPart, 1)
  }

  return () => {
    if (isSweeping) return
    isSweeping = true
    clock.setTimer(sweepPart, SWEEP_EVERY_MS)
  }
}

const SWEEP_EVERY_MS = 1_000
const MAX_CHECKED = 2_000
