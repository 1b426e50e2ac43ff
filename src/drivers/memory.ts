import type { Capabilities, Driver, DriverListener, InspectPage, RatesPage, StopListening } from '../core/driver.ts'
import { ClosedError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { createMemoryStore, type MemoryStore } from './memory/store.ts'
import { memoryName } from './memory/url.ts'
import { inGroups } from './shared/groups.ts'
import { lossesOnly } from './shared/losses-only.ts'

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
  steal: true,
  force: true,
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
 * reference for every other driver, so it is written to be read.
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

  /** A list is one step: nothing else runs between its first and its last entry. */
  async function each<Request, Answer>(
    requests: readonly Request[],
    step: (request: Request) => Answer,
  ): Promise<Answer[]> {
    if (closed) throw new ClosedError('the memory driver is closed')
    return requests.map(step)
  }

  async function listen(listener: DriverListener): Promise<StopListening> {
    if (closed) throw new ClosedError('the memory driver is closed')
    mine.add(listener)
    store.listeners.add(listener)
    return async () => {
      mine.delete(listener)
      store.listeners.delete(listener)
    }
  }

  return {
    name: 'memory',
    capabilities,
    acquire: (claims) => each(claims, inGroups(claims, store.acquire, store.acquireGroup)),
    renew: (renewals) => each(renewals, store.renew),
    release: (leases) => each(leases, store.release),
    async consume(requests) {
      if (closed) throw new ClosedError('the memory driver is closed')
      return store.consume(requests)
    },
    inspectRates: async (query) => (await each([query], store.inspectRates))[0] as RatesPage,
    inspect: async (query) => (await each([query], store.inspect))[0] as InspectPage,
    listen,
    watch: (listener) => listen(lossesOnly(listener)),
    async close() {
      closed = true
      for (const listener of mine) store.listeners.delete(listener)
    },
  }
}

/** Opens `memory:` or `memory:<name>`. All drivers that this process opens under one name are on the same store. */
export function openMemory(url: string): Driver {
  const name = memoryName(url)
  const store = named.get(name) ?? createMemoryStore()
  named.set(name, store)
  return memoryDriver({ store })
}

const named = new Map<string, MemoryStore>()
