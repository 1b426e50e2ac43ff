import type { AcquireAnswer, Grant, LeaseRecord, Refusal } from '../../core/driver.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { TokenRefusal } from '../redis/format.ts'
import type { Ask } from './asks.ts'
import type { NodeError, Votes } from './quorum.ts'

export type Vote = AcquireAnswer | TokenRefusal

export type Outcome =
  | { readonly kind: 'granted'; readonly grant: Grant }
  /** Enough nodes would have granted it, or would have done so in the right order, had its token been above this. */
  | { readonly kind: 'outbid'; readonly mark: number }
  | { readonly kind: 'refused'; readonly holder: LeaseRecord | undefined; readonly askAgainMs: number }
  | { readonly kind: 'failed'; readonly errors: readonly NodeError[] }

export interface BallotTerms {
  readonly clock: Clock
  readonly quorum: number
  /** How far ahead of a node's clock a token may be. */
  readonly mostAheadUs: number
}

/**
 * The tokens that a client proposes, and what becomes of them. A proposal is above everything that this client has seen
 * and not below its clock in microseconds. A node grants it only above its own mark. Any two quorums have a node in
 * common, and that one has seen the token of the grant before: so tokens rise with every grant of a name, whatever the
 * clients' clocks show.
 */
export class Ballots {
  readonly #terms: BallotTerms
  #last = 0
  /** What has to be taken off this client's clock, since enough nodes said that it is too far ahead. */
  #aheadUs = 0

  constructor(terms: BallotTerms) {
    this.#terms = terms
  }

  /** A token for the next round of each: rising, because some may be about one name. */
  propose(asks: readonly Ask[]): void {
    const first = Math.max(this.#last + 1, Math.floor(this.#nowUs()))
    this.#last = first + asks.length - 1
    asks.forEach(({ isRepeat, mark, tokens }, at) => {
      if (!isRepeat) tokens.push(Math.max(first, mark + 1) + at)
    })
  }

  /**
   * Of the current round. A vote counts for this round's token only, and never for another one that the claim was given
   * before.
   */
  decide({ answers, errors, pending }: Votes<Vote>, { claim, tokens, isRepeat }: Ask): Outcome | undefined {
    const { quorum } = this.#terms
    if (this.#aheadUs !== 0) this.#trustClock(answers)
    const token = tokens.at(-1) as number
    const nodes = answers.length + errors.length + pending
    const grants = answers.filter((answer) => isGrant(answer) && answer.fencingToken === token)
    if (grants.length >= quorum) {
      // A node that has given a higher one may be the only one left that remembers it. What was granted before is no
      // new grant.
      const higher = isRepeat ? 0 : this.#highestMark(answers, nodes)
      if (higher > token) return { kind: 'outbid', mark: higher }
      // Whether enough of it is left is checked where it is trusted: in core, from before the first ballot was sent.
      const acquiredAtMs = acquiredAt(token)
      return { kind: 'granted', grant: { granted: true, fencingToken: token, ttlMs: claim.ttlMs, acquiredAtMs } }
    }
    if (grants.length + pending >= quorum) return undefined
    const refusals = answers.filter(isRefusal)
    if (errors.length > nodes - quorum) return { kind: 'failed', errors }
    if (refusals.length + errors.length + pending <= nodes - quorum) {
      this.#correctClock(answers, nodes)
      return { kind: 'outbid', mark: this.#highestMark(answers, nodes) }
    }
    // What is still to come may yet decide between "somebody has it" and "nobody could be asked".
    if (refusals.length <= nodes - quorum && pending > 0) return undefined
    // Of an even number of nodes, half of them do not tell a holder from a rival that has lost, too: what is still to
    // come does.
    if (refusals.length < quorum && pending > 0 && refusals.length + pending >= quorum) return undefined
    // With a part of the vote given to this claim, only a quorum makes a holder.
    const enough = grants.length > 0 ? quorum : nodes - quorum + 1
    return { kind: 'refused', ...holderIn(refusals, enough) }
  }

  /** What a node says after the vote was decided without it. */
  learn(answer: Vote): void {
    if (!isTokenRefusal(answer) || answer.mark === undefined) return
    // Further ahead than that, a proposal above it would be refused everywhere else.
    if (answer.mark <= this.#nowUs() + this.#terms.mostAheadUs) this.#last = Math.max(this.#last, answer.mark)
  }

  /**
   * Without those that a quorum could not follow: a node whose clock is far ahead of the others' must not keep them
   * from granting.
   */
  #highestMark(answers: readonly Vote[], nodes: number): number {
    for (const answer of answers) this.learn(answer)
    const { quorum, mostAheadUs } = this.#terms
    const marks = answers.flatMap((answer) => (isTokenRefusal(answer) ? (answer.mark ?? []) : []))
    const followable = marks.filter((mark) => {
      const unable = answers.filter((answer) => reachOf(answer, mostAheadUs) <= mark)
      return unable.length <= nodes - quorum
    })
    return Math.max(...followable, 0)
  }

  /**
   * If so many say that this client's clock is too far ahead that the others are too few, it goes on with the clock of
   * one that makes them enough.
   */
  #correctClock(answers: readonly Vote[], nodes: number): void {
    const clocks = answers.flatMap((answer) =>
      isTokenRefusal(answer) && answer.mark === undefined ? answer.nowMs : [],
    )
    const missing = this.#terms.quorum - (nodes - clocks.length)
    if (missing <= 0) return
    const nowMs = clocks.toSorted((x, y) => y - x)[missing - 1] as number
    this.#aheadUs += this.#nowUs() - nowMs * 1_000
    this.#last = Math.min(this.#last, Math.floor(this.#nowUs()))
  }

  /**
   * Once a quorum would take tokens by this client's own clock, nothing is taken off it any more. Behind the other
   * clients' clocks, it would be outbid in every first round.
   */
  #trustClock(answers: readonly Vote[]): void {
    const { clock, quorum, mostAheadUs } = this.#terms
    const nowMs = answers.map(clockOf).toSorted((x, y) => y - x)[quorum - 1]
    if (nowMs !== undefined && clock.now().wallMs * 1_000 <= nowMs * 1_000 + mostAheadUs) this.#aheadUs = 0
  }

  #nowUs(): number {
    return this.#terms.clock.now().wallMs * 1_000 - this.#aheadUs
  }
}

const isTokenRefusal = (vote: Vote): vote is TokenRefusal => 'tokenRefused' in vote
const isGrant = (vote: Vote): vote is Grant => 'granted' in vote && vote.granted
const isRefusal = (vote: Vote): vote is Refusal => 'granted' in vote && !vote.granted

/** The highest token that the node would take now. */
function reachOf(vote: Vote, mostAheadUs: number): number {
  const byClock = clockOf(vote) * 1_000 + mostAheadUs
  return isTokenRefusal(vote) ? Math.max(byClock, (vote.mark ?? 0) + 1) : byClock
}

/** The node's clock when it answered, or before. */
function clockOf(vote: Vote): number {
  if (isTokenRefusal(vote)) return vote.nowMs
  return vote.granted ? vote.acquiredAtMs : (vote.answeredAtMs ?? 0)
}

/**
 * The nodes' clocks differ by some milliseconds, and a lease has one beginning. The token is the same on all of them,
 * and was a clock in microseconds when it was proposed.
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

/** Who stands in the way, if so many nodes name the same; in a split vote nobody holds it. */
function holderIn(refusals: readonly Refusal[], enough: number) {
  const holders = refusals.flatMap(({ holder }) => (holder === undefined ? [] : [holder]))
  const counts = new Map<string, number>()
  for (const { claimId } of holders) counts.set(claimId, (counts.get(claimId) ?? 0) + 1)
  const named = holders.find(({ claimId }) => (counts.get(claimId) as number) >= enough)
  const askAgainMs = Math.min(...refusals.map((refusal) => refusal.askAgainMs ?? LATER_MS), LATER_MS)
  return { holder: named && agreedRecord(named), askAgainMs }
}

/** How late a waiter looks again when nothing is known of the holder's end. */
const LATER_MS = 1_000
