import { StoreError } from '../../core/errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../../core/limits.ts'

/**
 * The payloads of the driver's notifications. Every role that can connect can send to a channel, so a payload that does
 * not have the expected form is ignored.
 */

/** One event of `holdfast_tell`. */
export type GrantEvent = readonly [kind: 'granted' | 'wake', claimId: string, lockName: string]

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

export function parseEvents(payload: string): GrantEvent[] {
  try {
    const found: unknown = JSON.parse(payload)
    return Array.isArray(found) ? found.filter(isEvent) : []
  } catch {
    return []
  }
}

function isEvent(event: unknown): event is GrantEvent {
  if (!Array.isArray(event) || event.length !== 3) return false
  const [kind, claimId, lockName] = event
  return (kind === 'granted' || kind === 'wake') && typeof claimId === 'string' && typeof lockName === 'string'
}

export function parseTheft(payload: string): Theft | undefined {
  try {
    const { lost, by } = JSON.parse(payload) as { lost?: unknown; by?: unknown }
    return Array.isArray(lost) ? { lost: lost.filter((each) => typeof each === 'string'), by: String(by) } : undefined
  } catch {
    return undefined
  }
}
