import { Holder, type HolderOptions } from '../core/claim/holder.ts'
import type { Driver, InspectQuery } from '../core/driver.ts'
import { Emitter } from '../core/events.ts'
import { CALL_TIMEOUT_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { type PageBounds, type ReadPages, readPages } from '../core/pages.ts'
import { StoreClient } from '../core/store/store-client.ts'
import { systemClock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'

/** For tools that work on a driver without a primitive: a holder with the defaults of all options. */
export const holderOn = (driver: Driver, options: Pick<HolderOptions, 'holderId' | 'thread'>): Holder =>
  new Holder({ driver, ...DEFAULTS, waiterTtlMs: WAITER_TTL_MS, events: new Emitter(), ...options })

/** For tools that claim nothing. */
export const storeClientOf = (driver: Driver): StoreClient => new StoreClient(driver, DEFAULTS)

/** The leases and waiters that a store shows, with a deadline for each page. */
export const inspectStore = (driver: Driver, query: InspectQuery, bounds?: PageBounds): Promise<ReadPages> => {
  const store = storeClientOf(driver)
  return readPages((page) => store.inspect(page), query, bounds)
}

const DEFAULTS = { clock: systemClock, random: systemRandom, callTimeoutMs: CALL_TIMEOUT_MS }
