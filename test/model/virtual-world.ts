import type { Driver } from '../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { seededRandom, VirtualTime } from '../../src/testing/virtual-clock.ts'
import type { World } from './play.ts'
import { INSTANCES, type Program } from './program.ts'

export type Breaks = (driver: Driver) => Driver

/**
 * One process per instance on a store in memory, in virtual time. The same program always runs the same way. `breaks`
 * makes a driver that breaks its promises.
 */
export function virtualWorld({ seed, latencyMs, groups }: Program, breaks: Breaks = (driver) => driver): World {
  const time = new VirtualTime()
  const random = seededRandom(seed)
  const store = createMemoryStore(time.clock())
  const delayMs = (): number => random.fraction() * latencyMs
  return {
    clock: time.clock(),
    random,
    drivers: Array.from({ length: INSTANCES + 1 }, () => {
      const driver = memoryDriver({ store })
      return breaks(groups ? driver : { ...driver, capabilities: { ...driver.capabilities, groups } })
    }),
    exact: true,
    patienceMs: 5_000,
    latencyMs,
    prefix: '',
    trip: () => (latencyMs === 0 ? Promise.resolve() : new Promise((arrived) => void time.in(delayMs(), arrived))),
    send: (message) => {
      if (latencyMs === 0) message()
      else time.in(delayMs(), message)
    },
    async settles(work, ms) {
      const untilMs = time.nowMs + ms
      let isSettled = false
      const settled = (): void => {
        isSettled = true
      }
      work.then(settled, settled)
      time.in(ms, () => undefined)
      let events = 0
      await time.runUntil(() => isSettled || time.nowMs >= untilMs || ++events > MAX_EVENTS)
      return isSettled
    },
  }
}

/** The longest program has some hundreds. */
const MAX_EVENTS = 100_000
