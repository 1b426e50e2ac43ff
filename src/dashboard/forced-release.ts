import type { LeaseRecord } from '../core/driver.ts'
import { HoldfastError } from '../core/errors.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../core/limits.ts'
import { withoutSecrets } from '../core/secrets.ts'
import { markOf } from './detail.ts'
import { json } from './responses.ts'
import type { WatchedStore } from './watched-store.ts'
import type { ForceReleaseRequest } from './wire.ts'

/**
 * Ends the leases that the viewer has confirmed, and no others: if the lock has other holders by now, nothing happens.
 */
export async function forceRelease(store: WatchedStore, request: ForceReleaseRequest, user: string): Promise<Response> {
  const { name: lockName, tokens, marks, reason } = request
  try {
    const leases = await store.leasesOf(lockName)
    if (leases.length === 0) return json({ error: 'The lock is free already.' }, 409)
    const confirmed = new Set<number | string>([...tokens, ...(marks ?? [])])
    const isConfirmed = (lease: LeaseRecord): boolean => confirmed.has(lease.fencingToken || markOf(lease))
    if (!leases.every(isConfirmed)) return json({ error: CHANGED }, 409)
    const by = user.slice(0, MAX_HOLDER_ID_LENGTH)
    const ended = await store.forceReleaseWithRecord({ lockName, leases, by, reason })
    return ended > 0 ? json({ ended }) : json({ error: CHANGED }, 409)
  } catch (error) {
    if (!(error instanceof HoldfastError)) throw error
    return json({ error: withoutSecrets(messageOf(error)) }, 502)
  }
}

/** The request, or what is wrong with it. */
export async function forceReleaseRequestFrom(request: Request): Promise<ForceReleaseRequest | string> {
  const { headers } = request
  if (!/^application\/json\b/i.test(headers.get('content-type') ?? '')) return 'The request must be JSON.'
  if (Number(headers.get('content-length') ?? 0) > MAX_BODY_BYTES) return 'The request is too long.'
  const text = await request.text()
  if (text.length > MAX_BODY_BYTES) return 'The request is too long.'
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    return 'The request must be JSON.'
  }
  const { store, name, tokens, marks = [], reason } = (body ?? {}) as Partial<ForceReleaseRequest>
  if (typeof store !== 'number' || typeof name !== 'string') return 'The request must name a store and a lock.'
  if (!Array.isArray(tokens) || !tokens.every(Number.isSafeInteger)) return 'The request must have the tokens.'
  if (!Array.isArray(marks)) return 'The marks must be a list.'
  if (typeof reason !== 'string' || reason.trim() === '') return 'Say why: it is recorded.'
  if (reason.length > MAX_REASON_LENGTH) return `The reason may have at most ${MAX_REASON_LENGTH} characters.`
  return { store, name, tokens, marks, reason }
}

const CHANGED = 'The lock has other holders now. Nothing was ended: look again.'
const MAX_BODY_BYTES = 64 * 1_024
const MAX_REASON_LENGTH = 500
