import type { Seen } from './store.ts'

/** A lock that is held or waited for, as `top` shows it. */
export interface LockRow {
  readonly lockName: string
  /** The holder of the oldest lease. Undefined if the lock has only waiters. */
  readonly holderId?: string
  readonly holders: number
  /** When the oldest lease was granted. Undefined if that is unknown. */
  readonly acquiredAtMs?: number
  /** When the last lease ends. Undefined if it has no end of its own. */
  readonly expiresAtMs?: number
  readonly waiters: number
  /** Since when the first of them waits. */
  readonly waitingSinceMs?: number
  readonly handOffs: Rate
}

/** Hand-offs per second. A lock that had another holder at every look may have had more in between. */
export interface Rate {
  readonly perSecond: number
  readonly isAtLeast: boolean
}

/** The hand-offs of the last looks at a store. */
export interface History {
  /** The claims that held each lock at the last look. */
  readonly holders: ReadonlyMap<string, ReadonlySet<string>>
  readonly looks: readonly Look[]
}

interface Look {
  readonly atMs: number
  /** How often each lock changed its holder since the look before. */
  readonly handOffs: ReadonlyMap<string, number>
}

export const NO_HISTORY: History = { holders: new Map(), looks: [] }

/**
 * Adds a look to the history. A hand-off is a lease that ended and one that began, on the same lock, since the look
 * before. The store keeps no count of grants, so what happens between two looks is seen as one hand-off at most.
 */
export function observed({ holders: before, looks }: History, { leases }: Seen, atMs: number): History {
  const holders = new Map<string, Set<string>>()
  for (const { lockName, claimId } of leases) {
    const claims = holders.get(lockName)
    if (claims === undefined) holders.set(lockName, new Set([claimId]))
    else claims.add(claimId)
  }
  const handOffs = new Map<string, number>()
  for (const [lockName, now] of holders) {
    const earlier = before.get(lockName) ?? new Set()
    const begun = [...now].filter((claimId) => !earlier.has(claimId)).length
    const ended = earlier.size - (now.size - begun)
    if (Math.min(begun, ended) > 0) handOffs.set(lockName, Math.min(begun, ended))
  }
  return { holders, looks: [...looks, { atMs, handOffs }].slice(-MAX_LOOKS) }
}

/** The hand-offs of one lock in the time of the history. Of all locks without a name. */
export function rateOf({ looks }: History, lockName?: string): Rate {
  const [first, ...later] = looks
  const last = later.at(-1)
  if (first === undefined || last === undefined) return { perSecond: 0, isAtLeast: false }
  const counts = later.map(({ handOffs }) =>
    lockName === undefined ? sum(handOffs.values()) : (handOffs.get(lockName) ?? 0),
  )
  const perSecond = sum(counts) / Math.max(0.001, (last.atMs - first.atMs) / 1_000)
  return { perSecond, isAtLeast: counts.every((count) => count > 0) }
}

/** One row for each lock, in the order of the store. */
export function rowsFrom({ leases, waiters }: Seen, history: History): LockRow[] {
  const locks = new Map<string, Mutable<LockRow>>()
  const rowOf = (lockName: string): Mutable<LockRow> => {
    const known = locks.get(lockName)
    if (known !== undefined) return known
    const row = { lockName, holders: 0, waiters: 0, handOffs: rateOf(history, lockName) }
    locks.set(lockName, row)
    return row
  }
  for (const { lockName, holderId, acquiredAtMs, expiresAtMs } of leases) {
    const row = rowOf(lockName)
    const isOldest = acquiredAtMs > 0 && acquiredAtMs < (row.acquiredAtMs ?? Number.POSITIVE_INFINITY)
    if (isOldest || row.holders === 0) row.holderId = holderId
    if (isOldest) row.acquiredAtMs = acquiredAtMs
    if (expiresAtMs !== undefined) row.expiresAtMs = Math.max(expiresAtMs, row.expiresAtMs ?? 0)
    row.holders += 1
  }
  for (const { lockName, waitingSinceMs } of waiters) {
    const row = rowOf(lockName)
    row.waiters += 1
    row.waitingSinceMs = Math.min(waitingSinceMs, row.waitingSinceMs ?? waitingSinceMs)
  }
  return [...locks.values()]
}

type Mutable<Type> = { -readonly [Key in keyof Type]: Type[Key] }

const sum = (numbers: Iterable<number>): number => [...numbers].reduce((total, each) => total + each, 0)

/** The first one only begins the time of the others. */
const MAX_LOOKS = 11
