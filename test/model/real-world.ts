import type { Driver } from '../../src/core/driver.ts'
import { settlesWithin } from '../../src/core/time/abort.ts'
import { systemClock } from '../../src/core/time/clock.ts'
import { systemRandom } from '../../src/core/time/random.ts'
import type { World } from './play.ts'

/** A real store in real time. Programs with different prefixes can run at the same time. */
export function realWorld(drivers: readonly Driver[], prefix: string): World {
  return {
    clock: systemClock,
    random: systemRandom,
    drivers,
    exact: false,
    patienceMs: 30_000,
    latencyMs: 200,
    prefix,
    trip: async () => undefined,
    send: (message) => message(),
    settles: (work, ms) => settlesWithin(systemClock, ms, work),
  }
}
