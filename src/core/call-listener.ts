import { outsideLocks } from './reentry-context.ts'

/**
 * Calls a function of the user's that is only told of something, as a task inside of no lock. What it throws, or rejects
 * with, is a warning: a fault in somebody's logging must neither stop a heartbeat nor end the process.
 */
export function callListener<Told extends readonly unknown[]>(
  what: string,
  listener: (...told: Told) => unknown,
  ...told: Told
): void {
  const failed = (error: unknown): void => warnOfFault(what, error)
  outsideLocks(() => {
    try {
      const result = listener(...told)
      if (result instanceof Promise) result.catch(failed)
    } catch (error) {
      failed(error)
    }
  })
}

/** For an error of the user's own that there is nobody to throw to. */
export function warnOfFault(what: string, error: unknown): void {
  process.emitWarning(`${what} threw ${String(error)}`, {
    type: 'HoldfastWarning',
    code: 'HOLDFAST_LISTENER_FAILED',
    detail: (error instanceof Error && error.stack) || '',
  })
}
