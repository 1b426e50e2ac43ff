import { onAbort } from './abort.ts'
import type { Clock } from './clock.ts'

/** Resolves after `ms`, or as soon as one of the signals aborts. Never rejects: whoever pauses looks around afterwards anyway. */
export function pause(clock: Clock, ms: number, ...signals: readonly (AbortSignal | undefined)[]): Promise<void> {
  if (signals.some((signal) => signal?.aborted)) return Promise.resolve()
  return new Promise((resolve) => {
    // By hand instead of AbortSignal.any: a signal that outlives thousands of pauses must keep nothing of them.
    const stop = (): void => {
      timer.cancel()
      for (const end of listening) end()
      resolve()
    }
    const timer = clock.setTimer(stop, ms, true)
    const listening = signals.flatMap((signal) => (signal === undefined ? [] : [onAbort(signal, stop)]))
  })
}
