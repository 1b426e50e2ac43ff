import type { Claim, LeaseRef } from '../../core/driver.ts'
import { type Ballot, begin } from './ballot.ts'

/** One attempt to get a claim granted, in one or more rounds of voting. */
export interface Attempt extends Mutable<Ballot> {
  claim: Claim
}

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] }

/**
 * The attempts of this driver. They keep two kinds of tokens apart: those that may be counted, and those whose release
 * was sent.
 *
 * A claim has one attempt at a time. A newer attempt ends the older one, which may still be in flight if its caller
 * gave it up at a deadline.
 */
export class Attempts {
  readonly #open = new Map<string, Attempt>()
  /** The newest attempt of each claim that is not open, in case the claim asks again or is withdrawn. */
  readonly #ended = new Map<string, Attempt>()

  begin(claim: Claim): Attempt {
    const key = keyOf(claim)
    const [open, ended] = [this.#open.get(key), this.#ended.get(key)]
    this.#ended.delete(key)
    if (open !== undefined) open.state = 'over'
    const ballot = begin(ended)
    // The same object, not a new one: a late vote for its token must find that the token is proposed again.
    const attempt: Attempt = Object.assign(ballot.isRepeat && ended ? ended : {}, ballot, { claim })
    this.#open.set(key, attempt)
    return attempt
  }

  /** Does nothing if a newer attempt or a release has ended it meanwhile. */
  end(attempt: Attempt, state: 'granted' | 'over'): void {
    if (attempt.state !== 'open') return
    attempt.state = state
    const key = keyOf(attempt.claim)
    this.#open.delete(key)
    this.#ended.set(key, attempt)
    const [oldest] = this.#ended.keys()
    if (this.#ended.size > MAX_REMEMBERED && oldest !== undefined) this.#ended.delete(oldest)
  }

  /**
   * Ends the attempt that got this lease. Returns what to release: if the caller names no token, a lease for each token
   * of the attempt.
   */
  release(lease: LeaseRef): readonly LeaseRef[] {
    const key = keyOf(lease)
    const { fencingToken } = lease
    const attempt = this.#open.get(key) ?? this.#ended.get(key)
    if (attempt === undefined || (fencingToken !== undefined && fencingToken !== attempt.tokens.at(-1))) return [lease]
    attempt.state = 'over'
    this.#open.delete(key)
    this.#ended.delete(key)
    return fencingToken === undefined && attempt.tokens.length > 0 ? leasesOf(attempt.claim, attempt.tokens) : [lease]
  }
}

/** Always with their tokens: a release that arrives late must not end the lease of a later round. */
export const leasesOf = ({ lockName, claimId }: LeaseRef, tokens: readonly number[]): readonly Required<LeaseRef>[] =>
  tokens.map((fencingToken) => ({ lockName, claimId, fencingToken }))

const keyOf = ({ lockName, claimId }: LeaseRef): string => `${claimId} ${lockName}`

/**
 * A few megabytes. If a claim whose attempt was forgotten asks again, it gets a new token instead of the same. A vote
 * that arrives after its release then stays on its node until its time to live ends.
 */
const MAX_REMEMBERED = 10_000
