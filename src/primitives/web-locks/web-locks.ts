import { storeOpener } from '../../connect.ts'
import { isStorable, ttlMsFrom } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { optionNames } from '../../core/options.ts'
import { Instance } from '../instance.ts'
import { INSTANCE_OPTIONS, type InstanceOptions } from '../instance-options.ts'
import { Primitive } from '../primitive.ts'
import { createLockManager, type LockManager } from './lock-manager.ts'

export {
  Lock,
  type LockGrantedCallback,
  type LockManagerSnapshot,
  type LockMode,
  type WebLockInfo as LockInfo,
  type WebLockOptions as LockOptions,
} from './lock.ts'
export { LockManager } from './lock-manager.ts'

export interface WebLocksOptions extends InstanceOptions {
  /**
   * The beginning of the lock names in the store. Managers with the same prefix on one store share their locks, like
   * pages of one origin. At most 100 characters.
   *
   * @default 'web:'
   */
  prefix?: string
  /**
   * The time to live of a lease. A heartbeat renews it while the lock is held. The lock of a process that died stays
   * held for this long.
   *
   * @default 10
   */
  timeoutSeconds?: number
}

const OPTIONS = optionNames<WebLocksOptions>({ ...INSTANCE_OPTIONS, prefix: true, timeoutSeconds: true })

/**
 * The Web Locks API of `navigator.locks`, on any store: `locks` is a `LockManager` with the interface of the
 * specification, for code that was written for browsers. What the specification does not have is here: closing, events,
 * and the `holderId`, which `query` shows as the `clientId`.
 *
 * Closing does what happens when a page goes away: waiting requests end, held locks are released, and their promises
 * reject with an `AbortError`. Later calls reject with an `InvalidStateError`.
 *
 * @example
 * ```ts
 * const { locks } = new WebLocks({ url: 'redis://localhost:6379' })
 * await locks.request('report', async () => { await createReport() })
 * ```
 */
export class WebLocks extends Primitive {
  /** What `navigator.locks` is in a browser. */
  readonly locks: LockManager

  /**
   * Opens nothing yet.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(options: WebLocksOptions = {}) {
    const instance = new Instance('WebLocks', options, storeOpener, OPTIONS)
    super(instance)
    const { prefix = 'web:', timeoutSeconds = 10 } = options
    const ttlMs = ttlMsFrom('timeoutSeconds', timeoutSeconds)
    this.locks = createLockManager({ instance, prefix: checkPrefix(prefix), ttlMs })
  }
}

function checkPrefix(prefix: unknown): string {
  if (typeof prefix !== 'string' || prefix.length > MAX_PREFIX_LENGTH || !isStorable(prefix)) {
    throw new InvalidArgumentError(
      'prefix',
      prefix,
      `text of at most ${MAX_PREFIX_LENGTH} characters, without NUL and lone surrogates`,
    )
  }
  return prefix
}

const MAX_PREFIX_LENGTH = 100
