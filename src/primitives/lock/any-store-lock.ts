import { isDeepStrictEqual } from 'node:util'
import { InvalidArgumentError } from '../../core/errors.ts'
import { checkObject } from '../../core/options.ts'
import { everything } from '../everything.ts'
import { type DistributedLockOptions, DistributedLock as LockOnDriver } from './distributed-lock.ts'

/** As that of `holdfast/lock`, and opens any store by its URL. */
export class DistributedLock extends LockOnDriver {
  /** Throws `InvalidArgumentError`. Opens nothing yet. */
  constructor(options?: DistributedLockOptions) {
    super(options, everything)
  }
}

/**
 * One for the process: on the store that `HOLDFAST_URL` names, or as the first call's options say. A later call may leave them out; options that differ from
 * the first ones are an `InvalidArgumentError`, because whoever gave them would get another lock than they asked for. After it was closed, the next call makes
 * a new one, with the options it is given or else those of before.
 */
export function getDistributedLock(options?: DistributedLockOptions): DistributedLock {
  // Null, as from a configuration that is not there, would otherwise be the default store.
  if (options !== undefined) checkObject(options)
  if (shared === undefined || shared.lock.closed) {
    const chosen = { ...(options ?? shared?.options) }
    shared = { lock: new DistributedLock(chosen), options: chosen }
  } else if (options !== undefined) {
    const different = differences(options, shared.options)
    // Their names only: a URL has a password in it.
    if (different.length > 0) {
      const which = different.map((name) => `options.${name}`).join(', ')
      throw new InvalidArgumentError(which, 'another', 'left out, or the same as in the first call')
    }
  }
  return shared.lock
}

let shared: { readonly lock: DistributedLock; readonly options: DistributedLockOptions } | undefined

/** The names of the options that differ. Plain values may be alike; a driver, a clock or a signal is the same one or another. */
function differences(a: DistributedLockOptions, b: DistributedLockOptions): string[] {
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])] as (keyof DistributedLockOptions)[]
  return names.filter((name) => {
    const isPlain = name === 'defaults' || name === 'heartbeatThread'
    return !(isPlain ? isDeepStrictEqual(a[name], b[name]) : Object.is(a[name], b[name]))
  })
}
