import type { Clock } from './clock.ts'

/** Settles as `work` does, or rejects with `late()` after `ms`. The work itself continues. */
export function withTimeout<T>(clock: Clock, ms: number, work: Promise<T>, late: () => Error): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.setTimer(() => reject(late()), ms, true)
    const settled = (): void => timer.cancel()
    work.then(resolve, reject)
    work.then(settled, settled)
  })
}

/** Whether the work resolves within `ms`. Rejects if the work rejects before that. The work itself continues. */
export async function settlesWithin(clock: Clock, ms: number, work: Promise<unknown>): Promise<boolean> {
  const timedOut = new Error('timed out')
  try {
    await withTimeout(clock, ms, work, () => timedOut)
    return true
  } catch (error) {
    if (error === timedOut) return false
    throw error
  }
}
