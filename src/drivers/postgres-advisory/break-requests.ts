import type { LeaseRef, LossListener } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { SessionLease } from './held-locks.ts'
import { breakKey } from './key.ts'
import type { Session } from './session.ts'

export interface BreakRequestParts {
  session(): Session | undefined
  leases(): readonly SessionLease[]
  /** Ends a lease. Its holder, if it still has one, loses it before that. */
  end(lease: Required<LeaseRef>, cause: Error): Promise<unknown>
}

/**
 * Finds out whether another client asks this process to let go of one of its leases. The server says who asks, and only
 * a role that could end the session counts. So this is no message that could be forged.
 */
export class BreakRequests {
  readonly #parts: BreakRequestParts
  /** Leases whose loss was reported. Core releases them. */
  #reported = new Set<string>()

  constructor(parts: BreakRequestParts) {
    this.#parts = parts
  }

  readonly look = async (listeners: ReadonlySet<LossListener>): Promise<void> => {
    const requests = (await this.#parts.session()?.breakRequests()) ?? NONE
    const before = this.#reported
    this.#reported = new Set()
    if (requests.size === 0) return
    for (const lease of this.#parts.leases()) {
      const role = requests.get(breakKey(lease))
      if (role === undefined) continue
      const { lockName, claimId, fencingToken } = lease
      this.#reported.add(claimId)
      const cause = new StoreError(`the role ${role} ended it`)
      // Core has released it by now, unless it only keeps the lock for `minHoldSeconds`, or the report was dropped:
      // core takes a bounded number of them, and the lease may be of an instance that does not watch.
      if (before.has(claimId)) await this.#parts.end({ lockName, claimId, fencingToken }, cause)
      else for (const listener of [...listeners]) listener.lost(claimId, cause)
    }
  }
}

const NONE: ReadonlyMap<string, string> = new Map()
