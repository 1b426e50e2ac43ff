import { InvalidArgumentError, LeaseLostError, OverloadError, StoreError, UnsupportedError } from '../errors.ts'
import { trustedUntil } from '../lease/deadline.ts'
import type { HandOver } from '../lease/hand-over.ts'
import type { LeaseOptions, LeaseStart } from '../lease/held-lease.ts'
import type { LeaseUse } from '../lease/lease-use.ts'
import { NOT_IN_STORE } from '../lease/renewer.ts'
import { MAX_UNANSWERED_RESTORES } from '../limits.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'
import { type Clock, isPast } from '../time/clock.ts'

/** How a lease continues after it is restored. */
export interface RestoreRequest {
  readonly heartbeat: boolean
  /** @default the TTL that the lease had in the process that handed it over */
  readonly ttlMs?: number
}

interface RestoreParts {
  readonly clock: Clock
  readonly store: StoreClient
  readonly inFlight: InFlight
  /** Throws `ClosedError` when the instance is closed. */
  assertOpen(): void
  /** Creates the lease. It is called in the same synchronous step as the last check. */
  hold(claim: TrackedClaim, handedOver: HandOver, start: LeaseStart, options: LeaseOptions): LeaseUse
}

/**
 * Continues leases that another process has handed over. Two restores of the same lease must not even be sent: the
 * second one would set the lease to another end than the one that the first one relies on. A restore that was never
 * answered may arrive after the next one was answered.
 */
export class LeaseRestorer {
  readonly #parts: RestoreParts
  /** For each claim, the shortest TTL that was never answered. */
  readonly #unanswered = new Map<string, number>()

  constructor(parts: RestoreParts) {
    this.#parts = parts
  }

  /**
   * Renews the lease once, and holds it if the store confirms the renewal. If the store does not answer, the lease
   * stays in the store until it expires, and the same text can be restored again.
   *
   * @throws `UnsupportedError` where a lease lasts as long as its connection; `InvalidArgumentError` while this process
   * holds the same lease or is restoring it; `LeaseLostError` if the store no longer has the lease; `StoreError`;
   * `ClosedError`; `OverloadError` if too many restores were never answered
   */
  async restore(handedOver: HandOver, request: RestoreRequest): Promise<LeaseUse> {
    const { driver, waiters } = this.#parts.store
    if (driver.capabilities.expiry === 'session') {
      const reason = 'a lease ends with the connection that acquired it'
      throw new UnsupportedError(`the ${driver.name} driver cannot restore a lease: ${reason}`)
    }
    const { claimId } = handedOver
    if (waiters.leaseOf(claimId) !== undefined || waiters.restoring.has(claimId)) throw restoredTwice()
    if (!this.#unanswered.has(claimId) && this.#unanswered.size >= MAX_UNANSWERED_RESTORES) {
      throw new OverloadError(
        `the store never answered ${MAX_UNANSWERED_RESTORES} restores of this instance: repeat those first`,
      )
    }
    waiters.restoring.add(claimId)
    try {
      return await this.#restore(handedOver, request)
    } finally {
      waiters.restoring.delete(claimId)
    }
  }

  async #restore(handedOver: HandOver, request: RestoreRequest): Promise<LeaseUse> {
    const { store, clock, inFlight, assertOpen, hold } = this.#parts
    const { lockName, claimId, fencingToken, holderId, metadata, storeAtMs } = handedOver
    const { minHoldMs = 0, maxHoldMs = Number.POSITIVE_INFINITY } = handedOver
    const { heartbeat, ttlMs = handedOver.ttlMs } = request
    const sent = clock.now()
    const renewal = inFlight.track(store.renew({ lockName, claimId, fencingToken, ttlMs }))
    const answer = await renewal.catch((error: unknown) => {
      this.#unanswered.set(claimId, Math.min(this.#unansweredMs(claimId), ttlMs))
      throw error
    })
    const answered = clock.now()
    assertOpen()
    if (answer !== 'renewed') {
      this.#unanswered.delete(claimId)
      throw new LeaseLostError(lockName, fencingToken, NOT_IN_STORE.message)
    }
    // An unanswered renewal, of the first holder or of an earlier restore, may reach the store after this one and set
    // the lease to a shorter end. So the lease is trusted for no longer than the shortest of them.
    const unansweredMs = Math.min(handedOver.unansweredMs ?? Number.POSITIVE_INFINITY, this.#unansweredMs(claimId))
    const grantedMs = Math.min(ttlMs, unansweredMs)
    if (isPast(trustedUntil(sent, grantedMs), answered)) {
      throw new StoreError(`the store confirmed the restored lease on "${lockName}" too late: it may have ended since`)
    }
    const exclusive = { mode: 'exclusive', permits: 1, waiterTtlMs: 0, abandoned: false } as const
    const claim: TrackedClaim = { lockName, claimId, holderId, ttlMs, ...exclusive, ...(metadata && { metadata }) }
    const times = { sent, answered, grantedMs, storeAtMs }
    const start: LeaseStart = Number.isFinite(unansweredMs) ? { ...times, unansweredMs } : times
    const use = hold(claim, handedOver, start, { heartbeat, minHoldMs, maxHoldMs })
    this.#unanswered.delete(claimId)
    return use
  }

  #unansweredMs(claimId: string): number {
    return this.#unanswered.get(claimId) ?? Number.POSITIVE_INFINITY
  }
}

function restoredTwice(): InvalidArgumentError {
  const rule = 'restored only once: this process already holds the lease or is restoring it'
  return new InvalidArgumentError('text', undefined, rule, `text must be ${rule}`)
}
