import { type HealthReport, type HealthTarget, healthCheck } from '../health.ts'

/**
 * Reports whether the store works and the application is not shutting down. `HoldfastModule` provides it.
 *
 * @example
 * ```ts
 * const report = await health.check()
 * if (report.status === 'down') throw new ServiceUnavailableException(report)
 * ```
 */
export class HoldfastHealth {
  readonly #check: () => Promise<HealthReport>

  /** @internal */
  constructor(lock: HealthTarget) {
    this.#check = healthCheck(lock)
  }

  /** Never rejects. Calls that overlap share one ping of the store, which has two seconds to answer. */
  check(): Promise<HealthReport> {
    return this.#check()
  }

  /** The same for `@nestjs/terminus`: `health.check([() => holdfast.isHealthy('locks')])`. */
  async isHealthy<Key extends string>(key: Key): Promise<Record<Key, HealthReport>> {
    return { [key]: await this.#check() } as Record<Key, HealthReport>
  }
}
