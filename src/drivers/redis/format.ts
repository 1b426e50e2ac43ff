import { hash } from 'node:crypto'
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
import { storeErrorFrom } from './errors.ts'

/**
 * How claims, leases and waiters are written to Redis and read back. The header of `protocol/redis/leases.lua` has the
 * format.
 */

/** In the store, a claim's id is JSON text, so that no character in it can end it early. */
export const idText = (claimId: string): string => JSON.stringify(claimId)

/**
 * The arguments of leases.lua for these claims: their ids and their terms. `spares`: a claim that takes the lock by
 * force takes no key that is not a lock of Holdfast.
 */
export const acquireArgs = (claims: readonly Claim[], spares = false): string[] => [
  claims.map(({ claimId }) => idText(claimId)).join('\n'),
  ...termsOfAll(claims, (claim) => termsOf(claim, spares)),
]

/** Terms that are the same for all claims, as is usual, are sent once. */
export function termsOfAll(claims: readonly Claim[], termsOf: (claim: Claim) => readonly string[]): readonly string[] {
  const first = claims[0] as Claim
  return claims.every((claim) => isLike(claim, first)) ? termsOf(first) : claims.flatMap(termsOf)
}

export function renewArgs(renewals: readonly Renewal[]): string[] {
  const first = renewals[0] as Renewal
  const alike = renewals.every(({ ttlMs }) => ttlMs === first.ttlMs)
  return [...releaseArgs(renewals), ...(alike ? [ttlText(first)] : renewals.map(ttlText))]
}

/** Rounded up to milliseconds. A lease that lasts longer than its holder believes is safe. A shorter one is not. */
export const ttlText = ({ ttlMs }: { readonly ttlMs: number }): string => `${Math.ceil(ttlMs)}`

/** One line for each lease. */
export const releaseArgs = (leases: readonly LeaseRef[]): string[] => [leases.map(entryOf).join('\n')]

/** Without a token: any lease of the claim, and its place in the queue. */
export const entryOf = ({ claimId, fencingToken }: LeaseRef): string =>
  fencingToken === undefined ? idText(claimId) : `${idText(claimId)},${fencingToken}`

const isLike = (one: Claim, other: Claim): boolean =>
  one.ttlMs === other.ttlMs &&
  one.holderId === other.holderId &&
  one.mode === other.mode &&
  one.waiterTtlMs === other.waiterTtlMs &&
  one.limit === other.limit &&
  one.permits === other.permits &&
  one.metadata === other.metadata &&
  one.group === other.group &&
  one.forceUpTo === other.forceUpTo

function termsOf(claim: Claim, spares: boolean): [ttlMs: string, tail: string, rest: string] {
  const { mode, limit = 0, permits, waiterTtlMs, forceUpTo, group } = claim
  const tail = tailOf(claim)
  if (group !== undefined) return [ttlText(claim), tail, `g${group}`]
  const isPlain = mode === 'exclusive' && waiterTtlMs === 0 && forceUpTo === undefined
  const wait = Math.ceil(waiterTtlMs)
  const upTo = forceUpTo === Number.MAX_SAFE_INTEGER ? true : forceUpTo
  const end = upTo === undefined ? '0' : `0,${upTo}${spares ? ',0,true' : ''}`
  const rest = isPlain ? '' : `[${mode === 'exclusive' ? 0 : 1},${limit},${permits},${wait},${end}]`
  return [ttlText(claim), tail, rest]
}

/** The holder and the metadata, as they are stored with the lease. */
export function tailOf({ holderId, metadata }: Claim): string {
  const holder = JSON.stringify(holderId)
  return metadata === undefined ? holder : `${holder},${JSON.stringify(metadata)}`
}

/** A node refuses the token that a client proposed. */
export interface TokenRefusal {
  readonly tokenRefused: true
  /** The largest token that the node has granted. Absent if the proposal was too far ahead of the node's clock. */
  readonly mark?: number
  /** The node's clock. */
  readonly nowMs: number
}

/** The error of one entry of a list. The other entries have their answers. */
export function entryError(what: string, reply: unknown): Error | undefined {
  return Array.isArray(reply) && reply[0] === 'e' ? storeErrorFrom(what, new Error(String(reply[1]))) : undefined
}

export function readAcquire(claim: Claim, nowMs: number, reply: unknown): AcquireAnswer | TokenRefusal | Error {
  const { lockName, ttlMs } = claim
  if (isCount(reply)) {
    const fencingToken = Number(reply)
    // A proxy or another server may answer anything. It must not grant a lock.
    if (!isPositive(fencingToken)) return unexpectedReply('acquire', reply)
    return { granted: true, fencingToken, ttlMs, acquiredAtMs: nowMs }
  }
  if (!Array.isArray(reply)) return unexpectedReply('acquire', reply)
  const [kind, first, ...rest] = reply as [string, string, ...(number | string)[]]
  const [endMs, ahead, askAgainMs] = rest.map(Number) as [number, number, number]
  switch (kind) {
    case 'y': {
      const [, fencingToken, acquiredAtMs] = parseList(first) ?? []
      if (!isPositive(fencingToken) || !isNumber(acquiredAtMs)) return unexpectedReply('acquire', reply)
      return { granted: true, fencingToken, ttlMs, acquiredAtMs }
    }
    case 'e':
      return storeErrorFrom('acquire', new Error(first))
    case 'x':
      return { granted: false, free: true, answeredAtMs: nowMs }
    case 'k':
      return leftOver(lockName)
    case 'o':
      return new UnsupportedError(
        `"${lockName}" cannot be taken by force: it is not a lock of Holdfast, and without a prefix the key may be ` +
          'anything. If you know that it is the lock of another client, delete the key',
      )
    case 'b':
    case 'f': {
      // A mark that is no number would become the next proposal to all nodes.
      const number = Number(first)
      if (!Number.isSafeInteger(number) || number < 0) return unexpectedReply('acquire', reply)
      return kind === 'b' ? { tokenRefused: true, mark: number, nowMs } : { tokenRefused: true, nowMs: number }
    }
    case 'n': {
      const refusal: Writable<Refusal> = {
        granted: false,
        // On the same clock as the start of a grant: core compares the two when a message crosses this answer.
        answeredAtMs: nowMs,
      }
      if (ahead >= 0) refusal.ahead = ahead
      if (askAgainMs >= 0) refusal.askAgainMs = askAgainMs
      if (typeof first !== 'string' || Number.isNaN(endMs)) return unexpectedReply('acquire', reply)
      if (first === '' && endMs === -1) return refusal
      // Parsed only when it is read. Most refused claims wait, and never read it.
      return Object.defineProperty(refusal, 'holder', {
        get: () => readLease(lockName, first, endMs),
        enumerable: true,
      })
    }
    default:
      return unexpectedReply('acquire', reply)
  }
}

type Writable<T> = { -readonly [Part in keyof T]: T[Part] }

/**
 * Reads a lease of either mode. An exclusive one has the holder in fifth place, a shared one in seventh. Any other text
 * is the lock of another client, of which only the value of the key is known.
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

/** A waiter whose text is not ours is shown with what is known of it. */
export function readWaiter(lockName: string, id: string, text: string): WaiterRecord {
  const [, waitingSinceMs = 0, mode = 0, limit = 0, permits = 1, , , , tail = ''] = listIn(text) as WaiterParts
  const [holderId] = listIn(`[${tail}]`) as [string?]
  return {
    lockName,
    claimId: (parsed(id) ?? id) as string,
    holderId: holderId ?? 'another client',
    mode: mode === 0 ? 'exclusive' : 'shared',
    ...(limit > 0 && { limit }),
    permits,
    waitingSinceMs,
  }
}

/** A message to a waiter: its grant, or without a grant, a hint to ask again. */
export interface WakeMessage {
  readonly claimId: string
  readonly grant?: Grant
  /** Whether leases.lua published it for the request with this secret. Any client can publish on the channel. */
  isProvedBy(secret: string): boolean
}

/** Undefined if the message has another format. */
export function readMessage(message: string): WakeMessage | undefined {
  const parts = parseList(message)
  const [claimId, fencingToken, acquiredAtMs, ttlMs, proof] = parts ?? []
  if (typeof claimId !== 'string') return undefined
  if (parts?.length === 1) return { claimId, isProvedBy: () => false }
  if (!isPositive(fencingToken) || !isPositive(acquiredAtMs) || !isPositive(ttlMs) || !isText(proof)) return undefined
  // The text between the bracket and the proof.
  const told = message.slice(1, -`,"${proof}"]`.length)
  return {
    claimId,
    grant: { granted: true, fencingToken, ttlMs, acquiredAtMs },
    isProvedBy: (secret) => proof === hash('sha1', secret + told + secret),
  }
}

/** The claims whose leases were ended by force. Undefined if the message has another format. */
export function readForced(message: string): { lost: readonly string[]; by: string } | undefined {
  if (!message.startsWith('{')) return undefined
  try {
    const { lost, by } = JSON.parse(message) as { lost: unknown; by: unknown }
    return Array.isArray(lost) && typeof by === 'string' ? { lost: lost as string[], by } : undefined
  } catch {
    return undefined
  }
}

/** A client may be configured to return numbers as text. */
const isCount = (reply: unknown): boolean =>
  typeof reply === 'number' || (typeof reply === 'string' && /^\d+$/.test(reply))

export const unexpectedReply = (what: string, reply: unknown): StoreError =>
  new StoreError(`the redis server sent an unexpected reply to ${what}: ${JSON.stringify(reply)?.slice(0, 200)}`)

type ExclusiveParts = [string, number, number, number, string, Metadata?]
type SharedParts = [string, number, number, number, number, number, string, Metadata?]
type WaiterParts = [number?, number?, (0 | 1)?, number?, number?, number?, number?, string?, string?, string?]

const isNumber = (value: unknown): value is number => typeof value === 'number'
const isPositive = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) > 0
const isText = (value: unknown): value is string => typeof value === 'string'

const isExclusive = (parts: unknown[]): parts is ExclusiveParts =>
  typeof parts[0] === 'string' && [1, 2, 3].every((at) => isNumber(parts[at])) && typeof parts[4] === 'string'

const isShared = (parts: unknown[]): parts is SharedParts =>
  typeof parts[0] === 'string' && [1, 2, 3, 4, 5].every((at) => isNumber(parts[at])) && typeof parts[6] === 'string'

function parseList(text: unknown): unknown[] | undefined {
  if (typeof text !== 'string' || !text.startsWith('["')) return undefined
  const found = parsed(text)
  return Array.isArray(found) ? found : undefined
}

/** Empty for a text that is no list. */
function listIn(text: string): unknown[] {
  const found = parsed(text)
  return Array.isArray(found) ? found : []
}

/** Undefined for a text that is no JSON. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
