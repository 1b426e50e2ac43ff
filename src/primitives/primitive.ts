import type { LockEvent, LockListener } from '../core/events.ts'
import type { CloseOptions, Instance } from './instance.ts'

/** What can be closed: every primitive. */
export abstract class Closable implements AsyncDisposable {
  readonly #instance: Instance

  /** @internal */
  constructor(instance: Instance) {
    this.#instance = instance
  }

  /** Whether `close` has been called. */
  get closed(): boolean {
    return this.#instance.closed
  }

  /**
   * Gives up what waits, lets running work end for `drainSeconds`, then asks it to stop, releases what is held, and
   * closes the store if this instance opened it. Later calls throw `ClosedError`; `close` itself may be called again.
   * It takes at most `drainSeconds` and `timeoutSeconds` together.
   *
   * @throws `InvalidArgumentError`
   */
  async close(options: CloseOptions = {}): Promise<void> {
    return this.#instance.close(options)
  }

  /**
   * Calls `listener` at each `event`. Returns a function that removes it. If the listener throws, that is a process
   * warning. The same events are published on the diagnostics channels `holdfast:<event>`.
   *
   * @throws `InvalidArgumentError` for an unknown event, and for a listener that is not a function
   */
  on<E extends LockEvent>(event: E, listener: LockListener<E>): () => void {
    return this.#instance.events.on(event, listener)
  }

  /** Closes it, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }
}

/** What holds leases: every primitive except the rate limiter. */
export abstract class Primitive extends Closable {
  readonly #instance: Instance

  /** @internal */
  constructor(instance: Instance) {
    super(instance)
    this.#instance = instance
  }

  /** Identifies this instance to others. */
  get holderId(): string {
    return this.#instance.holderId
  }

  /**
   * Opens the store unless it is open, and proves that it works: takes a lock with a new name (`ping:` and a random
   * part) and releases it. So the server can be reached, it is the right one, it has the tables, and it accepts writes.
   * It asks once, leaves nothing behind, and emits no event. Use it when a service starts, and in its readiness probe.
   *
   * @throws `StoreError`. Its `retryable` is false if trying again cannot help, as with a wrong password, missing
   * tables or a read-only replica
   * @throws `ClosedError`, and what `connect` throws if this call opens the store
   */
  ping(): Promise<void> {
    return this.#instance.ping()
  }
}
