import type { AcquireAnswer, Claim } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { MAX_TIME_MS } from '../../core/lock-info.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import { storeErrorFrom } from './errors.ts'
import { entryOf, readAcquire, type TokenRefusal, tailOf, ttlText, unexpectedReply } from './format.ts'
import { lockKeys, slotCounter, slotOf, VOTER } from './keys.ts'
import { protocolScript, runScript, type ScriptCall } from './scripts.ts'
import { type ListParts, leasesScript } from './send-batch.ts'
import { SharedCall } from './shared-call.ts'

/** A claim with the token that its client proposes (Redlock). */
export interface ProposedClaim {
  readonly lockName: string
  readonly claim: Claim
  readonly token: number
}

export interface ProposalTerms {
  /** How far ahead of a server's clock a token may be. */
  readonly maxAheadUs: number
  /** The longest time to live that any client uses. Undefined: the server forgets nothing. */
  readonly longestTtlMs: number | undefined
}

/** What is proposed to all nodes. */
export const proposalsOf = (claims: readonly ProposedClaim[], terms: ProposalTerms): SharedCall<ProposedClaim> =>
  new SharedCall(claims, (prefix, some) => ballotCall(prefix, some, terms))

/** Rejects if the server may have forgotten leases that are still held. */
export function runBallot(
  { connection, prefix }: ListParts,
  proposals: SharedCall<ProposedClaim>,
  claims: readonly ProposedClaim[],
): Promise<readonly (AcquireAnswer | TokenRefusal | Error)[]> {
  return runScript(connection, ballotScript(), proposals.callFor(prefix, claims)).then(
    (reply) => {
      const answers = readBallot(claims, reply)
      // A token is refused before the script writes anything, which a replica can do, too.
      if (connection.master?.expectsWrite && answers.some((answer) => 'granted' in answer)) connection.master.wrote()
      return answers
    },
    (error: unknown) => {
      throw storeErrorFrom('acquire', error, connection)
    },
  )
}

/** The call of ballot.lua. */
export function ballotCall(
  prefix: string,
  claims: readonly ProposedClaim[],
  { maxAheadUs, longestTtlMs }: ProposalTerms,
): ScriptCall {
  const count = claims.length
  const call = new Array<string>(7 + 4 * count)
  call[0] = call[1] = ''
  call[2] = `${4 * count + 1}`
  let entries = ''
  for (let index = 0; index < count; index += 1) {
    const { lockName, claim, token } = claims[index] as ProposedClaim
    const { plain, data, order } = lockKeys(prefix, lockName)
    call[3 + index] = slotCounter(slotOf(plain))
    call[3 + count + index] = plain
    call[3 + 2 * count + index] = data
    call[3 + 3 * count + index] = order
    entries += `${index === 0 ? '' : '\n'}${entryOf({ lockName, claimId: claim.claimId, fencingToken: token })}`
  }
  const at = 3 + 4 * count
  call[at] = VOTER
  call[at + 1] = longestTtlMs === undefined ? '' : `${longestTtlMs}`
  call[at + 2] = `${maxAheadUs}`
  call[at + 3] = entries
  const first = (claims[0] as ProposedClaim).claim
  // Terms that are the same for all claims, as is usual, are sent once.
  if (claims.every(({ claim }) => isLike(claim, first))) call.push(...termsOf(first))
  else for (const { claim } of claims) call.push(...termsOf(claim))
  return call as ScriptCall
}

const termsOf = (claim: Claim): [ttlMs: string, tail: string, permits: string] => [
  ttlText(claim),
  tailOf(claim),
  claim.mode === 'exclusive' ? '' : `${claim.permits}`,
]

const isLike = (one: Claim, other: Claim): boolean =>
  one.ttlMs === other.ttlMs &&
  one.holderId === other.holderId &&
  one.mode === other.mode &&
  one.permits === other.permits &&
  one.metadata === other.metadata

function readBallot(
  claims: readonly ProposedClaim[],
  reply: unknown,
): readonly (AcquireAnswer | TokenRefusal | Error)[] {
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

const ballotScript = protocolScript(() => {
  // Not read a second time: a bundle would have its text twice.
  const { text } = leasesScript()
  return `local function leases(KEYS, ARGV)\n${text}\nend\n${readProtocol('redis/ballot.lua')}`
})
