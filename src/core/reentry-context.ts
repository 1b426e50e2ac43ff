import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * Which callback of a `with…` is running. `primitives/lock/reentry.ts` decides what is in it; it is here because everything that
 * calls a user's function from a timer, a socket or another task has to leave it first.
 *
 * One storage for all instances: Node visits every storage that was ever used for every promise that is made.
 */
export const reentryContext = new AsyncLocalStorage<unknown>()

/**
 * Calls a function as a task that is inside of no lock. Timers and sockets keep the context in which they were made. A
 * listener that runs there would enter the lock of the task that happened to arm the timer, beside that task.
 */
export function outsideLocks<T>(call: () => T): T {
  return reentryContext.getStore() === undefined ? call() : reentryContext.run(undefined, call)
}
