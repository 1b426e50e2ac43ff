import type { HeldLease } from '../../core/lease/held-lease.ts'
import type { ClaimHooks } from './claims.ts'

/** The leases of an instance by lock name: `release(lockName)` and `extend(lockName)` name a lock, not a lease. */
export class OwnLeases implements ClaimHooks {
  readonly #leases = new Map<string, HeldLease>()

  get(lockName: string): HeldLease | undefined {
    return this.#leases.get(lockName)
  }

  readonly taken = (lease: HeldLease): void => {
    // A listener of `acquired` may have ended it already. Nothing would remove it later.
    if (lease.held) this.#leases.set(lease.lockName, lease)
  }

  readonly ended = (lease: HeldLease): void => {
    if (this.#leases.get(lease.lockName) === lease) this.#leases.delete(lease.lockName)
  }
}
