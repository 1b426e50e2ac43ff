import type { Claim, LeaseRef } from '../../core/driver.ts'

/** One call's asking for one claim: its rounds, and what became of them. */
export interface Ask {
  claim: Claim
  /** A token for each round, the current one last. */
  readonly tokens: number[]
  /** `over`: nothing of it may be counted any more, because all of it has been or will be given back. */
  state: 'open' | 'granted' | 'over'
  /** It proposes again what an earlier call was granted. */
  isRepeat: boolean
  /** The next proposal has to be above this. */
  mark: number
}

/**
 * What this driver has asked for on behalf of its claims, so that two things are never mixed up: a token that may be
 * counted, and one whose release was sent.
 *
 * A claim has one ask at a time. A newer one ends the older, which may still be under way: its caller has given it up
 * at a deadline of its own.
 */
export class Asks {
  readonly #open = new Map<string, Ask>()
  /** The newest of those that are not open, for whoever asks again or withdraws. */
  readonly #ended = new Map<string, Ask>()

  begin(claim: Claim): Ask {
    const key = keyOf(claim)
    const [open, ended] = [this.#open.get(key), this.#ended.get(key)]
    this.#ended.delete(key)
    if (open !== undefined) open.state = 'over'
    const fresh: Ask = { claim, tokens: [], state: 'open', isRepeat: false, mark: 0 }
    // The same ask once more, not a new one: a late vote for its token has to find out that the token is asked for
    // again.
    const repeated =
      ended?.state === 'granted' && Object.assign(ended, { claim, state: 'open', isRepeat: true, mark: 0 })
    const ask = repeated || fresh
    this.#open.set(key, ask)
    return ask
  }

  /** Not of one that was ended meanwhile by a newer one, or by its release. */
  end(ask: Ask, state: 'granted' | 'over'): void {
    if (ask.state !== 'open') return
    ask.state = state
    const key = keyOf(ask.claim)
    this.#open.delete(key)
    this.#ended.set(key, ask)
    const [oldest] = this.#ended.keys()
    if (this.#ended.size > MAX_REMEMBERED && oldest !== undefined) this.#ended.delete(oldest)
  }

  /** Ends the ask whose lease this is, and says what to release: each of its tokens, where the caller names none. */
  release(lease: LeaseRef): readonly LeaseRef[] {
    const key = keyOf(lease)
    const { fencingToken } = lease
    const ask = this.#open.get(key) ?? this.#ended.get(key)
    if (ask === undefined || (fencingToken !== undefined && fencingToken !== ask.tokens.at(-1))) return [lease]
    ask.state = 'over'
    this.#open.delete(key)
    this.#ended.delete(key)
    return fencingToken === undefined && ask.tokens.length > 0 ? leasesOf(ask) : [lease]
  }
}

/** Whether a vote for this token is part of a grant, or may become one. */
export const mayCount = ({ state, tokens }: Ask, token: number): boolean => state !== 'over' && tokens.at(-1) === token

/** With their tokens, always: a release that arrives late must not end what a later round has got. */
export const leasesOf = ({ claim, tokens }: Pick<Ask, 'claim' | 'tokens'>): readonly Required<LeaseRef>[] =>
  tokens.map((fencingToken) => ({ lockName: claim.lockName, claimId: claim.claimId, fencingToken }))

const keyOf = ({ lockName, claimId }: LeaseRef): string => `${claimId} ${lockName}`

/**
 * A few megabytes. Of a claim that was forgotten, asking again gives a new token instead of the same, and a vote that
 * comes after its release stays on its node until its time to live is over.
 */
const MAX_REMEMBERED = 10_000
