import type { Clock } from './clock.ts'

/** The same result, or a rejection with what `late` returns after `ms`. The work itself goes on. */
export function withTimeout<T>(clock: Clock, ms: number, work: Promise<T>, late: () => Error): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.setTimer(() => reject(late()), ms, true)
    const settled = (): void => timer.cancel()
    work.then(resolve, reject)
    work.then(settled, settled)
  })
}

/** Whether the work is done within `ms`. Rejects if the work does. Work that is not done goes on. */
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
