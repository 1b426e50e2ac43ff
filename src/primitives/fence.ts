import { checkWhole } from '../core/arguments.ts'
import { OverloadError, StaleTokenError } from '../core/errors.ts'
import { checkResource, type FencingGuard, type Token, tokenOf } from '../core/fencing.ts'
import { checkOptions, optionNames } from '../core/options.ts'

const OPTIONS = optionNames<{ maxResources?: number }>({ maxResources: true })

/**
 * Protects a resource that only one process writes to, such as a file, a device or another service. It remembers
 * the largest fencing token of each resource in memory, and rejects a smaller one. Call `accept` before the first read
 * that the write depends on, and again in the same step as the write, with nothing awaited in between.
 *
 * Its memory ends with the process. If the data outlives the process, keep the token with the data: use
 * `postgresFence`, `redisFence` or a column of your own.
 *
 * It never forgets a resource by itself: a stale token would then be accepted, and the tokens of other resources say
 * nothing about this one. So it has a bound. Beyond it, a new resource is rejected with an `OverloadError` until you
 * `reset` another.
 *
 * @example
 * ```ts
 * const fence = new Fence()
 * await lock.withLock('report', async (lease) => {
 *   fence.accept('report.csv', lease)
 *   const rows = await readReport()
 *   fence.accept('report.csv', lease)
 *   writeReportSync(rows)
 * })
 * ```
 */
export class Fence implements FencingGuard {
  readonly #largest = new Map<string, number>()
  readonly #maxResources: number

  /**
   * `maxResources` is the number of resources that it remembers: 100,000 by default, about 11 MB with short names.
   *
   * @throws `InvalidArgumentError`
   */
  constructor(options: { maxResources?: number } = {}) {
    const { maxResources = 100_000 } = checkOptions(options, OPTIONS)
    this.#maxResources = checkWhole('maxResources', maxResources, 1, 10_000_000)
  }

  /**
   * Accepts the token if no larger one has been seen for the resource, and remembers it. An equal token is accepted,
   * because one holder writes more than once.
   *
   * @throws `StaleTokenError` if it has seen a larger token for this resource
   * @throws `OverloadError` if the resource is new and there is no room for it
   * @throws `InvalidArgumentError`
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

  /** The largest token so far. Undefined for an unknown resource. */
  largest(resource: string): number | undefined {
    return this.#largest.get(resource)
  }

  /**
   * Forgets the largest token, so that any next token is accepted. True if the resource was known. Use it for a
   * resource that is gone, or whose lock moves to another store, once no process with an old token can reach it any
   * more.
   *
   * @throws `InvalidArgumentError`
   */
  reset(resource: string): boolean {
    checkResource(resource)
    return this.#largest.delete(resource)
  }

  /** The number of remembered resources. */
  get size(): number {
    return this.#largest.size
  }
}
