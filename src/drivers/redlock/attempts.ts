import type { Claim, LeaseRecord, LeaseRef } from '../../core/driver.ts'
import { type Ballot, begin } from './ballot.ts'

/** One attempt to get a claim granted, in one or more rounds of voting. */
export interface Attempt extends Mutable<Ballot> {
  claim: Claim
  /** The newest release of its tokens, and where they begin in its list. */
  ending: { readonly release: ReleaseList; readonly from: number } | undefined
}

/** Leases whose release is sent to every node. */
export interface ReleaseList {
  readonly leases: LeaseRef[]
  /** What each node has answered, in the order of the nodes. */
  readonly answers: (ReleaseAnswers | Error | undefined)[]
  /** Votes for its tokens that arrived before the answer of their node. */
  late: LateVote[]
}

export type ReleaseAnswers = readonly (boolean | Error)[]

/** A grant of a node that counts for nothing, because its token was released, or is not the current one. */
export interface LateVote {
  /** The place of the node. */
  readonly at: number
  readonly attempt: Attempt
  readonly token: number
}

export const newReleaseList = (leases: LeaseRef[] = []): ReleaseList => ({ leases, answers: [], late: [] })

export function addToRelease(release: ReleaseList, attempt: Attempt, leases: readonly LeaseRef[]): void {
  if (leases.length === 0) return
  attempt.ending = { release, from: release.leases.length }
  release.leases.push(...leases)
}

/** What the node answered to the release of the token: true if it has ended its lease. Undefined if none was sent. */
export function endingOf({ at, attempt: { ending }, token }: LateVote): boolean | 'unanswered' | undefined {
  if (ending === undefined) return undefined
  const { leases, answers } = ending.release
  let index = ending.from
  while (index < leases.length && leases[index]?.fencingToken !== token) index += 1
  if (index === leases.length) return undefined
  const ofNode = answers[at]
  if (ofNode === undefined) return 'unanswered'
  return !(ofNode instanceof Error) && ofNode[index] === true
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
  /** The newest of each claim. One that has ended stays, in case the claim asks again or is withdrawn. */
  readonly #newest = new Map<string, Attempt>()
  /** The leases that are being adopted. A release takes its lease out. */
  readonly #adopting = new Set<string>()

  /** `begun`: the attempts of the same call. A claim that is in its list twice has one attempt. */
  begin(claim: Claim, begun: ReadonlyMap<Attempt, unknown>): Attempt {
    const key = keyOf(claim)
    const before = this.#newest.get(key)
    if (before !== undefined) {
      if (begun.has(before)) return before
      if (before.state === 'open') before.state = 'over'
      this.#newest.delete(key)
    }
    const ballot = begin(before)
    // The same object, not a new one: a late vote for its token must find that the token is proposed again.
    const attempt = ballot.isRepeat && before ? Object.assign(before, ballot, { claim }) : newAttempt(ballot, claim)
    this.#newest.set(key, attempt)
    return attempt
  }

  /** Does nothing if a newer attempt or a release has ended it meanwhile. */
  end(attempt: Attempt, state: 'granted' | 'over'): void {
    if (attempt.state !== 'open') return
    attempt.state = state
    this.#forgetOldest()
  }

  #forgetOldest(): void {
    if (this.#newest.size <= MAX_REMEMBERED) return
    for (const [key, { state }] of this.#newest) {
      if (state === 'open') continue
      this.#newest.delete(key)
      return
    }
  }

  /** The attempt that got this lease, unless it has ended or is not known any more. */
  holding(lease: Required<LeaseRef>): Attempt | undefined {
    const attempt = this.#newest.get(keyOf(lease))
    return attempt?.state === 'granted' && attempt.tokens.at(-1) === lease.fencingToken ? attempt : undefined
  }

  /**
   * Reads the claims of leases that this driver did not get, or whose attempts were forgotten, so that it knows them as
   * if it had got them. A lease that is released meanwhile stays unknown.
   */
  async adopt(
    leases: readonly Required<LeaseRef>[],
    read: (lockNames: readonly string[]) => Promise<readonly LeaseRecord[]>,
  ): Promise<void> {
    const unread = leases.filter((lease) => !this.#newest.has(keyOf(lease)) && !this.#adopting.has(keyOf(lease)))
    if (unread.length === 0) return
    for (const lease of unread) this.#adopting.add(keyOf(lease))
    try {
      const records = await read([...new Set(unread.map(({ lockName }) => lockName))])
      const found = new Map(records.map((record) => [keyOf(record), record]))
      for (const lease of unread) {
        const record = found.get(keyOf(lease))
        if (record?.fencingToken === lease.fencingToken) this.#adopted(record)
      }
    } finally {
      for (const lease of unread) this.#adopting.delete(keyOf(lease))
    }
  }

  #adopted(record: LeaseRecord): void {
    const key = keyOf(record)
    if (!this.#adopting.has(key) || this.#newest.has(key)) return
    const ballot = { tokens: [record.fencingToken], state: 'granted', isRepeat: false, mark: 0 } as const
    this.#newest.set(key, newAttempt(ballot, claimOf(record)))
    this.#forgetOldest()
  }

  /**
   * Ends the attempt that got this lease. Adds to the list what to release, and returns how many leases that are. If
   * the caller names no token, it is a lease for each token of the attempt.
   */
  release(lease: LeaseRef, list: ReleaseList): number {
    const key = keyOf(lease)
    const { fencingToken } = lease
    this.#adopting.delete(key)
    const attempt = this.#newest.get(key)
    if (attempt === undefined || (fencingToken !== undefined && fencingToken !== attempt.tokens.at(-1))) {
      list.leases.push(lease)
      return 1
    }
    attempt.state = 'over'
    this.#newest.delete(key)
    const isWhole = fencingToken === undefined && attempt.tokens.length > 0
    const leases = isWhole ? leasesOf(attempt.claim, attempt.tokens) : [lease]
    addToRelease(list, attempt, leases)
    return leases.length
  }
}

/** Without a spread, which takes longer than all the rest of a new attempt. */
const newAttempt = ({ tokens, state, isRepeat, mark }: Ballot, claim: Claim): Attempt => ({
  tokens,
  state,
  isRepeat,
  mark,
  claim,
  ending: undefined,
})

/** Its time to live is that of each renewal. */
const claimOf = ({ lockName, claimId, holderId, mode, permits, metadata }: LeaseRecord): Claim => ({
  lockName,
  claimId,
  holderId,
  mode,
  permits,
  ttlMs: 0,
  waiterTtlMs: 0,
  ...(metadata !== undefined && { metadata }),
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
