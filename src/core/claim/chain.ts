import { MAX_CHAIN_DEPTH } from '../limits.ts'
import type { Random } from '../time/random.ts'

/**
 * The callback of a lease, as the claims that are made inside of it know it: their ids begin with the id of that lease's claim. So everyone who
 * inspects the store can tell which leases cannot be given back before which waiters are served, and nothing more is stored.
 *
 * Only ancestors count. A callback may run branches side by side, or a whole server: that one branch holds what another waits for
 * says nothing about either. Nor do two tasks of one instance have to do with each other.
 */
export class Chain {
  readonly id: string
  readonly #random: Random
  #claims = 0

  /** The id of the claim whose callback it is, or one of the same form that no claim has. */
  constructor(id: string, random: Random) {
    this.id = id
    this.#random = random
  }

  /** For a claim that is made inside the callback. */
  nextClaimId(): string {
    this.#claims += 1
    const part = claimPart(this.#claims, this.#random)
    // Too deep for a place of its own: the claim stands beside the lease that it is made under. That lease is then taken for one that will be given back: a
    // deadlock through it is not noticed, and none is made up.
    const parent = depthOf(this.id) < MAX_CHAIN_DEPTH ? this.id : this.id.slice(0, this.id.lastIndexOf('.'))
    return `${parent}.${part}`
  }

  /** The one callback of several leases that are taken together, inside this one. */
  together(): Chain {
    return new Chain(this.nextClaimId(), this.#random)
  }

  /** For a claim that is one of several whose callback this is: each of them is kept until all are there. */
  nextMemberId(): string {
    this.#claims += 1
    return `${this.id}${MEMBER}${claimPart(this.#claims, this.#random)}`
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
const MEMBER = '+'

/** Whether the first of two claims was made before the second, as far as their ids tell: undefined for claims of two instances, or of a chain. */
export function madeBefore(claimId: string, other: string): boolean | undefined {
  const [prefix, count, inChain] = claimId.split('.')
  const [otherPrefix, otherCount, otherInChain] = other.split('.')
  if (prefix !== otherPrefix || count === undefined || otherCount === undefined) return undefined
  if (inChain !== undefined || otherInChain !== undefined) return undefined
  // The count ends where the first character comes that is no digit.
  return Number.parseInt(count, 36) < Number.parseInt(otherCount, 36)
}

/** The chain that a claim's callback has, or will have: its own, or the one of all that are taken together with it. */
export function chainIdOf(claimId: string): string {
  const lastPart = claimId.lastIndexOf('.')
  const member = lastPart === -1 ? -1 : claimId.indexOf(MEMBER, lastPart)
  return member === -1 ? claimId : claimId.slice(0, member)
}

/**
 * That chain, and those around it, from the innermost outwards: `a.b.c`, `a.b`, `a`. An id with more parts than ours have, as other clients may use,
 * stands for itself.
 */
export function chainIdsOf(claimId: string): string[] {
  const own = chainIdOf(claimId)
  const ids = [own]
  if (depthOf(own) > MAX_CHAIN_DEPTH) return ids
  for (let end = own.lastIndexOf('.'); end > 0; end = own.lastIndexOf('.', end - 1)) ids.push(own.slice(0, end))
  return ids
}

/** How many claims stand in an id, after the instance's own part. */
function depthOf(id: string): number {
  let depth = 0
  for (let at = id.indexOf('.'); at !== -1; at = id.indexOf('.', at + 1)) depth += 1
  return depth
}
