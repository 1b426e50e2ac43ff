import type { Claim, LeaseRef } from '../../core/driver.ts'
import { type Ballot, begin } from './ballot.ts'

/** One attempt to get a claim granted, in one or more rounds of voting. */
export interface Attempt extends Mutable<Ballot> {
  claim: Claim
  readonly key: string
  /** The newest release of its tokens, and where they begin in its list. */
  ending: { readonly release: ReleaseList; readonly from: number } | undefined
}

/** Leases whose release is sent to every node. */
export interface ReleaseList {
  readonly leases: LeaseRef[]
  /** What each node answers, in the order of the nodes. Empty until the list is sent. */
  answers: readonly Promise<readonly (boolean | Error)[]>[]
}

export const newReleaseList = (): ReleaseList => ({ leases: [], answers: [] })

export function addToRelease(release: ReleaseList, attempt: Attempt, leases: readonly LeaseRef[]): void {
  if (leases.length === 0) return
  attempt.ending = { release, from: release.leases.length }
  release.leases.push(...leases)
}

/**
 * What a node answers to the release of this token, if one was sent: true if it has ended its lease. Undefined if none
 * was sent.
 */
export async function endingOf({ ending }: Attempt, token: number, nodeAt: number): Promise<boolean | undefined> {
  if (ending === undefined) return undefined
  const { leases, answers } = ending.release
  let at = ending.from
  while (at < leases.length && leases[at]?.fencingToken !== token) at += 1
  const ofNode = await answers[nodeAt]?.catch(() => undefined)
  return at < leases.length ? ofNode?.[at] === true : undefined
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

  /** `begun`: the attempts of the same call. A claim that is in its list twice has one attempt. */
  begin(claim: Claim, begun: ReadonlySet<Attempt>): Attempt {
    const key = keyOf(claim)
    const open = this.#open.get(key)
    if (open !== undefined && begun.has(open)) return open
    const ended = this.#ended.get(key)
    if (ended !== undefined) this.#ended.delete(key)
    if (open !== undefined) open.state = 'over'
    const ballot = begin(ended)
    // The same object, not a new one: a late vote for its token must find that the token is proposed again.
    const attempt = ballot.isRepeat && ended ? Object.assign(ended, ballot, { claim }) : newAttempt(ballot, claim, key)
    this.#open.set(key, attempt)
    return attempt
  }

  /** Does nothing if a newer attempt or a release has ended it meanwhile. */
  end(attempt: Attempt, state: 'granted' | 'over'): void {
    if (attempt.state !== 'open') return
    attempt.state = state
    const { key } = attempt
    this.#open.delete(key)
    this.#ended.set(key, attempt)
    if (this.#ended.size <= MAX_REMEMBERED) return
    const [oldest] = this.#ended.keys()
    if (oldest !== undefined) this.#ended.delete(oldest)
  }

  /**
   * Ends the attempt that got this lease. Adds to the list what to release, and returns how many leases that are. If
   * the caller names no token, it is a lease for each token of the attempt.
   */
  release(lease: LeaseRef, list: ReleaseList): number {
    const key = keyOf(lease)
    const { fencingToken } = lease
    const attempt = this.#open.get(key) ?? this.#ended.get(key)
    if (attempt === undefined || (fencingToken !== undefined && fencingToken !== attempt.tokens.at(-1))) {
      list.leases.push(lease)
      return 1
    }
    attempt.state = 'over'
    this.#open.delete(key)
    this.#ended.delete(key)
    const isWhole = fencingToken === undefined && attempt.tokens.length > 0
    const leases = isWhole ? leasesOf(attempt.claim, attempt.tokens) : [lease]
    addToRelease(list, attempt, leases)
    return leases.length
  }
}

/** Without a spread, which takes longer than all the rest of a new attempt. */
const newAttempt = ({ tokens, state, isRepeat, mark }: Ballot, claim: Claim, key: string): Attempt => ({
  tokens,
  state,
  isRepeat,
  mark,
  claim,
  key,
  ending: undefined,
})

/** Always with their tokens: a release that arrives late must not end the lease of a later round. */
export const leasesOf = ({ lockName, claimId }: LeaseRef, tokens: readonly number[]): readonly Required<LeaseRef>[] =>
  tokens.map((fencingToken) => ({ lockName, claimId, fencingToken }))

const keyOf = ({ lockName, claimId }: LeaseRef): string => `${claimId} ${lockName}`

/**
 * A few megabytes. If a claim whose attempt was forgotten asks again, it gets a new token instead of the same. A vote
 * that arrives after its release then stays on its node until its time to live ends.
 */
const MAX_REMEMBERED = 10_000
