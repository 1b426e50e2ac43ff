import { checkMethods, ttlMsFrom } from '../core/arguments.ts'
import { HoldfastError, type HoldfastErrorCode, StoreError } from '../core/errors.ts'
import { isA } from '../core/foreign-errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { withTimeout } from '../core/time/abort.ts'
import { systemClock } from '../core/time/clock.ts'

/** The members of a `DistributedLock`, or of another primitive with `ping`, that are used. */
export interface HealthTarget {
  readonly closed: boolean
  ping(): Promise<void>
}

export interface HealthOptions {
  /**
   * How long the store may take to answer. Keep it below the timeout of the probe that asks.
   *
   * @default 2
   */
  deadlineSeconds?: number
}

/** What a health check found. `reason` contains no password. */
export type HealthReport =
  | { readonly status: 'up' }
  | { readonly status: 'down'; readonly code: HoldfastErrorCode; readonly reason: string }

const OPTIONS = optionNames<HealthOptions>({ deadlineSeconds: true })

/**
 * Returns a function that reports whether the store works and the instance is open. It never rejects. Calls that
 * overlap share one ping, so that many requests for a public health page are not as many writes to the store.
 *
 * @throws `InvalidArgumentError`
 */
export function healthCheck(target: HealthTarget, options: HealthOptions = {}): () => Promise<HealthReport> {
  checkMethods('lock', target, ['ping'], 'an instance with ping, such as a DistributedLock')
  const { deadlineSeconds = 2 } = checkOptions(options, OPTIONS)
  const timeoutMs = ttlMsFrom('deadlineSeconds', deadlineSeconds)
  const late = (): StoreError => new StoreError(`the store did not answer within ${deadlineSeconds} s`)
  let pinging: Promise<void> | undefined
  const ended = (): void => {
    pinging = undefined
  }
  const ping = async (): Promise<void> => target.ping()
  return async () => {
    // While it drains, the store still answers; but this process must get no more requests.
    if (target.closed) return { status: 'down', code: 'CLOSED', reason: 'this process is shutting down' }
    try {
      // Not cleared in `ping`: that ends before it is assigned here if the target throws at once.
      pinging ??= ping().finally(ended)
      await withTimeout(systemClock, timeoutMs, pinging, late)
      return { status: 'up' }
    } catch (error) {
      return { status: 'down', ...faultOf(error) }
    }
  }
}

/** Only our own messages are known to contain no password. A driver that the caller wrote may throw anything. */
function faultOf(error: unknown): { code: HoldfastErrorCode; reason: string } {
  if (isA(error, HoldfastError)) return { code: error.code, reason: error.message }
  return { code: 'STORE_UNAVAILABLE', reason: 'the store failed with an error that is not shown here' }
}
