import type { Claim, LeaseRef } from '../../core/driver.ts'

/** One attempt to get a claim granted, in one or more rounds of voting. */
export interface Attempt {
  claim: Claim
  /** A token for each round, the current one last. */
  readonly tokens: number[]
  /** `over`: no vote of it may count any more, because everything it got has been or will be released. */
  state: 'open' | 'granted' | 'over'
  /** It proposes again what an earlier call was granted. */
  isRepeat: boolean
  /** The next proposal has to be above this. */
  mark: number
}

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
    const fresh: Attempt = { claim, tokens: [], state: 'open', isRepeat: false, mark: 0 }
    // The same object, not a new one: a late vote for its token must find that the token is proposed again.
    const repeated =
      ended?.state === 'granted' && Object.assign(ended, { claim, state: 'open', isRepeat: true, mark: 0 })
    const attempt = repeated || fresh
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
    return fencingToken === undefined && attempt.tokens.length > 0 ? leasesOf(attempt) : [lease]
  }
}

/** Whether a vote for this token is part of a grant, or may become one. */
export const mayCount = ({ state, tokens }: Attempt, token: number): boolean =>
  state !== 'over' && tokens.at(-1) === token

/** Always with their tokens: a release that arrives late must not end the lease of a later round. */
export const leasesOf = ({ claim, tokens }: Pick<Attempt, 'claim' | 'tokens'>): readonly Required<LeaseRef>[] =>
  tokens.map((fencingToken) => ({ lockName: claim.lockName, claimId: claim.claimId, fencingToken }))

const keyOf = ({ lockName, claimId }: LeaseRef): string => `${claimId} ${lockName}`

/**
 * A few megabytes. If a claim whose attempt was forgotten asks again, it gets a new token instead of the same. A vote
 * that arrives after its release then stays on its node until its time to live ends.
 */
const MAX_REMEMBERED = 10_000
