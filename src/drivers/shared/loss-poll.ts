import type { LossListener, StopListening } from '../../core/driver.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'

export interface LossPollParts {
  readonly clock: Clock
  readonly everyMs: number
  /** Looks for leases that were ended by force, and reports them to all listeners. */
  look(listeners: ReadonlySet<LossListener>): Promise<void>
}

/**
 * Looks regularly for leases that were ended by force, for a store in which a message would cost more than a look. The
 * next look begins after the last one has ended. Without listeners, nothing runs.
 */
export class LossPoll {
  readonly #parts: LossPollParts
  readonly #listeners = new Set<LossListener>()
  #timer: Timer | undefined

  constructor(parts: LossPollParts) {
    this.#parts = parts
  }

  /** Rejects if the first look fails. */
  async watch(listener: LossListener): Promise<StopListening> {
    // What one look has found, the next one does not find again. So it is for the other listeners, too.
    await this.#parts.look(new Set([...this.#listeners, listener]))
    const isFirst = this.#listeners.size === 0
    this.#listeners.add(listener)
    if (isFirst) this.#lookLater()
    return async () => {
      this.#listeners.delete(listener)
      if (this.#listeners.size === 0) this.#timer?.cancel()
    }
  }

  end(): void {
    this.#listeners.clear()
    this.#timer?.cancel()
  }

  #lookLater(): void {
    this.#timer?.cancel()
    this.#timer = this.#parts.clock.setTimer(() => void this.#look(), this.#parts.everyMs)
  }

  async #look(): Promise<void> {
    try {
      await this.#parts.look(this.#listeners)
    } catch (error) {
      const listeners = [...this.#listeners]
      this.end()
      for (const listener of listeners) listener.disconnected(error as Error)
    }
    if (this.#listeners.size > 0) this.#lookLater()
  }
}
