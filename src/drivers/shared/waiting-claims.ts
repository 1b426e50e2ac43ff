import type { Claim, LeaseRef } from '../../core/driver.ts'
import type { Clock } from '../../core/time/clock.ts'

/** A call that asked for claims which wait. */
export interface WaitingCall {
  readonly sentMs: number
}

export interface WaitingClaim<Call> {
  readonly claim: Claim
  readonly call: Call
  /** The call before it. */
  readonly previous?: Call | undefined
}

/**
 * The claims of a driver that may wait, each with the newest call that asked for it. A driver compares a message with
 * them: whether it is genuine, and belongs to that call. What a genuine grant is worth, core decides: whether the claim
 * still waits, whether an answer is in flight, and whether enough of the lease is left.
 */
export class WaitingClaims<Call extends WaitingCall> {
  readonly #clock: Clock
  readonly #entries = new Map<string, WaitingClaim<Call>>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Call it before the request is sent: its grants can arrive before its answer. */
  sends(claims: readonly Claim[], call: Call): void {
    for (const claim of claims) {
      if (claim.waitMs === 0) continue
      const previous = this.#entries.get(claim.claimId)?.call
      this.#entries.set(claim.claimId, { claim, call, previous })
      if (previous === undefined && this.#entries.size % FORGET_EVERY === 0) this.#forgetAbandoned()
    }
  }

  /** The claim no longer waits. With a call: unless a newer one has asked for it since. */
  forget({ claimId }: LeaseRef, call?: Call): void {
    if (call === undefined || this.#entries.get(claimId)?.call === call) this.#entries.delete(claimId)
  }

  find(claimId: string): WaitingClaim<Call> | undefined {
    return this.#entries.get(claimId)
  }

  all(): Iterable<WaitingClaim<Call>> {
    return this.#entries.values()
  }

  /** Claims that were never withdrawn, because of a bug elsewhere. Memory must not grow for it. */
  #forgetAbandoned(): void {
    const nowMs = this.#clock.now().monotonicMs
    for (const [claimId, { claim, call }] of this.#entries) {
      if (call.sentMs + claim.waitMs < nowMs) this.#entries.delete(claimId)
    }
  }
}

const FORGET_EVERY = 1_000
