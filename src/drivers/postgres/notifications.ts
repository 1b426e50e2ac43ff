import { hash } from 'node:crypto'
import type { Grant } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../../core/limits.ts'

/**
 * The payloads of the driver's notifications. Every role that can connect can send to a channel, so a payload that does
 * not have the expected form is ignored.
 */

/** One event of `holdfast_tell`. Its texts stay as they were sent: the proof is about them. */
export interface WakeEvent {
  readonly claimId: string
  /** Absent: the claim should ask again. */
  readonly grant?: Grant
  /** Whether it was sent by a client that knows the key, about the call with this random text. */
  isProvedBy(key: string, callId: string): boolean
}

/** What `holdfast_steal` sends: the claims that lost their lease, and the new holder. */
export interface Theft {
  readonly lost: readonly string[]
  readonly by: string
}

/** The channel of `holdfast_steal`. */
export const STOLEN_CHANNEL = 'holdfast_stolen'

/** Why a lease may have been lost. Any client can write `by`. */
export const stolenBy = (by: string): StoreError =>
  new StoreError(`it was stolen by ${by.slice(0, MAX_HOLDER_ID_LENGTH)}`)

export function parseEvents(payload: string): WakeEvent[] {
  try {
    const found: unknown = JSON.parse(payload)
    return Array.isArray(found) ? found.flatMap((event) => eventFrom(event) ?? []) : []
  } catch {
    return []
  }
}

function eventFrom(event: unknown): WakeEvent | undefined {
  if (!Array.isArray(event) || event.length !== 5 || !event.every((part) => typeof part === 'string')) return undefined
  const [claimId, token, acquiredAt, ttl, proof] = event as [string, string, string, string, string]
  const isProvedBy = (key: string, callId: string): boolean => {
    const told = `${key} ${callId} ${token} ${acquiredAt} ${ttl} ${claimId} ${key}`
    return proof === hash('sha256', told)
  }
  if (token === '' && acquiredAt === '' && ttl === '') return { claimId, isProvedBy }
  const [fencingToken, acquiredAtMs, ttlMs] = [Number(token), Number(acquiredAt), Number(ttl)]
  if (!Number.isSafeInteger(fencingToken) || !(fencingToken > 0 && acquiredAtMs > 0 && ttlMs > 0)) return undefined
  return { claimId, grant: { granted: true, fencingToken, ttlMs, acquiredAtMs }, isProvedBy }
}

export function parseTheft(payload: string): Theft | undefined {
  try {
    const { lost, by } = JSON.parse(payload) as { lost?: unknown; by?: unknown }
    return Array.isArray(lost) ? { lost: lost.filter((each) => typeof each === 'string'), by: String(by) } : undefined
  } catch {
    return undefined
  }
}
