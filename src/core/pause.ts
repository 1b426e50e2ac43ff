import type { Clock } from './clock.ts'

/** Resolves after `ms`, or as soon as one of the signals aborts. Never rejects: whoever pauses looks around afterwards anyway. */
export function pause(clock: Clock, ms: number, ...signals: readonly (AbortSignal | undefined)[]): Promise<void> {
  return new Promise((resolve) => {
    // By hand instead of AbortSignal.any: a signal that outlives thousands of pauses must keep nothing of them.
    const stop = (): void => {
      timer.cancel()
      for (const signal of signals) signal?.removeEventListener('abort', stop)
      resolve()
    }
    const timer = clock.setTimer(stop, ms, true)
    for (const signal of signals) signal?.addEventListener('abort', stop)
    if (signals.some((signal) => signal?.aborted)) stop()
  })
}
