import type { AcquireAnswer, Grant, LeaseRecord, Refusal } from '../../core/driver.ts'
import type { TokenRefusal } from '../redis/format.ts'
import { tokenAfter } from '../shared/tokens.ts'
import type { NodeError, Votes } from './quorum.ts'

/**
 * What a client of Redlock decides, as pure functions: the driver uses them, and the model in `chaos/model` explores
 * them in all interleavings. What a node decides is in `ballot.lua` and `leases.lua`.
 *
 * A proposal is above every token that this client has seen, and not below its clock in microseconds. A node grants it
 * only above its own mark, which is the largest token that it has granted. Any two quorums share a node, and that node
 * has seen the token of the previous grant. So tokens rise with every grant of a name, even if the clients' clocks are
 * wrong.
 */
export interface Ballot {
  /** A token for each round, the current one last. */
  readonly tokens: readonly number[]
  /** `over`: no vote of it may count any more, because everything it got has been or will be released. */
  readonly state: 'open' | 'granted' | 'over'
  /** It proposes again what an earlier call was granted. */
  readonly isRepeat: boolean
  /** The next proposal has to be above this. */
  readonly mark: number
}

export interface BallotTerms {
  readonly quorum: number
  /** How far ahead of a node's clock a token may be. */
  readonly maxAheadUs: number
}

/** What a client remembers from one vote to the next. */
export interface Proposer {
  /** The largest token that it has proposed or learned of. */
  readonly last: number
  /** The correction of this client's clock, after enough nodes said that it is too far ahead. */
  readonly aheadUs: number
}

export const NEW_PROPOSER: Proposer = { last: 0, aheadUs: 0 }

export type Vote = AcquireAnswer | TokenRefusal

export type Outcome =
  | { readonly kind: 'granted'; readonly token: number }
  /** With a token above this, enough nodes would have granted it, or would have granted it in the right order. */
  | { readonly kind: 'outbid'; readonly mark: number }
  | { readonly kind: 'refused'; readonly holder: LeaseRecord | undefined; readonly askAgainMs: number }
  | { readonly kind: 'failed'; readonly errors: readonly NodeError[] }

/** `before`: the ballot that an earlier call of the same claim ended with, if it is known. */
export const begin = (before: Ballot | undefined): Ballot =>
  before?.state === 'granted'
    ? { tokens: before.tokens, state: 'open', isRepeat: true, mark: 0 }
    : { tokens: [], state: 'open', isRepeat: false, mark: 0 }

/** Adds a token for the next round to each ballot. The tokens rise, because several ballots may be for one name. */
export function propose(
  proposer: Proposer,
  wallUs: number,
  ballots: readonly Ballot[],
): { readonly proposer: Proposer; readonly tokens: readonly (readonly number[])[] } {
  const first = tokenAfter(proposer.last, wallUs - proposer.aheadUs)
  const tokens = ballots.map((ballot, at) =>
    ballot.isRepeat ? ballot.tokens : [...ballot.tokens, Math.max(first, ballot.mark + 1) + at],
  )
  return { proposer: { ...proposer, last: first + ballots.length - 1 }, tokens }
}

/**
 * Decides the current round. Only votes for the token of this round count, not votes for an earlier token of the claim.
 * No outcome while votes are missing.
 */
export function decide(
  terms: BallotTerms,
  known: Proposer,
  wallUs: number,
  { answers, errors, pending }: Votes<Vote>,
  { tokens, isRepeat }: Pick<Ballot, 'tokens' | 'isRepeat'>,
): { readonly proposer: Proposer; readonly outcome: Outcome | undefined } {
  const { quorum } = terms
  const proposer = trustClock(terms, known, wallUs, answers)
  const token = tokens.at(-1) as number
  const nodes = answers.length + errors.length + pending
  let grants = 0
  for (const answer of answers) if (isGrant(answer) && answer.fencingToken === token) grants += 1
  if (grants >= quorum) {
    // By far the most frequent case: there is nothing to learn.
    if (grants === answers.length) return { proposer, outcome: { kind: 'granted', token } }
    const learned = learnAll(terms, proposer, wallUs, answers)
    // A node that has granted a higher token may be the only one left that remembers it. A repeat is no new grant.
    const higher = isRepeat ? 0 : highestMark(terms, answers, nodes)
    if (higher > token) return { proposer: learned, outcome: { kind: 'outbid', mark: higher } }
    // Core checks whether enough of the lease is left, counted from before the first proposal was sent.
    return { proposer: isRepeat ? proposer : learned, outcome: { kind: 'granted', token } }
  }
  if (grants + pending >= quorum) return { proposer, outcome: undefined }
  const refusals = answers.filter(isRefusal)
  if (errors.length > nodes - quorum) return { proposer, outcome: { kind: 'failed', errors } }
  if (refusals.length + errors.length + pending <= nodes - quorum) {
    const learned = learnAll(terms, correctClock(terms, proposer, wallUs, answers, nodes), wallUs, answers)
    return { proposer: learned, outcome: { kind: 'outbid', mark: highestMark(terms, answers, nodes) } }
  }
  // The votes that are missing decide between "another client holds it" and "too few nodes answered".
  if (refusals.length <= nodes - quorum && pending > 0) return { proposer, outcome: undefined }
  // With an even number of nodes, refusals from half of them fit a holder and also a rival that has lost. The votes
  // that are missing decide.
  if (refusals.length < quorum && pending > 0 && refusals.length + pending >= quorum) {
    return { proposer, outcome: undefined }
  }
  // If this claim got some of the votes, only a quorum of refusals makes another claim the holder.
  const enough = grants > 0 ? quorum : nodes - quorum + 1
  const holder = holderIn(refusals, enough)
  const askAgainMs = holder ? endsInMs(refusals) : againMs(refusals, errors.length, nodes - quorum + 1)
  return { proposer, outcome: { kind: 'refused', holder, askAgainMs } }
}

/** What follows from the outcome of a round. `release`: the tokens to release on every node. */
export type Conclusion =
  | { readonly kind: 'granted'; readonly token: number; readonly release: readonly number[] }
  /** Another round, above the mark. */
  | { readonly kind: 'again'; readonly mark: number; readonly release: readonly number[] }
  /** As far as is known, the grant that was asked for again still exists, and its holder may rely on it. */
  | { readonly kind: 'kept'; readonly release: readonly number[] }
  | { readonly kind: 'lost'; readonly release: readonly number[] }
  /** Even if the nodes granted it: its tokens may have been released, or a newer attempt has replaced them. */
  | { readonly kind: 'withdrawn'; readonly release: readonly number[] }

export function conclude({ state, tokens, isRepeat }: Ballot, outcome: Outcome, isLast: boolean): Conclusion {
  if (state === 'over') return { kind: 'withdrawn', release: tokens }
  // Nodes that did not answer this round may still have the lease of an earlier one.
  if (outcome.kind === 'granted') return { kind: 'granted', token: outcome.token, release: tokens.slice(0, -1) }
  if (outcome.kind === 'outbid' && !isLast) return { kind: 'again', mark: outcome.mark, release: [] }
  if (outcome.kind === 'failed' && isRepeat) return { kind: 'kept', release: [] }
  return { kind: 'lost', release: tokens }
}

/** Whether a vote for this token is part of a grant, or may become one. */
export const mayCount = ({ state, tokens }: Ballot, token: number): boolean =>
  state !== 'over' && tokens.at(-1) === token

/**
 * Whether a late vote for a released token has to be released again. `hasEnded`: what the node answered to the release
 * of that token, if it is known. A node that has ended the lease of a token never votes for that token again, because
 * its mark is not below it. So the vote is older than the release. A repair ignores the mark: one that arrives after a
 * release that has ended the lease stays until its time to live ends, on a minority of the nodes.
 */
export const isOwed = (hasEnded: boolean | undefined): boolean => hasEnded !== true

/** Learns from a vote that arrived after the decision. */
export function learn({ maxAheadUs }: BallotTerms, proposer: Proposer, wallUs: number, vote: Vote): Proposer {
  if (!isTokenRefusal(vote) || vote.mark === undefined || vote.mark <= proposer.last) return proposer
  // All other nodes would refuse a proposal that is further ahead.
  return vote.mark <= wallUs - proposer.aheadUs + maxAheadUs ? { ...proposer, last: vote.mark } : proposer
}

const learnAll = (terms: BallotTerms, proposer: Proposer, wallUs: number, votes: readonly Vote[]): Proposer =>
  votes.reduce((known, vote) => learn(terms, known, wallUs, vote), proposer)

/**
 * The highest mark that a quorum can go above. A node whose clock is far ahead of the others must not keep them from
 * granting.
 */
function highestMark({ quorum, maxAheadUs }: BallotTerms, answers: readonly Vote[], nodes: number): number {
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
function correctClock(
  { quorum }: BallotTerms,
  proposer: Proposer,
  wallUs: number,
  answers: readonly Vote[],
  nodes: number,
): Proposer {
  const clocks = answers.flatMap((answer) => (isTokenRefusal(answer) && answer.mark === undefined ? answer.nowMs : []))
  const missing = quorum - (nodes - clocks.length)
  if (missing <= 0) return proposer
  const nowUs = (clocks.toSorted((x, y) => y - x)[missing - 1] as number) * 1_000
  return { last: Math.min(proposer.last, Math.floor(nowUs)), aheadUs: wallUs - nowUs }
}

/**
 * Drops the correction as soon as a quorum would accept tokens of this client's own clock. With a clock behind those of
 * the other clients, it would be outbid in every first round.
 */
function trustClock(
  { quorum, maxAheadUs }: BallotTerms,
  proposer: Proposer,
  wallUs: number,
  answers: readonly Vote[],
): Proposer {
  if (proposer.aheadUs === 0) return proposer
  const nowMs = answers.map(clockOf).toSorted((x, y) => y - x)[quorum - 1]
  return nowMs !== undefined && wallUs <= nowMs * 1_000 + maxAheadUs ? { ...proposer, aheadUs: 0 } : proposer
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

/** The holder, if at least `enough` nodes name the same. In a split vote there is none. */
function holderIn(refusals: readonly Refusal[], enough: number): LeaseRecord | undefined {
  const holders = refusals.flatMap(({ holder }) => (holder === undefined ? [] : [holder]))
  const counts = new Map<string, number>()
  for (const { claimId } of holders) counts.set(claimId, (counts.get(claimId) ?? 0) + 1)
  const named = holders.find(({ claimId }) => (counts.get(claimId) as number) >= enough)
  return named && agreedRecord(named)
}

/** When a waiter asks again if no message says before that the holder has released the lock. */
const endsInMs = (refusals: readonly Refusal[]): number =>
  Math.min(...refusals.map(({ askAgainMs = LATER_MS }) => askAgainMs), LATER_MS)

/**
 * When a quorum may be free after a split vote, if `enough` nodes are too many to do without. A vote for another claim
 * may last as long again as it has lasted, at most until it ends. So rivals ask again at once, but a vote that
 * nothing releases, because its claim is dead, costs each waiter one request a second.
 */
function againMs(refusals: readonly Refusal[], failed: number, enough: number): number {
  const standMs = refusals.map(({ holder, answeredAtMs = 0, askAgainMs = LATER_MS }) => {
    const stoodMs = holder === undefined ? 0 : Math.max(answeredAtMs - holder.acquiredAtMs, 0)
    return Math.min(stoodMs, askAgainMs, LATER_MS)
  })
  const failedMs = Array.from({ length: failed }, () => LATER_MS)
  return [...failedMs, ...standMs].toSorted((x, y) => y - x)[enough - 1] ?? 0
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

/** The longest pause of a waiter before it asks again. */
const LATER_MS = 1_000
/** After a proposal was outbid, the next one is above the mark. Only a third client can outbid that again. */
export const MAX_ROUNDS = 4
