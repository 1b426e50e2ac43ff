import { checkBoolean, checkMetadata, checkSignal, ttlMsFrom, waitMsFrom } from '../../core/arguments.ts'
import type { ClaimRequest } from '../../core/claim/holder.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { checkLockName } from '../../core/names.ts'
import { checkOptions, type OptionNames, optionNames } from '../../core/options.ts'

export interface LockOptions {
  /**
   * The lease's time to live. From 0.05 to one year.
   *
   * @default 30
   */
  timeoutSeconds?: number
  /**
   * Whether to wait for a lock that is held. False answers at once, so that an instance that finds a job taken skips it
   * instead of queueing and doing it a second time.
   *
   * @default false, or true with a `blockingTimeoutSeconds` above 0
   */
  blocking?: boolean
  /**
   * How long to wait for a lock that is held. It implies `blocking: true` unless `blocking` is false; 0 does not wait.
   *
   * @default 10 with `blocking: true`
   */
  blockingTimeoutSeconds?: number
  /** Shown to everyone who asks who holds the lock. Plain JSON of at most 16 KiB. */
  metadata?: Record<string, unknown>
  /** Ends the wait: the call rejects with an `AbortedError`. It does not end a granted lease. */
  signal?: AbortSignal
  /**
   * Renews the lease until it is released.
   *
   * @default true in `hold…` and `with…`, false in `acquire…`
   */
  heartbeat?: boolean
  /**
   * A release before this time keeps the lock until the time has passed. So an instance whose clock is late does not
   * run a scheduled job a second time.
   *
   * @default 0
   */
  minHoldSeconds?: number
  /**
   * The heartbeat stops renewing after this time, so that work that hangs does not hold its lock forever.
   *
   * @default no limit
   */
  maxHoldSeconds?: number
  /**
   * A lease that the same task holds while it waits for this lock, so that a deadlock between the two can be detected.
   * Inside the function of a `with…` this is known. After `hold` or `acquire` it is not: pass the lease here.
   */
  under?: Lease
}

export interface PermitOptions extends LockOptions {
  /**
   * How many permits to take, all or none. At most the limit.
   *
   * @default 1
   */
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

/** Options for all calls that do not set them. */
export type LockDefaults = Omit<LockOptions, 'under'>

export interface DefaultsOption {
  /** Options for all calls that do not set them: `{ timeoutSeconds: 60, blocking: true }`. */
  defaults?: LockDefaults
}

/** What part of a lock is claimed: all of it, a reader's part, or permits of a limit. */
export type RequestedShare = Pick<ClaimRequest, 'mode' | 'limit' | 'permits'>

export const EXCLUSIVE: RequestedShare = { mode: 'exclusive' }

/** Checks every argument before anything is sent. */
export function claimRequestFrom(
  lockName: string,
  options: LockOptions,
  heartbeatByDefault: boolean,
  share: RequestedShare = EXCLUSIVE,
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

/** What a call says about waiting overrides the defaults, and a waiting time implies that it waits. */
function waitMsOf(options: LockOptions, defaults: LockDefaults): number {
  const { blockingTimeoutSeconds = defaults.blockingTimeoutSeconds ?? 10 } = options
  const saysHowLong = options.blockingTimeoutSeconds !== undefined
  const waitsByDefault = saysHowLong || (defaults.blocking ?? defaults.blockingTimeoutSeconds !== undefined)
  const { blocking = waitsByDefault } = options
  const waitMs = waitMsFrom('blockingTimeoutSeconds', blockingTimeoutSeconds)
  return checkBoolean('blocking', blocking) ? waitMs : 0
}

/** Finds mistakes when the instance is made, not at each call. */
export function checkDefaults(defaults: LockDefaults): LockDefaults {
  claimRequestFrom('defaults', checkOptions(defaults, DEFAULTS, 'defaults'), false)
  return { ...defaults }
}
