import type { InspectPage, LeaseRecord, WaiterRecord } from '../driver.ts'
import { MAX_DEADLOCK_RECORDS, MAX_DEADLOCK_REQUESTS, MAX_PAGE_SIZE } from '../limits.ts'
import { readPages } from '../pages.ts'
import type { StoreClient } from '../store/store-client.ts'
import type { Snapshot } from './find.ts'
import { markerNameOf, waitsFor } from './wait-marker.ts'

/**
 * Reads what can block claims that wait for these lock names: who holds them, what those holders wait for, who holds
 * that, and so on. The number of requests and of records is bounded, and only names that lead on are read: it takes no
 * longer in a store with a million other locks.
 */
export async function readSnapshot(store: StoreClient, lockNames: readonly string[]): Promise<Snapshot> {
  // A session store has no queue of its own. It shows all leases and waiters in a single answer.
  if (!store.driver.capabilities.queue) {
    return readPages((query) => store.inspect(query), { pageSize: MAX_PAGE_SIZE }, { pages: 1 })
  }
  const reader = new SnapshotReader(store)
  for (let names = lockNames; names.length > 0; ) {
    const markerNames = await reader.read(names, (page, name) => reader.add(page, name))
    names = await reader.read(markerNames, ({ leases }) => leases.flatMap((marker) => waitsFor(marker) ?? []))
  }
  return reader.snapshot
}

class SnapshotReader {
  readonly snapshot: { readonly leases: LeaseRecord[]; readonly waiters: WaiterRecord[] } = { leases: [], waiters: [] }
  readonly #store: StoreClient
  readonly #namesRead = new Set<string>()
  /** How many holders of each lock name are followed. */
  readonly #followed = new Map<string, number>()
  #requests = 0

  constructor(store: StoreClient) {
    this.#store = store
  }

  /** Reads the names that were not read before, some at a time, and returns the names that their pages lead to. */
  async read(names: readonly string[], follow: (page: InspectPage, name: string) => string[]): Promise<string[]> {
    const unread = names.filter((name) => !this.#namesRead.has(name) && this.#namesRead.add(name))
    const next = new Set<string>()
    for (let at = 0; at < unread.length && this.#hasRoom; at += MAX_CONCURRENT) {
      const some = unread.slice(at, at + MAX_CONCURRENT)
      const pages = await Promise.all(some.map((name) => this.#readPages(name)))
      some.forEach((name, index) => {
        for (const page of pages[index] ?? []) for (const each of follow(page, name)) next.add(each)
      })
    }
    return [...next]
  }

  /** Adds a page of a lock name to the snapshot, and returns the names of its holders' wait markers. */
  add({ leases, waiters }: InspectPage, name: string): string[] {
    const markerNames: string[] = []
    let followed = this.#followed.get(name) ?? 0
    for (const lease of leases) {
      if (this.#isFull) break
      this.snapshot.leases.push(lease)
      const markerName = followed < MAX_FOLLOWED ? markerNameOf(lease) : undefined
      if (markerName === undefined) continue
      followed += 1
      markerNames.push(markerName)
    }
    this.#followed.set(name, followed)
    for (const waiter of waiters) {
      if (this.#isFull) break
      this.snapshot.waiters.push(waiter)
    }
    return markerNames
  }

  async #readPages(lockName: string): Promise<InspectPage[]> {
    const pages: InspectPage[] = []
    let after: string | undefined
    for (let records = 0; this.#hasRoom && records < MAX_DEADLOCK_RECORDS; ) {
      this.#requests += 1
      const page = await this.#store.inspect({ lockName, ...(after !== undefined && { after }) })
      pages.push(page)
      records += page.leases.length + page.waiters.length
      after = page.next
      if (after === undefined) break
    }
    return pages
  }

  get #hasRoom(): boolean {
    return this.#requests < MAX_DEADLOCK_REQUESTS && !this.#isFull
  }

  get #isFull(): boolean {
    return this.snapshot.leases.length + this.snapshot.waiters.length >= MAX_DEADLOCK_RECORDS
  }
}

/** How many lock names are read at the same time. */
const MAX_CONCURRENT = 16
/** How many holders of one lock name are followed, so that a single name does not use up the bound for all others. */
const MAX_FOLLOWED = 64
