import { hostname } from 'node:os'
import { checkUrl, chooseUrl, connect } from '../connect.ts'
import { ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import { type Clock, systemClock } from '../core/clock.ts'
import type { Driver } from '../core/driver.ts'
import { ClosedError, InvalidArgumentError } from '../core/errors.ts'
import { Emitter } from '../core/events.ts'
import { Holder, type HolderOptions } from '../core/holder.ts'
import { CALL_TIMEOUT_MS, DEADLOCK_AFTER_MS, STALLED_AFTER_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { checkHolderId } from '../core/names.ts'
import { type Random, systemRandom } from '../core/random.ts'

export interface InstanceOptions {
  /** A driver made by the caller, who also closes it. */
  driver?: Driver
  /** Which store: `memory:`, … The instance opens it with its first use and closes it. `HOLDFAST_URL` if neither is said. */
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

/** What lies beneath every primitive: a holder on the store that was asked for, which is opened with its first use. */
export class Instance {
  readonly holderId: string
  readonly events = new Emitter()
  readonly #what: string
  readonly #settings: Omit<HolderOptions, 'driver'>
  readonly #ownUrl: string | undefined
  #holder: Holder | undefined
  #opening: Promise<Holder> | undefined
  #closing: Promise<void> | undefined

  /** Throws `InvalidArgumentError`. Opens nothing yet. `what` is the primitive's name, for errors. */
  constructor(what: string, options: InstanceOptions) {
    if (typeof options !== 'object' || options === null) throw new InvalidArgumentError('options', options, 'an object')
    const { driver, url } = options
    if (driver !== undefined) checkDriver(driver)
    if (driver !== undefined && url !== undefined)
      throw new InvalidArgumentError('url', url, 'left out when a driver is passed')
    this.#what = what
    this.#settings = settingsFrom(options, this.events)
    this.holderId = this.#settings.holderId
    if (driver !== undefined) {
      this.#holder = new Holder({ ...this.#settings, driver })
      return
    }
    this.#ownUrl = chooseUrl(url)
    checkUrl(this.#ownUrl)
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

  get closed(): boolean {
    return this.#closing !== undefined
  }

  assertOpen(): void {
    if (this.#closing !== undefined) throw new ClosedError(`this ${this.#what} is closed`)
  }

  /** Gives up what waits, releases what is held, and closes the store if this instance opened it. */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async #open(): Promise<Holder> {
    if (this.#holder !== undefined) return this.#holder
    let driver: Driver
    try {
      driver = await connect(this.#ownUrl as string)
    } catch (error) {
      // A store that was down at the first use need not be down for ever.
      this.#opening = undefined
      throw error
    }
    try {
      this.#holder = new Holder({ ...this.#settings, driver })
      return this.#holder
    } catch (error) {
      await driver.close()
      throw error
    }
  }

  async #close(): Promise<void> {
    const holder = this.#holder ?? (await this.#opening?.catch(() => undefined))
    if (holder === undefined) return
    await holder.close()
    if (this.#ownUrl !== undefined) await holder.link.driver.close()
  }
}

/** The usual slip is a driver that is still being opened. */
function checkDriver(driver: unknown): void {
  const has = (method: string): boolean => typeof (driver as Record<string, unknown> | null)?.[method] === 'function'
  if (!['acquire', 'renew', 'release', 'inspect', 'close'].every(has)) {
    throw new InvalidArgumentError('driver', driver, 'a driver (one that is opened asynchronously has to be awaited)')
  }
}

function settingsFrom(options: InstanceOptions, events: Emitter): Omit<HolderOptions, 'driver'> {
  const { clock = systemClock, random = systemRandom, heartbeatThread = false } = options
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
  const { stalledAfterSeconds = STALLED_AFTER_MS / 1_000 } = heartbeatThread === true ? {} : heartbeatThread
  const stalledAfterMs = ttlMsFrom('heartbeatThread.stalledAfterSeconds', stalledAfterSeconds)
  return { ...settings, thread: { callTimeoutMs, stalledAfterMs } }
}

function deadlockAfterMsFrom({
  deadlockAfterSeconds = DEADLOCK_AFTER_MS / 1_000,
}: InstanceOptions): number | undefined {
  const afterMs = deadlockAfterSeconds === false ? 0 : waitMsFrom('deadlockAfterSeconds', deadlockAfterSeconds)
  return afterMs === 0 ? undefined : afterMs
}
