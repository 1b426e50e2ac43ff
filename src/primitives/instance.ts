import type { SharedDriver, StoreOpener } from '../connect.ts'
import { waitMsFrom } from '../core/arguments.ts'
import { type ClaimRequest, Holder } from '../core/claim/holder.ts'
import { AbortedError, ClosedError, isOutage, StoreError } from '../core/errors.ts'
import type { Emitter } from '../core/events.ts'
import { CLOSE_TIMEOUT_MS } from '../core/limits.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { pause, settlesWithin, unlessAborted, withTimeout } from '../core/time/abort.ts'
import { AFTER_OUTAGE, backoffMs } from '../core/time/backoff.ts'
import type { Clock } from '../core/time/clock.ts'
import type { Random } from '../core/time/random.ts'
import { type HolderSettings, type InstanceOptions, settingsFrom, urlFrom } from './instance-options.ts'

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
  deadlineSeconds?: number
}

const CLOSE_OPTIONS = optionNames<CloseOptions>({ drainSeconds: true, deadlineSeconds: true })

/** What every primitive is built on: a holder on the chosen store, which is opened when it is first used. */
export class Instance {
  readonly #what: string
  readonly #settings: HolderSettings
  readonly #opener: StoreOpener | undefined
  readonly #ownUrl: string | undefined
  #shared: SharedDriver | undefined
  #holder: Holder | undefined
  #opening: Promise<Holder> | undefined
  #closing: Promise<void> | undefined
  /** When the present phase of closing ends at the latest, on the monotonic clock. */
  #closingUntilMs = Number.POSITIVE_INFINITY
  #closeTimeoutMs = Number.POSITIVE_INFINITY
  /** Called when a more urgent `close` has changed these. */
  #hurry = (): void => {}
  readonly #closingSignal = new AbortController()
  #ended = false

  /**
   * Opens nothing yet. `what` is the name of the primitive, for errors. `known` are the names of its options, if it has
   * more than `InstanceOptions`.
   *
   * @throws `InvalidArgumentError`, `UnsupportedError`
   */
  constructor(what: string, options: InstanceOptions, opener: StoreOpener | undefined, known?: ReadonlySet<string>) {
    this.#what = what
    this.#opener = opener
    this.#settings = settingsFrom(options, opener, known)
    const { driver } = options
    if (driver === undefined) this.#ownUrl = urlFrom(options, opener)
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
   * Like `open`, for a claim. A claim that waits also waits for a store that is down, and for no longer than it waits
   * for the lock. `onOutage` is called each time the store could not be opened and will be tried again.
   *
   * @throws what `open` throws; `StoreError` when the waiting time is over; `AbortedError`, `ClosedError`
   */
  async openFor({ lockName, patienceMs, signal }: OpenRequest, onOutage?: () => void): Promise<Holder> {
    const untilMs = this.clock.now().monotonicMs + patienceMs
    for (let tries = 1; ; tries += 1) {
      if (this.#holder !== undefined) return this.#holder
      const what = `acquiring "${lockName}"`
      try {
        return await unlessAborted(this.#openUntil(patienceMs === 0 ? undefined : untilMs), signal, what)
      } catch (error) {
        const restMs = backoffMs(AFTER_OUTAGE, tries, this.random)
        if (!isOutage(error) || this.clock.now().monotonicMs + restMs >= untilMs) throw error
        onOutage?.()
        await pause(this.clock, restMs, signal, this.closing)
        if (signal?.aborted) throw new AbortedError(what, signal.reason)
      }
    }
  }

  #openUntil(untilMs: number | undefined): Promise<Holder> {
    const opening = this.open()
    if (untilMs === undefined) return opening
    const leftMs = Math.max(0, untilMs - this.clock.now().monotonicMs)
    return withTimeout(this.clock, leftMs, opening, () => new StoreError('the store could not be opened in time'))
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

  /** Closes as `CloseOptions` says. The most urgent of several calls counts. Throws `InvalidArgumentError`. */
  close(options: CloseOptions = {}): Promise<void> {
    const { drainSeconds = 0, deadlineSeconds = CLOSE_TIMEOUT_MS / 1_000 } = checkOptions(options, CLOSE_OPTIONS)
    const drainMs = waitMsFrom('drainSeconds', drainSeconds)
    const timeoutMs = waitMsFrom('deadlineSeconds', deadlineSeconds)
    const phaseMs = this.#ended ? timeoutMs : drainMs
    this.#closingUntilMs = Math.min(this.#closingUntilMs, this.#nowMs + phaseMs)
    this.#closeTimeoutMs = Math.min(this.#closeTimeoutMs, timeoutMs)
    this.#hurry()
    if (this.#ended) void this.#holder?.close(timeoutMs * SETTLING)
    if (this.#closing === undefined) {
      this.#closing = this.#close(drainMs)
      this.#closingSignal.abort(new ClosedError(`this ${this.#what} is being closed`))
    }
    return this.#closing
  }

  async #open(): Promise<Holder> {
    let shared: SharedDriver
    try {
      shared = await (this.#opener as StoreOpener).share(this.#ownUrl as string)
    } catch (error) {
      // A store that was down at the first use may be up at the next.
      this.#opening = undefined
      if (error instanceof StoreError) this.events.heard('storeFailed')?.({ operation: 'open', error })
      throw error
    }
    try {
      // Closing does not wait for a store that takes too long to open.
      if (this.#ended) this.assertOpen()
      this.#holder = new Holder({ ...this.#settings, driver: shared.driver })
      this.#shared = shared
      return this.#holder
    } catch (error) {
      await shared.release()
      throw error
    }
  }

  async #close(drainMs: number): Promise<void> {
    if (drainMs > 0 && this.#holder !== undefined) await this.#closesInTime(this.#holder.drain(drainMs))
    this.#ended = true
    this.#closingUntilMs = this.#nowMs + this.#closeTimeoutMs
    if (await this.#closesInTime(this.#end(this.#closeTimeoutMs * SETTLING))) return
    // The store does not answer. Neither its calls nor its connections may keep the process from exiting.
    this.#holder?.forceClose()
    void this.#shared?.release().catch(() => undefined)
  }

  /** Whether a phase of closing ends in time. A more urgent `close` may shorten the time meanwhile. */
  async #closesInTime(phase: Promise<void>): Promise<boolean> {
    for (;;) {
      let isHurried = false
      const hurried = new Promise<void>((resolve) => {
        this.#hurry = () => {
          isHurried = true
          resolve()
        }
      })
      const restMs = Math.max(0, this.#closingUntilMs - this.#nowMs)
      const isInTime = await settlesWithin(this.clock, restMs, Promise.race([phase, hurried]))
      if (!isInTime || !isHurried) return isInTime
    }
  }

  get #nowMs(): number {
    return this.clock.now().monotonicMs
  }

  async #end(settleMs: number): Promise<void> {
    await this.#opening?.catch(() => undefined)
    await this.#holder?.close(settleMs)
    await this.#shared?.release()
  }
}

type OpenRequest = Pick<ClaimRequest, 'lockName' | 'patienceMs' | 'signal'>

/** The part of closing in which functions may settle. The rest is for the releases. */
const SETTLING = 0.6
