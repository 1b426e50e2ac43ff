import { EXCLUSIVE, SEMAPHORE, SHARED } from '../wire.ts'
import { type LiveStore, type Lock, storeNow } from './live.ts'

export type State = 'all' | 'contended' | 'exclusive' | 'shared' | 'semaphores' | 'ending' | 'deadlocked'
export type Order = 'name' | 'mode' | 'holder' | 'age' | 'left' | 'waiters' | 'store'

export interface Filter {
  readonly search: string
  /** Empty: all names. */
  readonly prefix: string
  readonly state: State
  readonly order: Order
  readonly isDescending: boolean
}

export const STATES: readonly [State, string][] = [
  ['all', 'All states'],
  ['contended', 'With waiters'],
  ['exclusive', 'Exclusive'],
  ['shared', 'Shared'],
  ['semaphores', 'Semaphores'],
  ['ending', 'Ending soon'],
  ['deadlocked', 'Deadlocked'],
]

/** The locks of these stores that the filter selects, in its order. */
export function selectLocks(
  stores: readonly LiveStore[],
  { search, prefix, state, order, isDescending }: Filter,
): Lock[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean)
  const found: Lock[] = []
  for (const store of stores) {
    const nowMs = storeNow(store)
    for (const lock of store.locks.values()) {
      if (prefix !== '' && !lock.name.startsWith(prefix)) continue
      if (!isInState(lock, state, nowMs)) continue
      if (words.every((word) => lock.lowerName.includes(word) || lock.holder.toLowerCase().includes(word)))
        found.push(lock)
    }
  }
  const compare = COMPARE[order]
  const sign = isDescending ? -1 : 1
  return found.sort((a, b) => sign * compare(a, b) || byName(a, b))
}

function isInState(lock: Lock, state: State, nowMs: number): boolean {
  if (state === 'all') return true
  if (state === 'contended') return lock.waiters > 0
  if (state === 'deadlocked') return lock.isDeadlocked
  if (state === 'ending') return lock.end > 0 && lock.end - nowMs < 0.2 * lock.longest
  return lock.kind === { exclusive: EXCLUSIVE, shared: SHARED, semaphores: SEMAPHORE }[state]
}

const byText = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)
const byName = (a: Lock, b: Lock): number => byText(a.name, b.name) || a.store - b.store

const COMPARE: Record<Order, (a: Lock, b: Lock) => number> = {
  name: byName,
  mode: (a, b) => a.kind - b.kind,
  holder: (a, b) => byText(a.holder, b.holder),
  // The oldest has the smallest moment.
  age: (a, b) => (b.since || Number.MAX_SAFE_INTEGER) - (a.since || Number.MAX_SAFE_INTEGER),
  left: (a, b) => (a.end || Number.MAX_SAFE_INTEGER) - (b.end || Number.MAX_SAFE_INTEGER),
  waiters: (a, b) => a.waiters - b.waiters,
  store: (a, b) => a.store - b.store,
}

/** The parts of names before the first colon, the most frequent ones first. */
export function prefixesOf(stores: readonly LiveStore[]): [prefix: string, count: number][] {
  const counts = new Map<string, number>()
  for (const { locks } of stores) {
    for (const { name } of locks.values()) {
      const at = name.indexOf(':')
      if (at > 0) counts.set(name.slice(0, at + 1), (counts.get(name.slice(0, at + 1)) ?? 0) + 1)
    }
  }
  return [...counts].sort(([a, x], [b, y]) => y - x || byText(a, b)).slice(0, MAX_PREFIXES)
}

const MAX_PREFIXES = 30
