import { checkBoolean, checkMetadata, checkSignal, ttlMsFrom, waitMsFrom } from '../../core/arguments.ts'
import type { ClaimRequest } from '../../core/claim/holder.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { checkLockName } from '../../core/names.ts'
import { checkOptions, type OptionNames, optionNames } from '../../core/options.ts'

export interface LockOptions {
  /** The lease's time to live. 30 if not said; from 0.05 to one year. */
  timeoutSeconds?: number
  /**
   * True: wait for a lock that is held. False, or nothing said: answer at once. An instance that finds the job taken skips it, instead of queueing up and doing
   * it a second time.
   */
  blocking?: boolean
  /** How long to wait for a lock that is held: 10 with `blocking: true`. To say it is to wait, unless `blocking` is false; 0 does not wait. */
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

const DEFAULT_NAMES: OptionNames<LockDefaults> = {
  timeoutSeconds: true,
  blocking: true,
  blockingTimeoutSeconds: true,
  metadata: true,
  signal: true,
  heartbeat: true,
  minHoldSeconds: true,
  maxHoldSeconds: true,
}
const NAMES: OptionNames<LockOptions> = { ...DEFAULT_NAMES, under: true }
const DEFAULTS = optionNames<LockDefaults>(DEFAULT_NAMES)
const LOCK_OPTIONS = optionNames<LockOptions>(NAMES)
const PERMIT_OPTIONS = optionNames<PermitOptions>({ ...NAMES, permits: true })

/** What holds for every call that does not say otherwise. */
export type LockDefaults = Omit<LockOptions, 'under'>

export interface DefaultsOption {
  /** Options of the claims for every call that does not say otherwise: `{ timeoutSeconds: 60, blocking: true }`. */
  defaults?: LockDefaults
}

/** How much of a lock is asked for: all of it, a reader's share, or permits of a limit. */
export type LockShare = Pick<ClaimRequest, 'mode' | 'limit' | 'permits'>

export const EXCLUSIVE: LockShare = { mode: 'exclusive' }

/** Checks every argument before anything is sent. */
export function claimRequestFrom(
  lockName: string,
  options: LockOptions,
  heartbeatByDefault: boolean,
  share: LockShare = EXCLUSIVE,
  defaults: LockDefaults = {},
): ClaimRequest {
  checkLockName(lockName)
  const {
    timeoutSeconds = defaults.timeoutSeconds ?? 30,
    metadata = defaults.metadata,
    signal = defaults.signal,
    heartbeat = defaults.heartbeat ?? heartbeatByDefault,
    minHoldSeconds = defaults.minHoldSeconds ?? 0,
    maxHoldSeconds = defaults.maxHoldSeconds,
  } = checkOptions(options, share.limit === undefined ? LOCK_OPTIONS : PERMIT_OPTIONS)
  return {
    lockName,
    mode: share.mode,
    limit: share.limit,
    permits: share.permits,
    ttlMs: ttlMsFrom('timeoutSeconds', timeoutSeconds),
    waitMs: waitMsOf(options, defaults),
    metadata: metadata === undefined ? undefined : checkMetadata(metadata),
    signal: signal === undefined ? undefined : checkSignal('signal', signal),
    heartbeat: checkBoolean('heartbeat', heartbeat),
    minHoldMs: waitMsFrom('minHoldSeconds', minHoldSeconds),
    maxHoldMs: maxHoldSeconds === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('maxHoldSeconds', maxHoldSeconds),
  }
}

/** What a call says of waiting counts before what its instance's defaults say of it, and a time to wait says that it waits. */
function waitMsOf(options: LockOptions, defaults: LockDefaults): number {
  const { blockingTimeoutSeconds = defaults.blockingTimeoutSeconds ?? 10 } = options
  const saysHowLong = options.blockingTimeoutSeconds !== undefined
  const waitsByDefault = saysHowLong || (defaults.blocking ?? defaults.blockingTimeoutSeconds !== undefined)
  const { blocking = waitsByDefault } = options
  const waitMs = waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds)
  return checkBoolean('blocking', blocking) ? waitMs : 0
}

/** Checks what would be wrong with every call. */
export function checkDefaults(defaults: LockDefaults): LockDefaults {
  claimRequestFrom('defaults', checkOptions(defaults, DEFAULTS, 'defaults'), false)
  return { ...defaults }
}
