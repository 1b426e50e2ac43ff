import { checkBoolean, checkMetadata, checkSignal, ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import type { ClaimRequest } from '../core/holder.ts'
import type { Lease } from '../core/lease.ts'
import { checkLockName } from '../core/names.ts'
import { checkOptions, type OptionNames, optionNames } from '../core/options.ts'

export interface LockOptions {
  /** The lease's time to live. 30 if not said; from 0.05 to one year. */
  timeoutSeconds?: number
  /** False: answer at once instead of waiting. True if not said. */
  blocking?: boolean
  /** How long to wait for a lock that is held. 10 if not said; 0 is the same as `blocking: false`. */
  blockingTimeoutSeconds?: number
  /** Shown to whoever asks who holds the lock. Plain JSON, at most 16 KiB. */
  metadata?: Record<string, unknown>
  /** Gives up waiting. It does not end a lease that was granted. */
  signal?: AbortSignal
  /** Renews the lease until it is released. False in `acquire…`, true in `hold…` and `with…`, if not said. */
  heartbeat?: boolean
  /**
   * A release before this time keeps the lock for others until it has passed: an instance whose clock is late does not run a
   * scheduled job a second time.
   */
  minHoldSeconds?: number
  /** The heartbeat stops renewing after this time, so that work that hangs does not hold its lock for ever. */
  maxHoldSeconds?: number
  /**
   * A lease that the same line of work holds while it waits for this one, so that a deadlock between the two can be noticed. Inside the function of a `with…` this
   * is known without saying; after a `hold` or an `acquire` it is not.
   */
  under?: Lease
}

export interface PermitOptions extends LockOptions {
  /** How many permits to take, all of them or none. 1 if not said, at most the limit. */
  permits?: number
}

const NAMES: OptionNames<LockOptions> = {
  timeoutSeconds: true,
  blocking: true,
  blockingTimeoutSeconds: true,
  metadata: true,
  signal: true,
  heartbeat: true,
  minHoldSeconds: true,
  maxHoldSeconds: true,
  under: true,
}
const LOCK_OPTIONS = optionNames<LockOptions>(NAMES)
const PERMIT_OPTIONS = optionNames<PermitOptions>({ ...NAMES, permits: true })

/** How much of a lock is asked for: all of it, a reader's share, or permits of a limit. */
export type Share = Pick<ClaimRequest, 'mode' | 'limit' | 'permits'>

export const EXCLUSIVE: Share = { mode: 'exclusive' }

/** Checks every argument before anything is sent. */
export function claimRequestFrom(
  lockName: string,
  options: LockOptions,
  heartbeatByDefault: boolean,
  share: Share = EXCLUSIVE,
): ClaimRequest {
  checkLockName(lockName)
  const {
    timeoutSeconds = 30,
    blocking = true,
    blockingTimeoutSeconds = 10,
    metadata,
    signal,
    heartbeat = heartbeatByDefault,
    minHoldSeconds = 0,
    maxHoldSeconds,
  } = checkOptions(options, share.limit === undefined ? LOCK_OPTIONS : PERMIT_OPTIONS)
  const waitMs = waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds)
  return {
    lockName,
    mode: share.mode,
    limit: share.limit,
    permits: share.permits,
    ttlMs: ttlMsFrom('timeoutSeconds', timeoutSeconds),
    waitMs: checkBoolean('blocking', blocking) ? waitMs : 0,
    metadata: metadata === undefined ? undefined : checkMetadata(metadata),
    signal: signal === undefined ? undefined : checkSignal('signal', signal),
    heartbeat: checkBoolean('heartbeat', heartbeat),
    minHoldMs: waitMsFrom('minHoldSeconds', minHoldSeconds),
    maxHoldMs: maxHoldSeconds === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('maxHoldSeconds', maxHoldSeconds),
  }
}
