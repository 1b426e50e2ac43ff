import type { AcquireAnswer, Claim, LeaseRef } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { MAX_TIME_MS } from '../../core/lock-info.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { RedisConnection } from './connection.ts'
import { entryOf, readAcquire, type TokenRefusal, tailOf, termsOfAll, ttlText, unexpectedReply } from './format.ts'
import { barKey, keysOf, slotCounter, slotOf, VOTER } from './keys.ts'
import { type SharedList, sharedRun } from './lists.ts'
import { leasesScript, protocolScript, runScript, type ScriptCall, type ScriptRun, scriptCall } from './scripts.ts'

/** A claim with the token that its client proposes (Redlock). */
export interface ProposedClaim {
  readonly lockName: string
  readonly claim: Claim
  readonly token: number
}

export interface ProposalTerms {
  /** How far ahead of a server's clock a token may be. `REPAIRS`: see there. */
  readonly maxAheadUs: number
  /** The longest time to live that any client uses. Undefined: the server forgets nothing. */
  readonly longestTtlMs: number | undefined
}

/**
 * The proposals are leases that a quorum of the nodes has, for a node that lacks them. The node grants them also below
 * its mark, unless it has a lease of another claim, is silent, or the lease was ended by force.
 */
export const REPAIRS = -1

type Vote = AcquireAnswer | TokenRefusal

/** What is proposed to all nodes. `send` rejects if the server may have forgotten leases that are still held. */
export function proposalsOf(requests: readonly ProposedClaim[], terms: ProposalTerms): SharedList<ProposedClaim, Vote> {
  const runOf = sharedRun(requests, (prefix, claims) => ({
    what: 'acquire',
    script: ballotScript(),
    call: ballotCall(prefix, claims, terms),
    read: (reply: unknown, { master }: RedisConnection) => {
      const answers = readBallot(claims, reply)
      // A token is refused before the script writes anything, which a replica can do, too.
      if (master?.state !== 'writes' && answers.some((answer) => 'granted' in answer)) master?.wrote()
      return answers
    },
  }))
  return { requests, send: ({ connection, prefix }, claims) => runScript(connection, runOf(prefix, claims)) }
}

/** The call of ballot.lua. */
export function ballotCall(
  prefix: string,
  claims: readonly ProposedClaim[],
  { maxAheadUs, longestTtlMs }: ProposalTerms,
): ScriptCall {
  const entries = claims.map(({ lockName, claim: { claimId }, token }) =>
    entryOf({ lockName, claimId, fencingToken: token }),
  )
  return scriptCall(
    [
      ...claims.map(({ lockName }) => slotCounter(slotOf(prefix + lockName))),
      ...keysOf(prefix, claims),
      VOTER,
      ...(maxAheadUs === REPAIRS ? claims.map(({ lockName }) => barKey(prefix, lockName)) : []),
    ],
    [
      longestTtlMs === undefined ? '' : `${longestTtlMs}`,
      `${maxAheadUs}`,
      entries.join('\n'),
      ...termsOfAll(
        claims.map(({ claim }) => claim),
        termsOf,
      ),
    ],
  )
}

const termsOf = (claim: Claim): [ttlMs: string, tail: string, permits: string] => [
  ttlText(claim),
  tailOf(claim),
  claim.mode === 'exclusive' ? '' : `${claim.permits}`,
]

function readBallot(claims: readonly ProposedClaim[], reply: unknown): readonly (Vote | Error)[] {
  if (!Array.isArray(reply)) throw unexpectedReply('acquire', reply)
  const [first, second] = reply as unknown[]
  if (first === 's') {
    const seconds = Math.ceil(Number(second) / 1_000)
    throw new StoreError(`it does not vote for another ${seconds} s, because it may have forgotten leases`)
  }
  // With ioredis' `stringNumbers`, numbers arrive as text, here and in every answer.
  const nowMs = Number(first)
  if (!(nowMs >= 1 && nowMs <= MAX_TIME_MS)) throw unexpectedReply('acquire', reply)
  if (second === 'g' && reply.length === 2) {
    return claims.map(({ claim, token }) => ({
      granted: true,
      fencingToken: token,
      ttlMs: claim.ttlMs,
      acquiredAtMs: nowMs,
    }))
  }
  if (reply.length !== 1 + claims.length) throw unexpectedReply('acquire', reply)
  return claims.map(({ claim }, index) => readAcquire(claim, nowMs, reply[1 + index]))
}

/** Keeps leases from being repaired on a node, before they are ended there by force. */
export function barRun(prefix: string, leases: readonly LeaseRef[], keptMs: number): ScriptRun<unknown> {
  const keys = leases.map(({ lockName }) => barKey(prefix, lockName))
  const call = scriptCall(keys, [`${keptMs}`, ...leases.map(({ fencingToken = 0 }) => `${fencingToken}`)])
  return { what: 'end leases by force', script: barScript(), call, read: (reply) => reply }
}

const barScript = protocolScript(() => readProtocol('redis/bar.lua'))

const ballotScript = protocolScript(() => {
  // Not read a second time: a bundle would have its text twice.
  const { text } = leasesScript()
  return `local function leases(KEYS, ARGV)\n${text}\nend\n${readProtocol('redis/ballot.lua')}`
})
