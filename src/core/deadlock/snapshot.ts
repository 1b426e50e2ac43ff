import type { InspectPage, LeaseRecord, WaiterRecord } from '../driver.ts'
import { DEADLOCK_QUESTIONS, DEADLOCK_RECORDS, MAX_PAGE_SIZE } from '../limits.ts'
import { readPages } from '../pages.ts'
import type { StoreClient } from '../store/store-client.ts'
import type { Seen } from './find.ts'
import { notesOn, waitsFor } from './waiting-notes.ts'

/**
 * What can be in the way of claims that wait for these lock names: who holds them, what those wait for, who holds that, and so on. Bounded in
 * questions and in what is kept of the answers, and read in pages: it takes no longer in a store that holds a million other locks.
 */
export async function lookAround(store: StoreClient, lockNames: readonly string[]): Promise<Seen> {
  // A session store has no queue of its own. It shows who waits, with all that there is, in one answer.
  if (!store.driver.capabilities.queue) {
    return readPages((query) => store.inspect(query), { pageSize: MAX_PAGE_SIZE }, { pages: 1 })
  }
  const walk = new Walk(store)
  for (let names = lockNames; names.length > 0; ) {
    const holders = await walk.read(names, (page, name) => walk.add(page, name))
    names = await walk.read(holders, ({ leases }) => leases.flatMap((note) => waitsFor(note) ?? []))
  }
  return walk.seen
}

class Walk {
  readonly seen: { readonly leases: LeaseRecord[]; readonly waiters: WaiterRecord[] } = { leases: [], waiters: [] }
  readonly #store: StoreClient
  readonly #asked = new Set<string>()
  readonly #followed = new Map<string, number>()
  #questions = 0

  constructor(store: StoreClient) {
    this.#store = store
  }

  /** Reads names that were not read before, some at a time, and returns the names that their pages lead to. */
  async read(names: readonly string[], follow: (page: InspectPage, name: string) => string[]): Promise<string[]> {
    const wanted = names.filter((name) => !this.#asked.has(name) && this.#asked.add(name))
    const next = new Set<string>()
    for (let at = 0; at < wanted.length && this.#hasRoom; at += AT_ONCE) {
      const some = wanted.slice(at, at + AT_ONCE)
      const read = await Promise.all(some.map((name) => this.#pages(name)))
      some.forEach((name, index) => {
        for (const page of read[index] ?? []) for (const each of follow(page, name)) next.add(each)
      })
    }
    return [...next]
  }

  /** Keeps what a page of a lock name shows, and returns where the notes of its holders are. */
  add({ leases, waiters }: InspectPage, name: string): string[] {
    const notes: string[] = []
    let followed = this.#followed.get(name) ?? 0
    for (const lease of leases) {
      if (this.#isFull) break
      this.seen.leases.push(lease)
      const note = followed < MAX_FOLLOWED ? notesOn(lease) : undefined
      if (note === undefined) continue
      followed += 1
      notes.push(note)
    }
    this.#followed.set(name, followed)
    for (const waiter of waiters) {
      if (this.#isFull) break
      this.seen.waiters.push(waiter)
    }
    return notes
  }

  async #pages(lockName: string): Promise<InspectPage[]> {
    const pages: InspectPage[] = []
    let after: string | undefined
    for (let records = 0; this.#hasRoom && records < DEADLOCK_RECORDS; ) {
      this.#questions += 1
      const page = await this.#store.inspect({ lockName, ...(after !== undefined && { after }) })
      pages.push(page)
      records += page.leases.length + page.waiters.length
      after = page.next
      if (after === undefined) break
    }
    return pages
  }

  get #hasRoom(): boolean {
    return this.#questions < DEADLOCK_QUESTIONS && !this.#isFull
  }

  get #isFull(): boolean {
    return this.seen.leases.length + this.seen.waiters.length >= DEADLOCK_RECORDS
  }
}

/** How many questions are under way at a time. */
const AT_ONCE = 16
/** Of so many holders of one lock name it is looked what they wait for, so that one name does not use up what all others have. */
const MAX_FOLLOWED = 64
