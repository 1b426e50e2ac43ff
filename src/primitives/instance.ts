import { hostname } from 'node:os'
import { checkMethods, ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import { type CreateHeartbeat, Holder, type HolderOptions } from '../core/claim/holder.ts'
import type { Driver } from '../core/driver.ts'
import { ClosedError, InvalidArgumentError, UnsupportedError } from '../core/errors.ts'
import { Emitter } from '../core/events.ts'
import type { ThreadOptions } from '../core/lease/renewer-thread.ts'
import {
  CALL_TIMEOUT_MS,
  CLOSE_TIMEOUT_MS,
  DEADLOCK_AFTER_MS,
  STALLED_AFTER_MS,
  WAITER_TTL_MS,
} from '../core/limits.ts'
import { checkHolderId } from '../core/names.ts'
import { checkOptions, type OptionNames, optionNames } from '../core/options.ts'
import { redactedUrl } from '../core/secrets.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { type Random, systemRandom } from '../core/time/random.ts'
import { settlesWithin } from '../core/time/timeout.ts'

export interface InstanceOptions {
  /** A driver made by the caller, who also closes it. */
  driver?: Driver
  /**
   * Which store: `memory:`, `redis://…`, … The instance opens it with its first use and closes it. Without `url` and
   * `driver`, `HOLDFAST_URL` names it; without that, it is a SQLite file, which excludes the processes of this machine
   * only. A `url` that is passed but undefined or empty is an error, never the default.
   */
  url?: string
  /** Who holds: shown to others. Host, process and a random part if not said. */
  holderId?: string
  /** How long a call to the store may take before it counts as unanswered: 5. */
  callTimeoutSeconds?: number
  /** How long a waiter that died can delay those behind it: 10. */
  waiterTtlSeconds?: number
  /**
   * After how long a claim that waits looks whether it waits in a circle: 1. Only claims that are made while others are held look, see `under` in the
   * options of a claim. False, or 0: never; then a deadlock ends when somebody's waiting time or lease does.
   */
  deadlockAfterSeconds?: number | false
  /**
   * Renews from a worker thread with a connection of its own, so that a blocked event loop does not lose a lease. It covers a main
   * thread that shows no life for at most `stalledAfterSeconds` (30): one that hangs for ever loses its locks. For
   * drivers that can be opened in a thread; `UnsupportedError` otherwise.
   */
  heartbeatThread?: boolean | { stalledAfterSeconds?: number }
  /** For tests: time and randomness. */
  clock?: Clock
  random?: Random
}

/** The names of the options above, for the primitives that have more. */
export const INSTANCE_OPTIONS: OptionNames<InstanceOptions> = {
  driver: true,
  url: true,
  holderId: true,
  callTimeoutSeconds: true,
  waiterTtlSeconds: true,
  deadlockAfterSeconds: true,
  heartbeatThread: true,
  clock: true,
  random: true,
}

export interface CloseOptions {
  /**
   * For how long work that has begun may go on: functions under a lease, and whatever is held until it is released. New claims are rejected from the beginning,
   * except those that such a function makes. 0 if not said.
   */
  drainSeconds?: number
  /**
   * How long closing may take after that, whatever the store does: 5. First the signals of leases abort; functions that run under one have three fifths of this time
   * to settle, and keep their locks until they have; one that itself waits for this to end uses up that time. Then everything is released. What the store has not answered by the end fails with `ClosedError`, and leases are left to expire.
   */
  timeoutSeconds?: number
}

/** What only `holdfast` has: in a bundle of `holdfast/lock`, every store and the thread would be most of the code. */
export interface Extras {
  /** The URL that was given, else the environment's, else the embedded default. */
  chooseUrl(url?: string): string
  checkUrl(url: unknown): void
  connect(url: string): Promise<Driver>
  threadHeartbeat(options: ThreadOptions): CreateHeartbeat
}

/** What lies beneath every primitive: a holder on the store that was asked for, which is opened with its first use. */
export class Instance {
  readonly holderId: string
  readonly events = new Emitter()
  readonly #what: string
  readonly #settings: Omit<HolderOptions, 'driver'>
  readonly #extras: Extras | undefined
  readonly #ownUrl: string | undefined
  #holder: Holder | undefined
  #opening: Promise<Holder> | undefined
  #closing: Promise<void> | undefined
  #ended = false

  /**
   * Throws `InvalidArgumentError`. Opens nothing yet. `what` is the primitive's name, for errors; `known` are its
   * options, if it has others than these.
   */
  constructor(
    what: string,
    options: InstanceOptions,
    extras: Extras | undefined,
    known: ReadonlySet<string> = OPTIONS,
  ) {
    checkOptions(options, known)
    const { driver, url } = options
    if (driver !== undefined) checkMethods('driver', driver, DRIVER_METHODS, DRIVER_RULE)
    if (driver !== undefined && url !== undefined)
      throw new InvalidArgumentError('url', redactedUrl(url), 'left out when a driver is passed')
    this.#what = what
    this.#extras = extras
    this.#settings = settingsFrom(options, extras, this.events)
    this.holderId = this.#settings.holderId
    if (driver !== undefined) {
      this.#holder = new Holder({ ...this.#settings, driver })
      return
    }
    refuseUnsetStore(options)
    if (extras === undefined) throw new InvalidArgumentError('driver', driver, DRIVER_NEEDED)
    this.#ownUrl = extras.chooseUrl(url)
    extras.checkUrl(this.#ownUrl)
  }

  get clock(): Clock {
    return this.#settings.clock
  }

  /** The holder if the store is open: one promise less on the way of every claim. */
  get holder(): Holder | undefined {
    return this.#holder
  }

  /** Opens the store if it is not open. Throws what `connect` throws; the next call then tries anew. */
  open(): Promise<Holder> {
    this.assertOpen()
    this.#opening ??= this.#open()
    return this.#opening
  }

  /** Opens the store if it is not open, and proves that it works: see `DistributedLock.ping`. */
  async ping(): Promise<void> {
    this.assertNotEnded()
    await (this.#holder ?? (await this.open())).ping()
  }

  get closed(): boolean {
    return this.#closing !== undefined
  }

  assertOpen(): void {
    if (this.#closing !== undefined) throw new ClosedError(`this ${this.#what} is closed`)
  }

  /** For what may still be done while running work is let come to its end. */
  assertNotEnded(): void {
    if (this.#ended) this.assertOpen()
  }

  /** As `CloseOptions` says. Throws `InvalidArgumentError`. */
  close(options: CloseOptions = {}): Promise<void> {
    const { drainSeconds = 0, timeoutSeconds = CLOSE_TIMEOUT_MS / 1_000 } = checkOptions(options, CLOSE_OPTIONS)
    const drainMs = waitMsFrom('drainSeconds', drainSeconds)
    const timeoutMs = waitMsFrom('timeoutSeconds', timeoutSeconds)
    this.#closing ??= this.#close(drainMs, timeoutMs)
    return this.#closing
  }

  async #open(): Promise<Holder> {
    if (this.#holder !== undefined) return this.#holder
    let driver: Driver
    try {
      driver = await (this.#extras as Extras).connect(this.#ownUrl as string)
    } catch (error) {
      // A store that was down at the first use need not be down for ever.
      this.#opening = undefined
      throw error
    }
    try {
      // Closing does not wait for a store that takes too long to open.
      if (this.#ended) this.assertOpen()
      this.#holder = new Holder({ ...this.#settings, driver })
      return this.#holder
    } catch (error) {
      await driver.close()
      throw error
    }
  }

  async #close(drainMs: number, timeoutMs: number): Promise<void> {
    const { clock } = this.#settings
    if (drainMs > 0) await this.#holder?.drain(drainMs)
    this.#ended = true
    const isDone = await settlesWithin(clock, timeoutMs, this.#end(timeoutMs * SETTLING))
    if (isDone) return
    // The store does not answer. Neither what was asked of it nor its connections may keep the process from its end.
    this.#holder?.forceClose()
    void this.#closeStore()?.catch(() => undefined)
  }

  async #end(settleMs: number): Promise<void> {
    await this.#opening?.catch(() => undefined)
    await this.#holder?.close(settleMs)
    await this.#closeStore()
  }

  #closeStore(): Promise<void> | undefined {
    return this.#ownUrl === undefined ? undefined : this.#holder?.store.driver.close()
  }
}

const OPTIONS = optionNames<InstanceOptions>(INSTANCE_OPTIONS)

/**
 * `{ url: process.env.REDIS_URL }` without the variable must not become a lock that excludes only this machine. Nor must
 * a driver that was never made.
 */
function refuseUnsetStore(options: InstanceOptions): void {
  for (const name of ['url', 'driver'] as const) {
    if (!Object.hasOwn(options, name) || options.url) continue
    const rule =
      name === 'url'
        ? 'a store’s URL (is the environment variable set that it comes from?). To use HOLDFAST_URL, or else a SQLite ' +
          'file of this machine, leave it out'
        : 'a driver. To use a url instead, leave it out'
    throw new InvalidArgumentError(name, options[name], rule)
  }
}

function settingsFrom(
  options: InstanceOptions,
  extras: Extras | undefined,
  events: Emitter,
): Omit<HolderOptions, 'driver'> {
  const { clock = systemClock, random = systemRandom, heartbeatThread = false } = options
  checkMethods('clock', clock, ['now', 'setTimer'], 'a clock')
  checkMethods('random', random, ['fraction', 'id'], 'a source of randomness')
  const { holderId = `${hostname()}:${process.pid}:${random.id()}` } = options
  const { callTimeoutSeconds = CALL_TIMEOUT_MS / 1_000, waiterTtlSeconds = WAITER_TTL_MS / 1_000 } = options
  checkHolderId(holderId)
  const callTimeoutMs = ttlMsFrom('callTimeoutSeconds', callTimeoutSeconds)
  const waiterTtlMs = ttlMsFrom('waiterTtlSeconds', waiterTtlSeconds)
  const deadlockAfterMs = deadlockAfterMsFrom(options)
  const settings = { clock, random, holderId, callTimeoutMs, waiterTtlMs, deadlockAfterMs, events }
  if (typeof heartbeatThread !== 'boolean' && (typeof heartbeatThread !== 'object' || heartbeatThread === null)) {
    throw new InvalidArgumentError('heartbeatThread', heartbeatThread, 'true, false or an object')
  }
  if (heartbeatThread === false) return settings
  const { stalledAfterSeconds = STALLED_AFTER_MS / 1_000 } =
    heartbeatThread === true ? {} : checkOptions(heartbeatThread, THREAD_OPTIONS, 'heartbeatThread')
  const stalledAfterMs = ttlMsFrom('heartbeatThread.stalledAfterSeconds', stalledAfterSeconds)
  if (extras === undefined) throw new UnsupportedError(NO_THREAD)
  return { ...settings, thread: extras.threadHeartbeat({ callTimeoutMs, stalledAfterMs }) }
}

const DRIVER_METHODS = ['acquire', 'renew', 'release', 'inspect', 'close']
/** The usual slip is a driver that is still being opened. */
const DRIVER_RULE = 'a driver (one that is opened asynchronously has to be awaited)'
const DRIVER_NEEDED =
  'a driver, such as redisDriver({ client }) or await openRedis(url): holdfast/lock opens no store by its URL. Import ' +
  'DistributedLock from holdfast for that'
const NO_THREAD = 'holdfast/lock has no heartbeatThread: import DistributedLock from holdfast for it'

const CLOSE_OPTIONS = optionNames<CloseOptions>({ drainSeconds: true, timeoutSeconds: true })

const THREAD_OPTIONS = optionNames<{ stalledAfterSeconds: number }>({ stalledAfterSeconds: true })

function deadlockAfterMsFrom({
  deadlockAfterSeconds = DEADLOCK_AFTER_MS / 1_000,
}: InstanceOptions): number | undefined {
  const afterMs = deadlockAfterSeconds === false ? 0 : waitMsFrom('deadlockAfterSeconds', deadlockAfterSeconds)
  return afterMs === 0 ? undefined : afterMs
}

/** The part of closing in which functions may settle; the rest is for the releases. */
const SETTLING = 0.6
