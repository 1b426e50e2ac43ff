import { onAbort } from './abort.ts'
import type { Clock } from './clock.ts'

/**
 * Resolves after `ms`, or when one of the signals aborts. Never rejects: the caller checks its state afterwards anyway.
 */
export function pause(clock: Clock, ms: number, ...signals: readonly (AbortSignal | undefined)[]): Promise<void> {
  if (signals.some((signal) => signal?.aborted)) return Promise.resolve()
  return new Promise((resolve) => {
    // Not AbortSignal.any: it leaks an entry for every pause in a signal that outlives the pause.
    const stop = (): void => {
      timer.cancel()
      for (const stopListening of listeners) stopListening()
      resolve()
    }
    const timer = clock.setTimer(stop, ms, true)
    const listeners = signals.flatMap((signal) => (signal === undefined ? [] : [onAbort(signal, stop)]))
  })
}
