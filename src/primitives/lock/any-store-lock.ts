import { isDeepStrictEqual } from 'node:util'
import { storeOpener } from '../../connect.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { checkObject } from '../../core/options.ts'
import { type DistributedLockOptions, DistributedLock as LockOnDriver } from './distributed-lock.ts'

/**
 * Makes sure that only one process, and only one task of it, does a job at a time.
 *
 * Share one instance in a process. Its tasks exclude each other as they exclude other processes. Nothing waits unless
 * you ask for it with `blocking` or `blockingTimeoutSeconds`. It opens any store by its URL; the class of the same name
 * in `holdfast/lock` takes only drivers, for small bundles.
 *
 * @example
 * ```ts
 * const lock = new DistributedLock({ url: 'redis://localhost:6379' })
 * await lock.withLock('order:123', async (lease) => {
 *   await ship(123, { fencingToken: lease.fencingToken })
 * })
 * ```
 */
export class DistributedLock extends LockOnDriver {
  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(options?: DistributedLockOptions) {
    super(options, storeOpener)
  }
}

/**
 * Returns the one `DistributedLock` of this process. The first call's options configure it; without options it uses the
 * store that `HOLDFAST_URL` names. After it was closed, the next call makes a new one, with the options of that call or
 * else those of the last one.
 *
 * @throws `InvalidArgumentError` for options that differ from those of the first call: the caller would get another
 * lock than it asked for
 */
export function getDistributedLock(options?: DistributedLockOptions): DistributedLock {
  // Null, as from a missing configuration, must not select the default store.
  if (options !== undefined) checkObject(options)
  if (shared === undefined || shared.lock.closed) {
    const chosen = { ...(options ?? shared?.options) }
    shared = { lock: new DistributedLock(chosen), options: chosen }
  } else if (options !== undefined) {
    const different = differences(options, shared.options)
    // Only their names: a URL may contain a password.
    if (different.length > 0) {
      const which = different.map((name) => `options.${name}`).join(', ')
      throw new InvalidArgumentError(which, 'another', 'left out, or the same as in the first call')
    }
  }
  return shared.lock
}

let shared: { readonly lock: DistributedLock; readonly options: DistributedLockOptions } | undefined

/** The names of the options that differ. Plain objects are compared by value, drivers and clocks by identity. */
function differences(a: DistributedLockOptions, b: DistributedLockOptions): string[] {
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])] as (keyof DistributedLockOptions)[]
  return names.filter((name) => {
    const isPlain = name === 'defaults' || name === 'heartbeatThread'
    return !(isPlain ? isDeepStrictEqual(a[name], b[name]) : Object.is(a[name], b[name]))
  })
}
