import type { RateAnswer, RateRequest } from '../../core/driver.ts'

/**
 * One step of the generic cell rate algorithm, under several limits at once: all of them allow it, or none is charged.
 *
 * What is kept for a limit is one moment: when the bucket will be empty again. A request moves it by its cost, and may not move it
 * further ahead than the burst reaches.
 */
export function consumeStep(
  { cost, limits }: RateRequest,
  arrivalsMs: readonly number[],
  nowMs: number,
): { answer: RateAnswer; arrivalsMs: readonly number[] } {
  const steps = limits.map(({ limit, periodMs, burst }, index) => {
    const spacingMs = periodMs / limit
    const usedMs = Math.max((arrivalsMs[index] ?? 0) - nowMs, 0)
    return { spacingMs, usedMs, fullMs: spacingMs * burst, wantedMs: usedMs + spacingMs * cost }
  })
  const allowed = steps.every(({ wantedMs, fullMs }) => wantedMs <= fullMs + ROUNDING_MS)
  const after = steps.map((step) => ({ ...step, usedMs: allowed ? step.wantedMs : step.usedMs }))
  return {
    arrivalsMs: after.map(({ usedMs }) => nowMs + usedMs),
    answer: {
      allowed,
      remaining: Math.min(
        ...after.map(({ fullMs, usedMs, spacingMs }) =>
          Math.max(0, Math.floor((fullMs - usedMs + ROUNDING_MS) / spacingMs)),
        ),
      ),
      retryAfterMs: allowed ? 0 : Math.max(...steps.map(({ wantedMs, fullMs }) => wantedMs - fullMs)),
      resetAfterMs: Math.max(...after.map(({ usedMs }) => usedMs)),
    },
  }
}

/** Sums of fractions of a millisecond come out a hair too large. */
const ROUNDING_MS = 1e-6
