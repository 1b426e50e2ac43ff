import { hash } from 'node:crypto'
import type { ActivityEntry } from './activity-comment.ts'

/** A request for an advisory lock. It has no token yet. */
export interface LockRequest extends ActivityEntry {
  readonly key: string
}

/** A lease on an advisory lock, as the process that holds it knows it. */
export interface SessionLease extends LockRequest {
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

  /** Whether a lease of this session excludes the lock. The server would grant a session its own lock again. */
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

/**
 * The key of an advisory lock for a lock name: the first eight bytes of the SHA-256 of its UTF-8 form, as a signed
 * big-endian number. It is returned in decimal, because a JavaScript number cannot hold it. With 64 bits, a million
 * names that are held at once have a collision once in 37 million cases.
 */
export const advisoryKey = (lockName: string): string => hash('sha256', lockName, 'buffer').readBigInt64BE(0).toString()

/** The key by which a client asks the holder of a lease to let go of it. */
export const releaseRequestKey = ({ claimId, fencingToken }: Pick<SessionLease, 'claimId' | 'fencingToken'>): string =>
  advisoryKey(`holdfast:force-release:${claimId}:${fencingToken}`)
