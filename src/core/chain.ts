import type { Random } from './random.ts'

/**
 * One line of work: what a callback, with everything that it calls, holds and waits for. The claims of a chain have ids that begin with the chain's own,
 * so that everybody who inspects the store can tell which leases stand and fall with which waiters, and nothing more is stored.
 *
 * An instance as a whole is no chain: that one of its tasks holds what another waits for says nothing about either.
 */
export class Chain {
  readonly id: string
  readonly #random: Random
  #claims = 0

  /** The id of the claim that began it, or one of the same form that nobody has. */
  constructor(id: string, random: Random) {
    this.id = id
    this.#random = random
  }

  nextClaimId(): string {
    this.#claims += 1
    return `${this.id}.${claimPart(this.#claims, this.#random)}`
  }
}

/**
 * A claim's own part of its id: a count, so that the claims of an instance can be put in order, and 72 random bits.
 * A client that has seen other ids of the instance, in messages for example, must not be able to name a claim that
 * waits: it could forge messages to that claim.
 */
export const claimPart = (count: number, random: Random): string =>
  `${count.toString(36)}-${random.id().slice(0, SECRET_LENGTH)}`

const SECRET_LENGTH = 12

/** Whether the first of two claims was made before the second, as far as their ids tell: undefined for claims of two instances, or of a chain. */
export function madeBefore(claimId: string, other: string): boolean | undefined {
  const [prefix, count, inChain] = claimId.split('.')
  const [otherPrefix, otherCount, otherInChain] = other.split('.')
  if (prefix !== otherPrefix || count === undefined || otherCount === undefined) return undefined
  if (inChain !== undefined || otherInChain !== undefined) return undefined
  // The count ends where the first character comes that is no digit.
  return Number.parseInt(count, 36) < Number.parseInt(otherCount, 36)
}

/** `prefix.n` is a chain of its own, `prefix.n.m` belongs to that. An id of another form, as other clients may have, stands for itself. */
export function chainIdOf(claimId: string): string {
  const parts = claimId.split('.')
  return parts.length === 3 ? `${parts[0]}.${parts[1]}` : claimId
}
