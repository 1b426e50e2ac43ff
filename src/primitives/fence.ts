import { checkWhole } from '../core/arguments.ts'
import { OverloadError, StaleTokenError } from '../core/errors.ts'
import { checkResource, type FencingGuard, type Token, tokenOf } from '../core/fencing.ts'
import { checkOptions, optionNames } from '../core/options.ts'

const OPTIONS = optionNames<{ maxResources?: number }>({ maxResources: true })

/**
 * The guard of whatever one process alone writes to: a file, a device, a service that it stands before. It remembers the largest token of each resource in
 * memory, and refuses a smaller one. Call it before the first read of what the write depends on, and again in the same step as the write, with nothing
 * awaited in between.
 *
 * Its memory ends with the process. Where data outlives that, keep the token beside the data: `postgresFence`, `redisFence`, or a column of your own.
 *
 * It forgets nothing by itself, because a stale token would then be let through, and because no other resource's tokens say anything about this one's. So
 * it has a bound, and one resource more is refused with an `OverloadError` until another one is reset.
 */
export class Fence implements FencingGuard {
  readonly #largest = new Map<string, number>()
  readonly #maxResources: number

  /** `maxResources`: 100,000 if not said, about 11 MB with short names. Throws `InvalidArgumentError`. */
  constructor(options: { maxResources?: number } = {}) {
    const { maxResources = 100_000 } = checkOptions(options, OPTIONS)
    this.#maxResources = checkWhole('maxResources', maxResources, 1, 10_000_000)
  }

  /**
   * Throws `StaleTokenError` if a larger token has been seen for this resource, `OverloadError` if the resource is new and there is no room, and
   * `InvalidArgumentError`.
   */
  accept(resource: string, token: Token): void {
    checkResource(resource)
    const fencingToken = tokenOf(token)
    const largest = this.#largest.get(resource)
    if (largest !== undefined && fencingToken < largest) throw new StaleTokenError(resource, fencingToken, largest)
    if (largest === undefined && this.#largest.size >= this.#maxResources) {
      throw new OverloadError(`this fence already guards ${this.#maxResources} resources: reset one first`)
    }
    if (largest !== fencingToken) this.#largest.set(resource, fencingToken)
  }

  /** The largest token that was seen. */
  largest(resource: string): number | undefined {
    return this.#largest.get(resource)
  }

  /**
   * Forgets the largest token: the next one is let through, whatever it is. For a resource that is gone, and for one whose lock moves to another store, when no
   * process that could have an old token can reach it any more. True if it was known. Throws `InvalidArgumentError`.
   */
  reset(resource: string): boolean {
    checkResource(resource)
    return this.#largest.delete(resource)
  }

  /** How many resources are remembered. */
  get size(): number {
    return this.#largest.size
  }
}
