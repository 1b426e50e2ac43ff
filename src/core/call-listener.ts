import { attempt, isA, safeCause, textOf } from './foreign-errors.ts'
import { outsideLocks } from './reentry-context.ts'

/**
 * Calls a user's function that is only notified, outside of every lock's context. If it throws or rejects, a warning is
 * emitted: an error in an application's logging must neither stop a heartbeat nor end the process. What it returns is
 * awaited, whether it is a promise of this realm, one of another realm (as in Jest), or a thenable.
 */
export function callListener<Args extends readonly unknown[]>(
  what: string,
  listener: (...args: Args) => unknown,
  ...args: Args
): void {
  const failed = (error: unknown): void => warnOfFault(what, error)
  outsideLocks(() => {
    try {
      const result = listener(...args)
      if (result !== undefined) Promise.resolve(result).catch(failed)
    } catch (error) {
      failed(error)
    }
  })
}

/** Emits a process warning for an error in the user's code that has no caller to be thrown to. */
export function warnOfFault(what: string, error: unknown): void {
  process.emitWarning(`${what} threw ${textOf(error)}`, {
    type: 'HoldfastWarning',
    code: 'HOLDFAST_LISTENER_FAILED',
    detail: attempt(() => isA(error, Error) && safeCause(error).stack) || '',
  })
}
