import type { Claim, Grant, LeaseRef } from '../../core/driver.ts'
import type { Clock } from '../../core/time/clock.ts'
import { systemRandom } from '../../core/time/random.ts'
import { readMessage } from './format.ts'

/** A call that asks for claims which wait. */
export interface WaitingCall {
  /** The channel on which its grants are published. */
  readonly channel: string
  /** New with every call: a grant that it proves was made after the server had run this call. */
  readonly secret: string
  readonly slot: number
  readonly sentMs: number
  /** When it was sent, this client listened, but not to this slot: a grant right after a refusal is missed. */
  readonly isUnheard: boolean
}

/** What a message says: the claim is granted, or without a grant, the claim should ask again. */
export interface WakeUp {
  readonly claim: Claim
  readonly grant?: Grant
}

/**
 * The claims of this client that may wait, each with the newest call that asked for it.
 *
 * It decides one thing, which only the driver can decide because only the driver knows the secrets: whether a message
 * is genuine and belongs to the newest call. What a genuine grant is worth, core decides: whether the claim still
 * waits, whether an answer is in flight, and whether enough of the lease is left.
 */
export class WaitingClaims {
  readonly #clock: Clock
  readonly #entries = new Map<string, Entry>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Call it before the request is sent: its grants can arrive before its answer. */
  sends(
    claims: readonly Claim[],
    { channel, slot, isUnheard }: Pick<WaitingCall, 'channel' | 'slot' | 'isUnheard'>,
  ): WaitingCall {
    const call: WaitingCall = { channel, secret: systemRandom.id(), slot, sentMs: this.#nowMs(), isUnheard }
    for (const claim of claims) {
      if (claim.waitMs === 0) continue
      this.#entries.set(claim.claimId, { claim, call })
      if (this.#entries.size % FORGET_EVERY === 0) this.#forgetAbandoned()
    }
    return call
  }

  /** The claim no longer waits. With a call: unless a newer one has asked for it since. */
  forget({ claimId }: LeaseRef, call?: WaitingCall): void {
    if (call === undefined || this.#entries.get(claimId)?.call === call) this.#entries.delete(claimId)
  }

  get slots(): Set<number> {
    return new Set([...this.#entries.values()].map(({ call }) => call.slot))
  }

  /** Undefined for a message that is about no claim of ours, that is forged, or that answers an older call. */
  read(channel: string, text: string): WakeUp | undefined {
    const message = readMessage(text)
    const entry = message && this.#entries.get(message.claimId)
    if (message === undefined || entry === undefined) return undefined
    const { claim, call } = entry
    if (message.grant === undefined) return { claim }
    if (call.channel !== channel || !message.isProvedBy(call.secret)) return undefined
    return isFarAhead(message.grant) ? { claim } : { claim, grant: trimmed(message.grant, claim) }
  }

  /** Claims that were never withdrawn, because of a bug elsewhere. Memory must not grow for it. */
  #forgetAbandoned(): void {
    const nowMs = this.#nowMs()
    for (const [claimId, { claim, call }] of this.#entries) {
      if (call.sentMs + claim.waitMs < nowMs) this.#entries.delete(claimId)
    }
  }

  #nowMs(): number {
    return this.#clock.now().monotonicMs
  }
}

interface Entry {
  readonly claim: Claim
  readonly call: WaitingCall
}

/** The store keeps whole milliseconds, so its lease may last a fraction longer than the claim asked for. */
const trimmed = (grant: Grant, { ttlMs }: Claim): Grant => (grant.ttlMs <= ttlMs ? grant : { ...grant, ttlMs })

/**
 * A token that is more than an hour ahead of the server's clock may be correct, because the clock was set back. But a
 * resource that has seen such a token refuses all later ones. So the claim asks the server for it.
 */
const isFarAhead = ({ fencingToken, acquiredAtMs }: Grant): boolean => fencingToken / 1_000 - acquiredAtMs > 3_600_000

const FORGET_EVERY = 1_000
