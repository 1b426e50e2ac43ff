import { waitMsFrom } from '../core/arguments.ts'
import { Holder } from '../core/claim/holder.ts'
import type { Driver } from '../core/driver.ts'
import { ClosedError, isOutage, StoreError } from '../core/errors.ts'
import type { Emitter } from '../core/events.ts'
import { CLOSE_TIMEOUT_MS } from '../core/limits.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { backoffMs } from '../core/time/backoff.ts'
import type { Clock } from '../core/time/clock.ts'
import { pause } from '../core/time/pause.ts'
import type { Random } from '../core/time/random.ts'
import { settlesWithin } from '../core/time/timeout.ts'
import { type Extras, type HolderSettings, type InstanceOptions, settingsFrom, urlFrom } from './instance-options.ts'

export interface CloseOptions {
  /**
   * How long work that has begun may go on: functions that run under a lease, and leases until they are released. New
   * claims are rejected at once, except those that such a function makes.
   *
   * @default 0
   */
  drainSeconds?: number
  /**
   * How long closing may take after `drainSeconds`, even if the store does not answer.
   *
   * First the signals of the leases abort. Functions that run under a lease then have three fifths of this time to
   * settle, and keep their locks until they have. A function that itself waits for `close` to end uses up that time.
   * Then everything is released. A call that the store has not answered by the end fails with `ClosedError`, and its
   * lease is left to expire.
   *
   * @default 5
   */
  timeoutSeconds?: number
}

const CLOSE_OPTIONS = optionNames<CloseOptions>({ drainSeconds: true, timeoutSeconds: true })

/** What every primitive is built on: a holder on the chosen store, which is opened when it is first used. */
export class Instance {
  readonly #what: string
  readonly #settings: HolderSettings
  readonly #extras: Extras | undefined
  readonly #ownUrl: string | undefined
  #ownDriver: Driver | undefined
  #holder: Holder | undefined
  #opening: Promise<Holder> | undefined
  #closing: Promise<void> | undefined
  readonly #closingSignal = new AbortController()
  #ended = false

  /**
   * Opens nothing yet. `what` is the name of the primitive, for errors. `known` are the names of its options, if it has
   * more than `InstanceOptions`.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(what: string, options: InstanceOptions, extras: Extras | undefined, known?: ReadonlySet<string>) {
    this.#what = what
    this.#extras = extras
    this.#settings = settingsFrom(options, extras, known)
    const { driver } = options
    if (driver === undefined) this.#ownUrl = urlFrom(options, extras)
    else this.#holder = new Holder({ ...this.#settings, driver })
  }

  get holderId(): string {
    return this.#settings.holderId
  }

  get clock(): Clock {
    return this.#settings.clock
  }

  get random(): Random {
    return this.#settings.random
  }

  get events(): Emitter {
    return this.#settings.events
  }

  /** The holder if the store is open. It saves the frequent calls a promise; all others call `open`. */
  get holder(): Holder | undefined {
    return this.#holder
  }

  /** Opens the store unless it is open. Throws what `connect` throws. The next call tries again. */
  open(): Promise<Holder> {
    if (this.#holder !== undefined) return Promise.resolve(this.#holder)
    this.assertOpen()
    this.#opening ??= this.#open()
    return this.#opening
  }

  /**
   * As `open`, but tries again while the store is down, for at most `waitMs`. Resolves with undefined when `signal` has
   * aborted. For claims that wait: they wait for the store as they wait for the lock.
   */
  async openWithRetry({ waitMs, signal, onOutage }: OpenOptions): Promise<Holder | undefined> {
    const untilMs = this.clock.now().monotonicMs + waitMs
    for (let tries = 1; !signal?.aborted; tries += 1) {
      try {
        return await this.open()
      } catch (error) {
        const restMs = backoffMs(REOPEN, tries, this.random)
        if (!isOutage(error) || this.clock.now().monotonicMs + restMs >= untilMs) throw error
        onOutage?.()
        await pause(this.clock, restMs, signal, this.closing)
      }
    }
    return undefined
  }

  /** Opens the store unless it is open, and proves that it works. See `Primitive.ping`. */
  async ping(): Promise<void> {
    this.assertNotEnded()
    await (await this.open()).ping()
  }

  get closed(): boolean {
    return this.#closing !== undefined
  }

  /** Aborts when closing begins. */
  get closing(): AbortSignal {
    return this.#closingSignal.signal
  }

  assertOpen(): void {
    if (this.#closing !== undefined) throw new ClosedError(`this ${this.#what} is closed`)
  }

  /** For what running work may still do during `drainSeconds`. */
  assertNotEnded(): void {
    if (this.#ended) this.assertOpen()
  }

  /** Closes as `CloseOptions` says. Throws `InvalidArgumentError`. */
  close(options: CloseOptions = {}): Promise<void> {
    const { drainSeconds = 0, timeoutSeconds = CLOSE_TIMEOUT_MS / 1_000 } = checkOptions(options, CLOSE_OPTIONS)
    const drainMs = waitMsFrom('drainSeconds', drainSeconds)
    const timeoutMs = waitMsFrom('timeoutSeconds', timeoutSeconds)
    if (this.#closing === undefined) {
      this.#closing = this.#close(drainMs, timeoutMs)
      this.#closingSignal.abort(new ClosedError(`this ${this.#what} is being closed`))
    }
    return this.#closing
  }

  async #open(): Promise<Holder> {
    let driver: Driver
    try {
      driver = await (this.#extras as Extras).connect(this.#ownUrl as string)
    } catch (error) {
      // A store that was down at the first use may be up at the next.
      this.#opening = undefined
      if (error instanceof StoreError) this.events.emit('storeFailed', () => ({ operation: 'open', error }))
      throw error
    }
    try {
      // Closing does not wait for a store that takes too long to open.
      if (this.#ended) this.assertOpen()
      this.#holder = new Holder({ ...this.#settings, driver })
      this.#ownDriver = driver
      return this.#holder
    } catch (error) {
      await driver.close()
      throw error
    }
  }

  async #close(drainMs: number, timeoutMs: number): Promise<void> {
    if (drainMs > 0) await this.#holder?.drain(drainMs)
    this.#ended = true
    const isDone = await settlesWithin(this.clock, timeoutMs, this.#end(timeoutMs * SETTLING))
    if (isDone) return
    // The store does not answer. Neither its calls nor its connections may keep the process from exiting.
    this.#holder?.forceClose()
    void this.#ownDriver?.close().catch(() => undefined)
  }

  async #end(settleMs: number): Promise<void> {
    await this.#opening?.catch(() => undefined)
    await this.#holder?.close(settleMs)
    await this.#ownDriver?.close()
  }
}

export interface OpenOptions {
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  /** Called each time the store could not be opened and will be tried again. */
  readonly onOutage?: (() => void) | undefined
}

/** The part of closing in which functions may settle. The rest is for the releases. */
const SETTLING = 0.6

const REOPEN = { firstMs: 50, maxMs: 2_000 }
