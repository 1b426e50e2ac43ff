import { LeaseLostError, StoreError, UnsupportedError } from '../errors.ts'
import { trustedUntil } from '../lease/deadline.ts'
import type { Granted } from '../lease/granted.ts'
import type { HandOver } from '../lease/hand-over.ts'
import type { HeldLease, LeaseOptions } from '../lease/held-lease.ts'
import { NOT_IN_STORE } from '../lease/renewer.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import { type Clock, isPast } from '../time/clock.ts'
import { Restores } from './restores-in-flight.ts'

/** How a lease continues after it is restored. */
export interface RestoreRequest {
  readonly heartbeat: boolean
  /** @default the TTL that the lease had in the process that handed it over */
  readonly ttlMs?: number
}

export interface RestoreParts {
  readonly clock: Clock
  readonly store: StoreClient
  readonly inFlight: InFlight
  /** Throws `ClosedError` when the instance is closed. */
  assertOpen(): void
}

/** Creates the lease. It is called in the same synchronous step as the last check. */
type Hold = (claim: TrackedClaim, granted: Granted, options: LeaseOptions) => HeldLease

/** Continues leases that another process has handed over. */
export class LeaseRestorer {
  readonly #parts: RestoreParts
  readonly #restores = new Restores()

  constructor(parts: RestoreParts) {
    this.#parts = parts
  }

  /**
   * Renews the lease once, and holds it if the store confirms the renewal. If the store does not answer, the lease
   * stays in the store until it expires, and the same text can be restored again.
   *
   * @throws `UnsupportedError` where a lease lasts as long as its connection; `InvalidArgumentError` while the same
   * lease is being restored; `LeaseLostError` if the store no longer has the lease; `StoreError`; `ClosedError`;
   * `OverloadError`
   */
  async restore(handedOver: HandOver, request: RestoreRequest, hold: Hold): Promise<HeldLease> {
    const { driver } = this.#parts.store
    if (driver.capabilities.expiry === 'session') {
      const reason = 'a lease ends with the connection that acquired it'
      throw new UnsupportedError(`the ${driver.name} driver cannot restore a lease: ${reason}`)
    }
    const { claimId } = handedOver
    this.#restores.begin(claimId)
    try {
      return await this.#restore(handedOver, request, hold)
    } finally {
      this.#restores.end(claimId)
    }
  }

  async #restore(handedOver: HandOver, request: RestoreRequest, hold: Hold): Promise<HeldLease> {
    const { store, clock, inFlight, assertOpen } = this.#parts
    const { lockName, claimId, fencingToken, holderId, metadata, acquiredAtMs, storeAtMs } = handedOver
    const { minHoldMs = 0, maxHoldMs = Number.POSITIVE_INFINITY } = handedOver
    const { heartbeat, ttlMs = handedOver.ttlMs } = request
    const sent = clock.now()
    const renewal = inFlight.track(store.renew({ lockName, claimId, fencingToken, ttlMs }))
    const answer = await renewal.catch((error: unknown) => {
      this.#restores.unanswered(claimId, ttlMs)
      throw error
    })
    const answered = clock.now()
    assertOpen()
    if (answer !== 'renewed') {
      this.#restores.forget(claimId)
      throw new LeaseLostError(lockName, fencingToken, NOT_IN_STORE)
    }
    // An unanswered renewal, of the first holder or of an earlier restore, may reach the store after this one and set
    // the lease to a shorter end. So the lease is trusted for no longer than the shortest of them.
    const unansweredMs = Math.min(
      handedOver.unansweredMs ?? Number.POSITIVE_INFINITY,
      this.#restores.unansweredMs(claimId),
    )
    const grantedMs = Math.min(ttlMs, unansweredMs)
    if (isPast(trustedUntil(sent, grantedMs), answered)) {
      throw new StoreError(`the store confirmed the restored lease on "${lockName}" too late: it may have ended since`)
    }
    const exclusive = { mode: 'exclusive', permits: 1, waitMs: 0, abandoned: false } as const
    const claim: TrackedClaim = { lockName, claimId, holderId, ttlMs, ...exclusive, ...(metadata && { metadata }) }
    const granted: Granted = {
      granted: true,
      grant: { granted: true, fencingToken, ttlMs: grantedMs, acquiredAtMs },
      sent,
      answered,
      unansweredMs: Number.isFinite(unansweredMs) ? unansweredMs : undefined,
      storeAtMs,
    }
    const lease = hold(claim, granted, { heartbeat, minHoldMs, maxHoldMs })
    this.#restores.forget(claimId)
    return lease
  }
}
