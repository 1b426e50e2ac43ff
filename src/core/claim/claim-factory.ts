import type { Metadata } from '../driver.ts'
import type { LeaseOptions } from '../lease/held-lease.ts'
import type { TrackedClaim } from '../store/store-client.ts'
import type { Random } from '../time/random.ts'
import { Chain, claimPart } from './chain.ts'
import type { ClaimWatcher } from './pending-claim.ts'

/** A claim as a primitive describes it. The arguments have been validated. */
export interface ClaimRequest extends LeaseOptions {
  readonly lockName: string
  readonly mode: 'exclusive' | 'shared'
  readonly limit?: number | undefined
  /** @default 1 */
  readonly permits?: number | undefined
  readonly ttlMs: number
  readonly metadata?: Metadata | undefined
  /** How long to wait for the lock. 0: return the first answer. */
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  /** Takes the lock from its current holders. */
  readonly steal?: true | undefined
  /** With `steal`: the largest fencing token of a lease that the claim may end. */
  readonly stealUpTo?: number | undefined
  /**
   * All claims of one group are granted in one step, or none is. They must be made in the same synchronous step. Needs
   * a driver with `groups`.
   */
  readonly group?: string | undefined
  readonly watcher?: ClaimWatcher | undefined
}

export interface ClaimFactoryOptions {
  readonly holderId: string
  readonly waiterTtlMs: number
  readonly random: Random
}

/** Creates the claims of one instance, with ids that are unique over all processes. */
export class ClaimFactory {
  readonly #options: ClaimFactoryOptions
  readonly #prefix: string
  #count = 0

  constructor(options: ClaimFactoryOptions) {
    this.#options = options
    this.#prefix = options.random.id().slice(0, PREFIX_LENGTH)
  }

  create(request: ClaimRequest): TrackedClaim {
    const { lockName, mode, limit, permits = 1, ttlMs, metadata, waitMs } = request
    const { chain, sharedChain, steal, stealUpTo, group } = request
    const claim: { -readonly [Part in keyof TrackedClaim]: TrackedClaim[Part] } = {
      lockName,
      claimId: sharedChain?.nextMemberId() ?? chain?.nextClaimId() ?? this.#nextClaimId(),
      holderId: this.#options.holderId,
      mode,
      permits,
      ttlMs,
      waitMs: waitMs > 0 ? this.#options.waiterTtlMs : 0,
      abandoned: false,
    }
    if (limit !== undefined) claim.limit = limit
    if (metadata !== undefined) claim.metadata = metadata
    if (steal) claim.steal = true
    if (stealUpTo !== undefined) claim.stealUpTo = stealUpTo
    if (group !== undefined) claim.group = group
    return claim
  }

  /** For leases that are acquired together, outside of any callback. */
  newChain(): Chain {
    return new Chain(this.#nextClaimId(), this.#options.random)
  }

  #nextClaimId(): string {
    this.#count += 1
    return `${this.#prefix}.${claimPart(this.#count, this.#options.random)}`
  }
}

/** All claims of one instance share a prefix, so that they can be put in order. The claim's own part is unique. */
const PREFIX_LENGTH = 6
