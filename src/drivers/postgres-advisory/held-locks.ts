import type { ActivityEntry } from './activity-comment.ts'
import type { LockRequest } from './statements.ts'

/** A lease on an advisory lock, as the process that holds it knows it. */
export interface SessionLease extends ActivityEntry {
  readonly key: string
  readonly fencingToken: number
  readonly acquiredAtMs: number
}

/** The leases of one session, by claim id, and how many of them each key has. */
export class HeldLocks {
  readonly #leases = new Map<string, SessionLease>()
  readonly #keys = new Map<string, { count: number; readonly shared: boolean }>()

  get leases(): ReadonlyMap<string, SessionLease> {
    return this.#leases
  }

  has({ key }: LockRequest): boolean {
    return this.#keys.has(key)
  }

  /**
   * Whether a lease of this session excludes the lock. The server would grant it nevertheless: it only counts how often
   * a session has a lock.
   */
  excludes({ key, shared }: LockRequest): boolean {
    const held = this.#keys.get(key)
    return held !== undefined && !(held.shared && shared)
  }

  add(lease: SessionLease): void {
    this.#leases.set(lease.claimId, lease)
    const held = this.#keys.get(lease.key)
    if (held === undefined) this.#keys.set(lease.key, { count: 1, shared: lease.shared })
    else held.count += 1
  }

  remove({ claimId, key }: SessionLease): void {
    this.#leases.delete(claimId)
    const held = this.#keys.get(key)
    if (held === undefined) return
    held.count -= 1
    if (held.count === 0) this.#keys.delete(key)
  }

  clear(): void {
    this.#leases.clear()
    this.#keys.clear()
  }
}
