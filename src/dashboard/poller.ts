import { messageOf } from '../core/foreign-errors.ts'
import { withoutSecrets } from '../core/secrets.ts'
import type { Clock, Timer } from '../core/time/clock.ts'
import type { StoreModel } from './store-model.ts'
import type { WatchedStore } from './watched-store.ts'
import type { Step } from './wire.ts'

/**
 * Reads one store again and again while there are viewers: one reading for all of them, and none while no one watches.
 * Between two readings it rests at least as long as the last one took, so a large store is read at most half of the
 * time.
 */
export class Poller {
  readonly #store: WatchedStore
  readonly #model: StoreModel
  readonly #clock: Clock
  readonly #everyMs: number
  readonly #viewers = new Set<(step: Step) => void>()
  #timer: Timer | undefined
  #reading: Promise<void> | undefined
  #lastMs = Number.NEGATIVE_INFINITY
  #tookMs = 0
  #closed = false

  constructor({ store, model, clock, everyMs }: PollerParts) {
    this.#store = store
    this.#model = model
    this.#clock = clock
    this.#everyMs = everyMs
  }

  /** Calls `viewer` after each reading. Returns a function that ends that. */
  watch(viewer: (step: Step) => void): () => void {
    this.#viewers.add(viewer)
    if (this.#timer === undefined && this.#reading === undefined) this.#schedule(0)
    return () => {
      this.#viewers.delete(viewer)
      if (this.#viewers.size > 0) return
      this.#timer?.cancel()
      this.#timer = undefined
    }
  }

  /** Resolves when the model is at most one interval old. Never rejects: the step of a failure says why. */
  async refresh(): Promise<void> {
    if (this.#clock.now().monotonicMs - this.#lastMs > this.#everyMs) await this.#read()
  }

  /** Resolves after a reading that began after this call. */
  async readAgain(): Promise<void> {
    await this.#reading
    await this.#read()
  }

  close(): void {
    this.#closed = true
    this.#timer?.cancel()
    this.#viewers.clear()
  }

  #schedule(ms: number): void {
    this.#timer?.cancel()
    this.#timer = this.#clock.setTimer(() => {
      this.#timer = undefined
      void this.#read()
    }, ms)
  }

  #read(): Promise<void> {
    this.#reading ??= this.#readNow()
    return this.#reading
  }

  async #readNow(): Promise<void> {
    const startedMs = this.#clock.now().monotonicMs
    const step = await this.#step()
    const endedMs = this.#clock.now().monotonicMs
    this.#lastMs = endedMs
    this.#tookMs = endedMs - startedMs
    // In the same step as the look at the viewers: one that comes later begins a reading itself.
    this.#reading = undefined
    for (const viewer of [...this.#viewers]) viewer(step)
    if (this.#viewers.size === 0 || this.#closed) return
    this.#schedule(Math.max(this.#everyMs - this.#tookMs, this.#tookMs))
  }

  async #step(): Promise<Step> {
    try {
      return this.#model.apply(await this.#store.read(), GAP_INTERVALS * Math.max(this.#everyMs, this.#tookMs))
    } catch (error) {
      return this.#model.fail(withoutSecrets(messageOf(error)), this.#store.nowMs)
    }
  }
}

export interface PollerParts {
  readonly store: WatchedStore
  readonly model: StoreModel
  readonly clock: Clock
  readonly everyMs: number
}

/** After a pause of more intervals than this, what happened meanwhile counts as unknown. */
const GAP_INTERVALS = 10
