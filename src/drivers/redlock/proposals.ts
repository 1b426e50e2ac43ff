import type { AcquireAnswer, Grant, LeaseRecord, Refusal } from '../../core/driver.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { TokenRefusal } from '../redis/format.ts'
import { tokenAfter } from '../shared/tokens.ts'
import type { Attempt } from './attempts.ts'
import type { NodeError, Votes } from './quorum.ts'

export type Vote = AcquireAnswer | TokenRefusal

export type Outcome =
  | { readonly kind: 'granted'; readonly grant: Grant }
  /** With a token above this, enough nodes would have granted it, or would have granted it in the right order. */
  | { readonly kind: 'outbid'; readonly mark: number }
  | { readonly kind: 'refused'; readonly holder: LeaseRecord | undefined; readonly askAgainMs: number }
  | { readonly kind: 'failed'; readonly errors: readonly NodeError[] }

export interface ProposalTerms {
  readonly clock: Clock
  readonly quorum: number
  /** How far ahead of a node's clock a token may be. */
  readonly maxAheadUs: number
}

/**
 * The tokens that a client proposes, and the decision of each vote. A proposal is above every token that this client
 * has seen, and not below its clock in microseconds. A node grants it only above its own mark, which is the largest
 * token that it has granted. Any two quorums share a node, and that node has seen the token of the previous grant. So
 * tokens rise with every grant of a name, even if the clients' clocks are wrong.
 */
export class Proposals {
  readonly #terms: ProposalTerms
  #last = 0
  /** The correction of this client's clock, after enough nodes said that it is too far ahead. */
  #aheadUs = 0

  constructor(terms: ProposalTerms) {
    this.#terms = terms
  }

  /** Adds a token for the next round to each attempt. The tokens rise, because several attempts may be for one name. */
  propose(attempts: readonly Attempt[]): void {
    const first = tokenAfter(this.#last, this.#nowUs())
    this.#last = first + attempts.length - 1
    attempts.forEach(({ isRepeat, mark, tokens }, at) => {
      if (!isRepeat) tokens.push(Math.max(first, mark + 1) + at)
    })
  }

  /**
   * Decides the current round. Only votes for the token of this round count, not votes for an earlier token of the
   * claim. Undefined while votes are missing.
   */
  decide({ answers, errors, pending }: Votes<Vote>, { claim, tokens, isRepeat }: Attempt): Outcome | undefined {
    const { quorum } = this.#terms
    if (this.#aheadUs !== 0) this.#trustClock(answers)
    const token = tokens.at(-1) as number
    const nodes = answers.length + errors.length + pending
    const grants = answers.filter((answer) => isGrant(answer) && answer.fencingToken === token)
    if (grants.length >= quorum) {
      // A node that has granted a higher token may be the only one left that remembers it. A repeat is no new grant.
      const higher = isRepeat ? 0 : this.#highestMark(answers, nodes)
      if (higher > token) return { kind: 'outbid', mark: higher }
      // Core checks whether enough of the lease is left, counted from before the first proposal was sent.
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
    // The votes that are missing decide between "another client holds it" and "too few nodes answered".
    if (refusals.length <= nodes - quorum && pending > 0) return undefined
    // With an even number of nodes, refusals from half of them fit a holder and also a rival that has lost. The votes
    // that are missing decide.
    if (refusals.length < quorum && pending > 0 && refusals.length + pending >= quorum) return undefined
    // If this claim got some of the votes, only a quorum of refusals makes another claim the holder.
    const enough = grants.length > 0 ? quorum : nodes - quorum + 1
    return { kind: 'refused', ...holderIn(refusals, enough) }
  }

  /** Learns from a vote that arrived after the decision. */
  learn(answer: Vote): void {
    if (!isTokenRefusal(answer) || answer.mark === undefined) return
    // All other nodes would refuse a proposal that is further ahead.
    if (answer.mark <= this.#nowUs() + this.#terms.maxAheadUs) this.#last = Math.max(this.#last, answer.mark)
  }

  /**
   * The highest mark that a quorum can go above. A node whose clock is far ahead of the others must not keep them from
   * granting.
   */
  #highestMark(answers: readonly Vote[], nodes: number): number {
    for (const answer of answers) this.learn(answer)
    const { quorum, maxAheadUs } = this.#terms
    const marks = answers.flatMap((answer) => (isTokenRefusal(answer) ? (answer.mark ?? []) : []))
    const followable = marks.filter((mark) => {
      const unable = answers.filter((answer) => reachOf(answer, maxAheadUs) <= mark)
      return unable.length <= nodes - quorum
    })
    return Math.max(...followable, 0)
  }

  /**
   * If so many nodes say that this client's clock is too far ahead that the others are no quorum, it continues with the
   * clock of the node that completes a quorum.
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
   * Drops the correction as soon as a quorum would accept tokens of this client's own clock. With a clock behind those
   * of the other clients, it would be outbid in every first round.
   */
  #trustClock(answers: readonly Vote[]): void {
    const { clock, quorum, maxAheadUs } = this.#terms
    const nowMs = answers.map(clockOf).toSorted((x, y) => y - x)[quorum - 1]
    if (nowMs !== undefined && clock.now().wallMs * 1_000 <= nowMs * 1_000 + maxAheadUs) this.#aheadUs = 0
  }

  #nowUs(): number {
    return this.#terms.clock.now().wallMs * 1_000 - this.#aheadUs
  }
}

const isTokenRefusal = (vote: Vote): vote is TokenRefusal => 'tokenRefused' in vote
const isGrant = (vote: Vote): vote is Grant => 'granted' in vote && vote.granted
const isRefusal = (vote: Vote): vote is Refusal => 'granted' in vote && !vote.granted

/** The highest token that the node would accept now. */
function reachOf(vote: Vote, maxAheadUs: number): number {
  const byClock = clockOf(vote) * 1_000 + maxAheadUs
  return isTokenRefusal(vote) ? Math.max(byClock, (vote.mark ?? 0) + 1) : byClock
}

/** The node's clock at the time of its answer, or earlier. */
function clockOf(vote: Vote): number {
  if (isTokenRefusal(vote)) return vote.nowMs
  return vote.granted ? vote.acquiredAtMs : (vote.answeredAtMs ?? 0)
}

/**
 * The start of a lease, the same on all nodes although their clocks differ by some milliseconds: the token is the same,
 * and it was the client's clock in microseconds when it was proposed.
 */
export const acquiredAt = (fencingToken: number): number => Math.floor(fencingToken / 1_000)

/** The record of a node, with a start that is the same on every node. */
export function agreedRecord(record: LeaseRecord): LeaseRecord {
  const { fencingToken, acquiredAtMs, expiresAtMs } = record
  if (fencingToken === 0) return record
  const beganMs = acquiredAt(fencingToken)
  const ends = expiresAtMs !== undefined && { expiresAtMs: beganMs + expiresAtMs - acquiredAtMs }
  return { ...record, acquiredAtMs: beganMs, ...ends }
}

/** The holder, if at least `enough` nodes name the same. In a split vote there is none. */
function holderIn(refusals: readonly Refusal[], enough: number) {
  const holders = refusals.flatMap(({ holder }) => (holder === undefined ? [] : [holder]))
  const counts = new Map<string, number>()
  for (const { claimId } of holders) counts.set(claimId, (counts.get(claimId) ?? 0) + 1)
  const named = holders.find(({ claimId }) => (counts.get(claimId) as number) >= enough)
  const askAgainMs = Math.min(...refusals.map((refusal) => refusal.askAgainMs ?? LATER_MS), LATER_MS)
  return { holder: named && agreedRecord(named), askAgainMs }
}

/** When a waiter asks again if the end of the lease is unknown. */
const LATER_MS = 1_000
