import { MAX_CHAIN_DEPTH } from '../limits.ts'
import type { Random } from '../time/random.ts'

/**
 * Makes the ids of claims. They are unique across all processes.
 *
 * A chain is the callback of a lease, as the claims made inside it see it: their ids begin with the id of that lease's
 * claim. So a client that inspects the store can tell which leases cannot be released before which waiters are served.
 * Nothing else has to be stored for that. The claims outside of any callback have a chain, too: that of their instance.
 *
 * Only ancestors count. A callback may run branches in parallel, or a complete server: that one branch holds a lock for
 * which another one waits does not mean that either is stuck. Two tasks of one instance are not related either.
 */
export class Chain {
  readonly id: string
  readonly #random: Random
  #count = 0

  /** `id`: the id of the claim whose callback it is, or an id of the same form that no claim has. */
  constructor(id: string, random: Random) {
    this.id = id
    this.#random = random
  }

  /** Its id is the prefix of all ids of the instance: their claims can be put in order. */
  static ofInstance(random: Random): Chain {
    return new Chain(random.id().slice(0, PREFIX_LENGTH), random)
  }

  /** For a claim that is made inside the callback. */
  nextClaimId(): string {
    this.#count += 1
    const part = claimPart(this.#count, this.#random)
    // Beyond the maximum depth, the claim becomes a sibling of the lease that it is made under. That lease is then
    // assumed to be released at some time: a deadlock through it is not found, and no false one is reported.
    const parent = depthOf(this.id) < MAX_CHAIN_DEPTH ? this.id : this.id.slice(0, this.id.lastIndexOf('.'))
    return `${parent}.${part}`
  }

  /** The one callback of several leases that are acquired together. */
  newSharedChain(): Chain {
    return new Chain(this.nextClaimId(), this.#random)
  }

  /** For one of several claims that share this callback. Each of their leases is kept until all are granted. */
  nextMemberId(): string {
    this.#count += 1
    return `${this.id}${MEMBER}${claimPart(this.#count, this.#random)}`
  }
}

/**
 * A claim's own part of its id: a count, so that the claims of an instance can be put in order, and 72 random bits. The
 * random bits prevent a client that has seen other ids of the instance, in messages for example, from guessing the id
 * of a waiting claim and forging messages to it.
 */
const claimPart = (count: number, random: Random): string =>
  `${count.toString(36)}-${random.id().slice(0, SECRET_LENGTH)}`

/**
 * Whether the claim was made in this chain, and shares its callback with no other. Only then what is claimed in a
 * callback of its lease is made under this chain, too.
 */
export function isIn(chain: Chain, claimId: string): boolean {
  const lastPart = claimId.lastIndexOf('.')
  return claimId.slice(0, lastPart) === chain.id && !claimId.includes(MEMBER, lastPart)
}

/** Whether the claim was made outside of any callback. */
export const isOutermost = (claimId: string): boolean => depthOf(claimId) === 1

const PREFIX_LENGTH = 6
const SECRET_LENGTH = 12
const MEMBER = '+'

/**
 * Whether the first of two claims was made before the second, judged by their ids. Undefined for claims of two
 * different instances, and for a claim that was made inside a callback.
 */
export function madeBefore(claimId: string, other: string): boolean | undefined {
  const [prefix, count, inChain] = claimId.split('.')
  const [otherPrefix, otherCount, otherInChain] = other.split('.')
  if (prefix !== otherPrefix || count === undefined || otherCount === undefined) return undefined
  if (inChain !== undefined || otherInChain !== undefined) return undefined
  // parseInt stops at the `-`, which is not a digit in base 36.
  return Number.parseInt(count, 36) < Number.parseInt(otherCount, 36)
}

/** The id of the chain that the claim's callback has or will have: its own, or the one shared with other claims. */
export function chainIdOf(claimId: string): string {
  const lastPart = claimId.lastIndexOf('.')
  const member = lastPart === -1 ? -1 : claimId.indexOf(MEMBER, lastPart)
  return member === -1 ? claimId : claimId.slice(0, member)
}

/**
 * The ids of that chain and of those around it, from the innermost outwards: `a.b.c`, `a.b`, `a`. Other clients may use
 * ids with more parts than ours have. Such an id is returned alone.
 */
export function chainIdsOf(claimId: string): string[] {
  const own = chainIdOf(claimId)
  const ids = [own]
  if (depthOf(own) > MAX_CHAIN_DEPTH) return ids
  for (let end = own.lastIndexOf('.'); end > 0; end = own.lastIndexOf('.', end - 1)) ids.push(own.slice(0, end))
  return ids
}

/** The number of claims in an id, after the instance's prefix. */
function depthOf(id: string): number {
  let depth = 0
  for (let at = id.indexOf('.'); at !== -1; at = id.indexOf('.', at + 1)) depth += 1
  return depth
}
