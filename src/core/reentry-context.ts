import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * The lock callbacks (`withLock`, …) inside which the current task runs. `primitives/lock/reentry.ts` defines the
 * content. The storage is here because core must leave the context before it calls a user's function from a timer, a
 * socket or another task.
 *
 * All instances share one storage, because Node visits every storage in use for every promise that is created.
 */
export const reentryContext = new AsyncLocalStorage<unknown>()

/**
 * Calls a function outside of every lock's context. Timers and sockets keep the context in which they were created. A
 * listener that runs in such a context would re-enter the lock of the task that happened to set the timer, although
 * that task may be running at the same time.
 */
export function outsideLocks<T>(call: () => T): T {
  return reentryContext.getStore() === undefined ? call() : reentryContext.run(undefined, call)
}
