import type { Capabilities, Driver, DriverListener } from '../core/driver.ts'
import { ClosedError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { createMemoryStore, type MemoryStore, storeAt } from './memory/store.ts'
import { inGroups } from './shared/groups.ts'

export { createMemoryStore, type MemoryStore } from './memory/store.ts'

export const capabilities: Capabilities = {
  expiry: 'ttl',
  scope: 'process',
  fencing: true,
  shared: true,
  limit: true,
  queue: true,
  wake: true,
  metadata: true,
  rate: true,
  force: 'claim',
  groups: true,
}

export interface MemoryDriverOptions {
  /**
   * Drivers on one store exclude each other.
   * @default a new store
   */
  readonly store?: MemoryStore
}

const OPTIONS = optionNames<MemoryDriverOptions>({ store: true })

/**
 * Keeps leases in the memory of this process, for tests and for services that run as one process. It is also the
 * reference for every other driver, so it is written to be read. It wakes waiters, but sends no grants in messages.
 *
 * @example
 * ```ts
 * const store = createMemoryStore()
 * const [first, second] = [memoryDriver({ store }), memoryDriver({ store })] // they exclude each other
 * ```
 */
export function memoryDriver(options: MemoryDriverOptions = {}): Driver {
  const { store = createMemoryStore() } = checkOptions(options, OPTIONS)
  let closed = false
  const mine = new Set<DriverListener>()

  function open(): MemoryStore {
    if (closed) throw new ClosedError('the memory driver is closed')
    return store
  }

  return {
    name: 'memory',
    capabilities,
    // A list is one step: nothing else runs between its first and its last entry.
    acquire: async (claims) => claims.map(inGroups(claims, open().acquire, open().acquireGroup)),
    renew: async (renewals) => renewals.map(open().renew),
    release: async (leases) => leases.map(open().release),
    consume: async (requests) => open().consume(requests),
    inspect: async (query) => open().inspect(query),
    async listen(listener) {
      open().listeners.add(listener)
      mine.add(listener)
      return async () => {
        mine.delete(listener)
        store.listeners.delete(listener)
      }
    },
    extensions: { inspectRates: async (query) => open().inspectRates(query) },
    async close() {
      closed = true
      for (const listener of mine) store.listeners.delete(listener)
    },
  }
}

/** Opens `memory:` or `memory:<name>`. All drivers that this process opens under one name are on the same store. */
export function openMemory(url: string): Driver {
  return memoryDriver({ store: storeAt(url) })
}
