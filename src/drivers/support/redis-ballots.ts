import type { Clock } from '../../core/clock.ts'
import type { AcquireAnswer, Claim, Grant, LeaseRecord } from '../../core/driver.ts'
import type { TokenRefusal } from './redis-format.ts'
import type { NodeError, Votes } from './redis-quorum.ts'

export type Vote = AcquireAnswer | TokenRefusal

export type Outcome =
  /** `given`: other tokens that a minority has granted to the same claim, when it was asked for twice. */
  | { readonly kind: 'granted'; readonly given: readonly number[]; readonly grant: Grant }
  /** Enough nodes would have granted it, had its token been higher. */
  | { readonly kind: 'outbid'; readonly given: readonly number[] }
  | {
      readonly kind: 'refused'
      readonly given: readonly number[]
      readonly holder: LeaseRecord | undefined
      readonly askAgainMs: number
    }
  /** `given`: tokens that some nodes have granted all the same. */
  | { readonly kind: 'failed'; readonly given: readonly number[]; readonly errors: readonly NodeError[] }

/**
 * The tokens that a client proposes, and what becomes of them. A proposal is above everything that this client has seen and not below its clock in
 * microseconds. A node grants it only above its own mark. Any two quorums have a node in common, and that one has seen the token of the grant before: so tokens
 * rise with every grant of a name, whatever the clients' clocks show.
 */
export class Ballots {
  readonly #clock: Clock
  #last = 0
  /** What has to be taken off this client's clock, since a node said that it is absurdly far ahead. */
  #aheadUs = 0

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** One for each claim, rising: claims of one list may be about one name. */
  next(count: number): number[] {
    const first = Math.max(this.#last + 1, Math.floor(this.#nowUs()))
    this.#last = first + count - 1
    return Array.from({ length: count }, (_, at) => first + at)
  }

  decide(votes: Votes<Vote>, claim: Claim, quorum: number): Outcome | undefined {
    const { answers, errors, pending } = votes
    for (const answer of answers) this.#learn(answer)
    const grants = answers.filter((answer) => 'granted' in answer && answer.granted) as Grant[]
    const given = grants.map(({ fencingToken }) => fencingToken)
    const [token, agreed] = mostFrequent(given)
    if (agreed >= quorum) {
      // Whether enough of it is left is checked where it is trusted: in core, from before the first ballot was sent.
      const fencingToken = token as number
      const { ttlMs } = claim
      const grant = { granted: true, fencingToken, ttlMs, acquiredAtMs: acquiredAt(fencingToken) } as const
      return { kind: 'granted', given: given.filter((other) => other !== fencingToken), grant }
    }
    if (agreed + pending >= quorum) return undefined
    const refusals = answers.filter((answer) => 'granted' in answer && !answer.granted)
    const nodes = answers.length + errors.length + pending
    if (errors.length > nodes - quorum) return { kind: 'failed', given, errors }
    if (refusals.length + errors.length + pending <= nodes - quorum) return { kind: 'outbid', given }
    // What is still to come may yet decide between "somebody has it" and "nobody could be asked".
    if (refusals.length <= nodes - quorum && pending > 0) return undefined
    // Of an even number of nodes, half of them do not tell a holder from a rival that has lost, too: what is still to come does.
    if (refusals.length < quorum && pending > 0 && refusals.length + pending >= quorum) return undefined
    // With a part of the vote given to this claim, only a quorum makes a holder.
    const enough = given.length > 0 ? quorum : nodes - quorum + 1
    return { kind: 'refused', given, ...holderIn(refusals as Refused[], enough) }
  }

  #learn(answer: Vote): void {
    if (!('tokenRefused' in answer)) return
    if (answer.mark !== undefined) this.#last = Math.max(this.#last, answer.mark)
    if (answer.nowMs !== undefined) {
      this.#aheadUs += this.#nowUs() - answer.nowMs * 1_000
      this.#last = Math.min(this.#last, Math.floor(this.#nowUs()))
    }
  }

  #nowUs(): number {
    return this.#clock.now().wallMs * 1_000 - this.#aheadUs
  }
}

/**
 * The nodes' clocks differ by some milliseconds, and a lease has one beginning. The token is the same on all of them, and was a clock in microseconds when it
 * was proposed.
 */
export const acquiredAt = (fencingToken: number): number => Math.floor(fencingToken / 1_000)

/** A node's record, as every node would tell it. */
export function agreedRecord(record: LeaseRecord): LeaseRecord {
  const { fencingToken, acquiredAtMs, expiresAtMs } = record
  if (fencingToken === 0) return record
  const beganMs = acquiredAt(fencingToken)
  const ends = expiresAtMs !== undefined && { expiresAtMs: beganMs + expiresAtMs - acquiredAtMs }
  return { ...record, acquiredAtMs: beganMs, ...ends }
}

interface Refused {
  readonly holder?: LeaseRecord
  readonly askAgainMs?: number
}

/** Who stands in the way, if so many nodes name the same; in a split vote nobody holds it. */
function holderIn(refusals: readonly Refused[], enough: number) {
  const holders = refusals.flatMap(({ holder }) => (holder === undefined ? [] : [holder]))
  const [claimId, count] = mostFrequent(holders.map((holder) => holder.claimId))
  const named = count >= enough ? holders.find((holder) => holder.claimId === claimId) : undefined
  const askAgainMs = Math.min(...refusals.map((refusal) => refusal.askAgainMs ?? LATER_MS), LATER_MS)
  return { holder: named && agreedRecord(named), askAgainMs }
}

function mostFrequent<T>(values: readonly T[]): [value: T | undefined, count: number] {
  const counts = new Map<T, number>()
  let best: T | undefined
  for (const value of values) {
    const count = (counts.get(value) ?? 0) + 1
    counts.set(value, count)
    if (best === undefined || count > (counts.get(best) ?? 0)) best = value
  }
  return [best, best === undefined ? 0 : (counts.get(best) as number)]
}

/** How late a waiter looks again when nothing is known of the holder's end. */
const LATER_MS = 1_000
