import { hostname } from 'node:os'
import type { StoreOpener } from '../connect.ts'
import { checkHolderId, checkMethods, ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import type { CreateHeartbeat, HolderOptions } from '../core/claim/holder.ts'
import type { Driver } from '../core/driver.ts'
import { InvalidArgumentError, UnsupportedError } from '../core/errors.ts'
import { Emitter } from '../core/events.ts'
import { CALL_TIMEOUT_MS, DEADLOCK_AFTER_MS, STALLED_AFTER_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { checkOptions, type OptionNames, optionNames } from '../core/options.ts'
import { redactedUrl } from '../core/secrets.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { type Random, systemRandom } from '../core/time/random.ts'

export interface InstanceOptions {
  /** A driver that you made. You also close it. */
  driver?: Driver
  /**
   * The store: `memory:`, `sqlite:path`, `redis://…`, … The instance opens it when it is first used. Instances
   * of a process that name the same URL share its connections, and the last one that is closed closes them.
   *
   * Without `url` and `driver`, the environment variable `HOLDFAST_URL` names the store. Without that, it is a SQLite
   * file, which excludes only the processes of this machine. A `url` that is passed but undefined or empty is an error,
   * never the default.
   */
  url?: string
  /**
   * Identifies this instance to others: in `LockInfo`, in events and in errors.
   *
   * @default host name, process id and a random part
   */
  holderId?: string
  /**
   * How long a call to the store may take. After that its outcome is unknown: a `StoreError`.
   *
   * @default 5
   */
  callTimeoutSeconds?: number
  /**
   * How long a waiter that died can delay the waiters behind it.
   *
   * @default 10
   */
  waiterTtlSeconds?: number
  /**
   * A waiting claim checks for a deadlock after this time. Only claims that are made while others are held can be part
   * of one; see `under` in `LockOptions`. With `false` or 0 nothing is checked, and a deadlock lasts until one of the
   * waiting times or leases in it ends. Nothing is checked with a driver that cannot show who waits (`redlock`).
   *
   * @default 1
   */
  deadlockAfterSeconds?: number | false
  /**
   * Renews leases from a worker thread with a connection of its own, so that a blocked event loop does not lose them.
   * The thread stops when the main thread has shown no sign of life for `stalledAfterSeconds` (default 30): a process
   * that hangs forever loses its locks. Throws `UnsupportedError` for a driver
   * that a thread cannot open: memory, postgres-advisory, and every driver on a client that you pass in.
   *
   * @default false
   */
  heartbeatThread?: boolean | { stalledAfterSeconds?: number }
  /**
   * The first claim of the process with a longer `timeoutSeconds` emits a warning (`HOLDFAST_LONG_TTL`), because it is
   * often a number of milliseconds. Set it if you want such leases.
   *
   * @default 3600
   */
  warnAboveSeconds?: number
  /** For tests: replaces the system's clocks and timers. */
  clock?: Clock
  /** For tests: replaces the system's randomness. */
  random?: Random
}

/** The names of these options, for primitives that add their own. */
export const INSTANCE_OPTIONS: OptionNames<InstanceOptions> = {
  driver: true,
  url: true,
  holderId: true,
  callTimeoutSeconds: true,
  waiterTtlSeconds: true,
  deadlockAfterSeconds: true,
  heartbeatThread: true,
  warnAboveSeconds: true,
  clock: true,
  random: true,
}

const OPTIONS = optionNames<InstanceOptions>(INSTANCE_OPTIONS)

/** Everything that a holder needs except its driver. */
export type HolderSettings = Omit<HolderOptions, 'driver'>

/** Checks the options of a primitive. `known` are the names of all its options, if it has more than these. */
export function settingsFrom(
  options: InstanceOptions,
  opener: StoreOpener | undefined,
  known: ReadonlySet<string> = OPTIONS,
): HolderSettings {
  checkOptions(options, known)
  const { driver, url, clock = systemClock, random = systemRandom } = options
  if (driver !== undefined) checkMethods('driver', driver, DRIVER_METHODS, DRIVER_RULE)
  if (driver !== undefined && url !== undefined)
    throw new InvalidArgumentError('url', redactedUrl(url), 'left out when a driver is passed')
  checkMethods('clock', clock, ['now', 'setTimer'], 'a clock')
  checkMethods('random', random, ['fraction', 'id'], 'a source of randomness')
  const {
    holderId = `${hostname()}:${process.pid}:${random.id()}`,
    callTimeoutSeconds = CALL_TIMEOUT_MS / 1_000,
    waiterTtlSeconds = WAITER_TTL_MS / 1_000,
    deadlockAfterSeconds = DEADLOCK_AFTER_MS / 1_000,
    warnAboveSeconds = WARN_ABOVE_SECONDS,
  } = options
  checkHolderId(holderId)
  const callTimeoutMs = ttlMsFrom('callTimeoutSeconds', callTimeoutSeconds)
  const waiterTtlMs = ttlMsFrom('waiterTtlSeconds', waiterTtlSeconds)
  const afterMs = deadlockAfterSeconds === false ? 0 : waitMsFrom('deadlockAfterSeconds', deadlockAfterSeconds)
  const warnAboveMs = ttlMsFrom('warnAboveSeconds', warnAboveSeconds)
  const deadlockAfterMs = afterMs === 0 ? undefined : afterMs
  const thread = threadFrom(options, opener, callTimeoutMs)
  const events = new Emitter()
  const times = { callTimeoutMs, waiterTtlMs, deadlockAfterMs, warnAboveMs }
  return { clock, random, holderId, events, ...times, ...(thread && { thread }) }
}

/**
 * The URL of the store that an instance without a driver opens.
 *
 * @throws `InvalidArgumentError`
 */
export function urlFrom(options: InstanceOptions, opener: StoreOpener | undefined): string {
  refuseUnsetStore(options)
  if (opener === undefined) throw new InvalidArgumentError('driver', options.driver, DRIVER_NEEDED)
  return opener.chooseUrl(options.url)
}

/**
 * `{ url: process.env.REDIS_URL }` without that variable must not become a lock that excludes only this machine. The
 * same goes for a driver that was never made.
 */
function refuseUnsetStore(options: InstanceOptions): void {
  for (const name of ['url', 'driver'] as const) {
    if (!Object.hasOwn(options, name) || options.url) continue
    const rule =
      name === 'url'
        ? 'a store’s URL (is the environment variable set that it comes from?). To use HOLDFAST_URL, or else a ' +
          'SQLite file of this machine, leave it out'
        : 'a driver. To use a url instead, leave it out'
    throw new InvalidArgumentError(name, options[name], rule)
  }
}

function threadFrom(
  { heartbeatThread = false }: InstanceOptions,
  opener: StoreOpener | undefined,
  callTimeoutMs: number,
): CreateHeartbeat | undefined {
  if (typeof heartbeatThread !== 'boolean' && (typeof heartbeatThread !== 'object' || heartbeatThread === null)) {
    throw new InvalidArgumentError('heartbeatThread', heartbeatThread, 'true, false or an object')
  }
  if (heartbeatThread === false) return undefined
  const { stalledAfterSeconds = STALLED_AFTER_MS / 1_000 } =
    heartbeatThread === true ? {} : checkOptions(heartbeatThread, THREAD_OPTIONS, 'heartbeatThread')
  const stalledAfterMs = ttlMsFrom('heartbeatThread.stalledAfterSeconds', stalledAfterSeconds)
  if (opener === undefined) throw new UnsupportedError(NO_THREAD)
  return opener.threadHeartbeat({ callTimeoutMs, stalledAfterMs })
}

const WARN_ABOVE_SECONDS = 3_600
const THREAD_OPTIONS = optionNames<{ stalledAfterSeconds: number }>({ stalledAfterSeconds: true })

const DRIVER_METHODS = ['acquire', 'renew', 'release', 'inspect', 'close']
/** The usual mistake is a missing `await`. */
const DRIVER_RULE = 'a driver (one that is opened asynchronously has to be awaited)'
const DRIVER_NEEDED =
  'a driver, such as redisDriver({ client }) or await openRedis(url): holdfast/lock opens no store by its URL. ' +
  'Import DistributedLock from holdfast for that'
const NO_THREAD = 'holdfast/lock has no heartbeatThread: import DistributedLock from holdfast for it'
