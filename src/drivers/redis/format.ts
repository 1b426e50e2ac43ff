import { createHash } from 'node:crypto'
import type {
  AcquireAnswer,
  Claim,
  Grant,
  LeaseRecord,
  LeaseRef,
  Metadata,
  Refusal,
  Renewal,
  WaiterRecord,
} from '../../core/driver.ts'
import { StoreError, UnsupportedError } from '../../core/errors.ts'
import { leftOver } from '../shared/groups.ts'

/**
 * How claims, leases and waiters are written in Redis, and read back. `protocol/redis/leases.lua` says what stands
 * where.
 */

/** A claim's id in the store is its JSON text: nothing in it can end it early. */
export const idText = (claimId: string): string => JSON.stringify(claimId)

/**
 * A claim as leases.lua is told of it. `proposal`: the token is the client's choice (Redlock); otherwise the server
 * chooses.
 */
export type ProposedClaim = Claim & { readonly proposal?: Proposal }

export interface Proposal {
  readonly token: number
  /** How far ahead of a server's clock a token may be. */
  readonly mostAheadUs: number
}

/**
 * What leases.lua is told of these claims: their ids, and their terms. `spares`: what is no lock of ours is not taken by
 * force.
 */
export function acquireArgs(claims: readonly ProposedClaim[], spares = false): string[] {
  const first = claims[0] as ProposedClaim
  let ids = idText(first.claimId)
  for (let index = 1; index < claims.length; index += 1) ids += `\n${idText((claims[index] as Claim).claimId)}`
  // Claims that were made alike, as most are, say so once.
  const alike = claims.every((claim) => isLike(claim, first))
  return [ids, ...(alike ? termsOf(first, spares) : claims.flatMap((claim) => termsOf(claim, spares)))]
}

export function renewArgs(renewals: readonly Renewal[]): string[] {
  const ttls = renewals.map(ttlText)
  const alike = ttls.every((ttl) => ttl === ttls[0])
  return [entriesOf(renewals), ...(alike ? ttls.slice(0, 1) : ttls)]
}

/** In whole milliseconds. A lease that lasts a little longer than is known of it is safe; a shorter one is not. */
export const ttlText = ({ ttlMs }: { readonly ttlMs: number }): string => `${Math.ceil(ttlMs)}`

export const releaseArgs = (leases: readonly LeaseRef[]): string[] => [entriesOf(leases)]

/** A line for each. */
function entriesOf(leases: readonly LeaseRef[]): string {
  let entries = ''
  for (const lease of leases) {
    if (entries !== '') entries += '\n'
    entries += entryOf(lease)
  }
  return entries
}

/** Without a token: whatever the claim has. */
export const entryOf = ({ claimId, fencingToken }: LeaseRef): string =>
  fencingToken === undefined ? idText(claimId) : `${idText(claimId)},${fencingToken}`

const isLike = (one: ProposedClaim, other: ProposedClaim): boolean =>
  one.ttlMs === other.ttlMs &&
  one.holderId === other.holderId &&
  one.mode === other.mode &&
  one.waitMs === other.waitMs &&
  one.limit === other.limit &&
  one.permits === other.permits &&
  one.metadata === other.metadata &&
  one.proposal === other.proposal &&
  one.steal === other.steal &&
  one.group === other.group &&
  one.stealUpTo === other.stealUpTo

function termsOf(claim: ProposedClaim, spares: boolean): [ttlMs: string, tail: string, rest: string] {
  const { mode, limit = 0, permits, waitMs, holderId, metadata, steal, stealUpTo, group, proposal } = claim
  const holder = JSON.stringify(holderId)
  const tail = metadata === undefined ? holder : `${holder},${JSON.stringify(metadata)}`
  if (group !== undefined && proposal === undefined) return [ttlText(claim), tail, `g${group}`]
  const isPlain = mode === 'exclusive' && waitMs === 0 && proposal === undefined && !steal
  const wait = Math.ceil(waitMs)
  const end =
    proposal === undefined
      ? steal
        ? `0,${stealUpTo ?? true}${spares ? ',0,true' : ''}`
        : '0'
      : `${proposal.token},false,${proposal.mostAheadUs}`
  const rest = isPlain ? '' : `[${mode === 'exclusive' ? 0 : 1},${limit},${permits},${wait},${end}]`
  return [ttlText(claim), tail, rest]
}

/** A node's "no" to the token that a client proposed. */
export interface TokenRefusal {
  readonly tokenRefused: true
  /** The largest token that the node has given; absent where the proposal was too far ahead of its clock. */
  readonly mark?: number
  /** The node's clock. */
  readonly nowMs: number
}

export function readAcquire(claim: Claim, nowMs: number, reply: unknown): AcquireAnswer | TokenRefusal | Error {
  const { lockName, ttlMs } = claim
  if (isCount(reply)) {
    const fencingToken = Number(reply)
    // A proxy or another server that answers what it likes must not grant a lock.
    if (!isPositive(fencingToken)) return strange('acquire', reply)
    return { granted: true, fencingToken, ttlMs, acquiredAtMs: nowMs }
  }
  if (!Array.isArray(reply)) return strange('acquire', reply)
  const [kind, first, ...rest] = reply as [string, string, ...(number | string)[]]
  const [endMs, ahead, askAgainMs] = rest.map(Number) as [number, number, number]
  switch (kind) {
    case 'y': {
      const [, fencingToken, acquiredAtMs] = JSON.parse(first) as [string, number, number]
      return { granted: true, fencingToken, ttlMs, acquiredAtMs }
    }
    case 'x':
      return { granted: false, free: true, answeredAtMs: nowMs }
    case 'k':
      return leftOver(lockName)
    case 'o':
      return new UnsupportedError(
        `"${lockName}" cannot be taken by force: it is no lock of ours, and without a prefix a key may be anything. ` +
          'If you know that it is the lock of another client, delete the key',
      )
    case 'b':
      return { tokenRefused: true, mark: Number(first), nowMs }
    case 'f':
      return { tokenRefused: true, nowMs: Number(first) }
    case 'n': {
      const refusal: Writable<Refusal> = {
        granted: false,
        // On the same clock as a grant's beginning, so that a message which crosses this answer can be told from one
        // that is older.
        answeredAtMs: nowMs,
      }
      if (ahead >= 0) refusal.ahead = ahead
      if (askAgainMs >= 0) refusal.askAgainMs = askAgainMs
      if (first === '' && endMs === -1) return refusal
      // Read when somebody looks: most who are refused wait, and never do.
      return Object.defineProperty(refusal, 'holder', {
        get: () => readLease(lockName, first, endMs),
        enumerable: true,
      })
    }
    default:
      return strange('acquire', reply)
  }
}

type Writable<T> = { -readonly [Part in keyof T]: T[Part] }

/**
 * A lease of either mode: an exclusive one has the holder in fifth place, a shared one in seventh. What is not ours is
 * another client's lock, of which nothing is known but the key's value.
 */
export function readLease(lockName: string, text: string, endMs: number): LeaseRecord {
  const expires = endMs >= 0 && { expiresAtMs: endMs }
  const parts = parseList(text)
  if (parts !== undefined && isExclusive(parts)) {
    const [claimId, fencingToken, acquiredAtMs, , holderId, metadata] = parts
    const record = { lockName, claimId, holderId, mode: 'exclusive', permits: 1, fencingToken, acquiredAtMs } as const
    return { ...record, ...expires, ...(metadata && { metadata }) }
  }
  if (parts !== undefined && isShared(parts)) {
    const [claimId, fencingToken, acquiredAtMs, limit, permits, , holderId, metadata] = parts
    const record = { lockName, claimId, holderId, mode: 'shared', ...(limit > 0 && { limit }), permits } as const
    return { ...record, fencingToken, acquiredAtMs, ...expires, ...(metadata && { metadata }) }
  }
  const holderId = 'another client'
  const record = { lockName, claimId: text.slice(0, 255), holderId, mode: 'exclusive', permits: 1 } as const
  return { ...record, fencingToken: 0, acquiredAtMs: 0, ...expires }
}

export const isOurs = (text: string): boolean => {
  const parts = parseList(text)
  return parts !== undefined && (isExclusive(parts) || isShared(parts))
}

export function readWaiter(lockName: string, id: string, text: string): WaiterRecord {
  const [, waitingSinceMs, mode, limit, permits, , , , tail] = JSON.parse(text) as WaiterParts
  const [holderId] = JSON.parse(`[${tail}]`) as [string]
  return {
    lockName,
    claimId: JSON.parse(id) as string,
    holderId,
    mode: mode === 0 ? 'exclusive' : 'shared',
    ...(limit > 0 && { limit }),
    permits,
    waitingSinceMs,
  }
}

/** What a waiter is told: its grant, or without one that it should ask again. */
export interface WakeMessage {
  readonly claimId: string
  readonly grant?: Grant
  /** Whether the script published it for the request that had this secret. Anybody may publish. */
  isProvedBy(secret: string): boolean
}

/** Undefined if the message is not one of ours. */
export function readMessage(message: string): WakeMessage | undefined {
  const parts = parseList(message)
  const [claimId, fencingToken, acquiredAtMs, ttlMs, proof] = parts ?? []
  if (typeof claimId !== 'string') return undefined
  if (parts?.length === 1) return { claimId, isProvedBy: () => false }
  if (!isPositive(fencingToken) || !isPositive(acquiredAtMs) || !isPositive(ttlMs) || !isText(proof)) return undefined
  // Between the bracket and the proof.
  const told = message.slice(1, -`,"${proof}"]`.length)
  return {
    claimId,
    grant: { granted: true, fencingToken, ttlMs, acquiredAtMs },
    isProvedBy: (secret) => proof === createHash('sha1').update(secret).update(told).update(secret).digest('hex'),
  }
}

/** Who is told that a lock was stolen from them; undefined if the message says something else. */
export function readTheft(message: string): { lost: readonly string[]; by: string } | undefined {
  if (!message.startsWith('{')) return undefined
  try {
    const { lost, by } = JSON.parse(message) as { lost: unknown; by: unknown }
    return Array.isArray(lost) && typeof by === 'string' ? { lost: lost as string[], by } : undefined
  } catch {
    return undefined
  }
}

/** A client may be set to give numbers as text. */
const isCount = (reply: unknown): boolean =>
  typeof reply === 'number' || (typeof reply === 'string' && /^\d+$/.test(reply))

export const strange = (what: string, reply: unknown): StoreError =>
  new StoreError(`the redis store answered ${what} with ${JSON.stringify(reply)?.slice(0, 200)}`)

type ExclusiveParts = [string, number, number, number, string, Metadata?]
type SharedParts = [string, number, number, number, number, number, string, Metadata?]
type WaiterParts = [number, number, 0 | 1, number, number, number, number, string, string, string]

const isNumber = (value: unknown): value is number => typeof value === 'number'
const isPositive = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) > 0
const isText = (value: unknown): value is string => typeof value === 'string'

const isExclusive = (parts: unknown[]): parts is ExclusiveParts =>
  typeof parts[0] === 'string' && [1, 2, 3].every((at) => isNumber(parts[at])) && typeof parts[4] === 'string'

const isShared = (parts: unknown[]): parts is SharedParts =>
  typeof parts[0] === 'string' && [1, 2, 3, 4, 5].every((at) => isNumber(parts[at])) && typeof parts[6] === 'string'

function parseList(text: string): unknown[] | undefined {
  if (!text.startsWith('["')) return undefined
  try {
    const parsed: unknown = JSON.parse(text)
    return Array.isArray(parsed) ? parsed : undefined
  } catch {
    return undefined
  }
}
