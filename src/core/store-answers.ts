import type { Claim, Grant, InspectPage, LeaseRecord, RateAnswer, Refusal, WaiterRecord } from './driver.ts'
import { StoreError } from './errors.ts'
import { MAX_HOLDER_ID_LENGTH } from './limits.ts'
import { type LockInfo, lockInfoFrom, MAX_TIME_MS } from './lock-info.ts'

/**
 * What a store may answer. Others write to a store, too, and a proxy or a broken server may send
 * anything. A grant or a refusal that is not valid counts as no answer. A record is only shown to people, and is
 * repaired: the lock of another client must not make an `inspect` fail.
 */

/** A grant without a valid token, time to live or date must not become a lease. */
export const isGrant = ({ fencingToken, ttlMs, acquiredAtMs }: Grant, needsToken: boolean): boolean =>
  Number.isSafeInteger(fencingToken) && fencingToken >= (needsToken ? 1 : 0) && ttlMs > 0 && isTime(acquiredAtMs)

/** A lease is never trusted for longer than the claim asked for. */
export const trimmed = (grant: Grant, { ttlMs }: Pick<Claim, 'ttlMs'>): Grant =>
  grant.ttlMs <= ttlMs ? grant : { ...grant, ttlMs }

/** NaN would break the timer of the waiting claim. */
export const isRefusal = ({ ahead, askAgainMs, answeredAtMs }: Refusal): boolean =>
  isNumberOrAbsent(ahead) && isNumberOrAbsent(askAgainMs) && isNumberOrAbsent(answeredAtMs)

export const isRateAnswer = (answer: RateAnswer): boolean =>
  typeof answer.allowed === 'boolean' &&
  isAmount(answer.remaining) &&
  isAmount(answer.retryAfterMs) &&
  isAmount(answer.resetAfterMs) &&
  Array.isArray(answer.usedMs) &&
  answer.usedMs.every(isAmount) &&
  (answer.blockedMs === undefined || isAmount(answer.blockedMs))

/** @throws `StoreError` if it is no page at all */
export function checkedPage(driverName: string, page: InspectPage): InspectPage {
  const { leases, waiters, next } = (page ?? {}) as Partial<InspectPage>
  const isPage = Array.isArray(leases) && Array.isArray(waiters) && (next === undefined || typeof next === 'string')
  if (!isPage) {
    throw new StoreError(`the ${driverName} driver returned an invalid page: ${JSON.stringify(page)?.slice(0, 200)}`)
  }
  if (leases.every(isLease) && waiters.every(isWaiter)) return page
  return {
    leases: leases.filter(isNamed).map(checkedLease),
    waiters: waiters.filter(isNamed).map(checkedWaiter),
    ...(next !== undefined && { next }),
  }
}

/** The same record if it is valid. */
export function checkedLease(record: LeaseRecord): LeaseRecord {
  if (isLease(record)) return record
  const { fencingToken, acquiredAtMs, expiresAtMs, metadata } = record
  return {
    ...checkedShare(record),
    // 0: unknown, as for a lock that another library took.
    fencingToken: Number.isSafeInteger(fencingToken) && fencingToken > 0 ? fencingToken : 0,
    acquiredAtMs: nearestTime(acquiredAtMs),
    ...(expiresAtMs !== undefined && { expiresAtMs: nearestTime(expiresAtMs) }),
    ...(isObject(metadata) && { metadata }),
  }
}

/**
 * The holder that a refusal names, for an event. A driver may parse it only now. If it cannot, the caller of the claim
 * gets that error; an event must not fail the claim.
 */
export function holderPart(refusal: Refusal | undefined): { readonly holder: LockInfo } | undefined {
  try {
    const seen = refusal?.holder
    return seen && { holder: lockInfoFrom(checkedLease(seen)) }
  } catch {
    return undefined
  }
}

const checkedWaiter = (record: WaiterRecord): WaiterRecord =>
  isWaiter(record) ? record : { ...checkedShare(record), waitingSinceMs: nearestTime(record.waitingSinceMs) }

type Share = Pick<LeaseRecord, 'lockName' | 'claimId' | 'holderId' | 'mode' | 'limit' | 'permits'>

const checkedShare = ({ lockName, claimId, holderId, mode, limit, permits }: Share): Share => ({
  lockName,
  claimId: textOf(claimId),
  holderId: textOf(holderId).slice(0, MAX_HOLDER_ID_LENGTH),
  mode: mode === 'shared' ? 'shared' : 'exclusive',
  ...(Number.isFinite(limit) && { limit: limit as number }),
  permits: Number.isFinite(permits) ? permits : 1,
})

const isNamed = (record: Share | undefined): boolean => typeof record?.lockName === 'string'

const isShare = (record: Share | undefined): record is Share =>
  typeof record?.lockName === 'string' &&
  typeof record.claimId === 'string' &&
  typeof record.holderId === 'string' &&
  // It is a part of error messages.
  record.holderId.length <= MAX_HOLDER_ID_LENGTH &&
  (record.mode === 'exclusive' || record.mode === 'shared') &&
  (record.limit === undefined || Number.isFinite(record.limit)) &&
  Number.isFinite(record.permits)

const isLease = (record: LeaseRecord): boolean =>
  isShare(record) &&
  Number.isSafeInteger(record.fencingToken) &&
  record.fencingToken >= 0 &&
  isTime(record.acquiredAtMs) &&
  (record.expiresAtMs === undefined || isTime(record.expiresAtMs)) &&
  (record.metadata === undefined || isObject(record.metadata))

const isWaiter = (record: WaiterRecord): boolean => isShare(record) && isTime(record.waitingSinceMs)

/** JavaScript has no date beyond it. */
const isTime = (ms: unknown): ms is number => typeof ms === 'number' && ms >= -MAX_TIME_MS && ms <= MAX_TIME_MS

/** An end at `infinity` is shown as the last date that there is. 0: unknown. */
function nearestTime(ms: unknown): number {
  const number = typeof ms === 'string' && ms !== '' ? Number(ms) : ms
  if (typeof number !== 'number' || Number.isNaN(number)) return 0
  return Math.min(Math.max(number, -MAX_TIME_MS), MAX_TIME_MS)
}

const isAmount = (value: unknown): value is number => typeof value === 'number' && value >= 0 && Number.isFinite(value)
/** Infinity is valid: behind a lease without an end, asking again never helps. */
const isNumberOrAbsent = (value: unknown): boolean =>
  value === undefined || (typeof value === 'number' && !Number.isNaN(value))
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const textOf = (value: unknown): string =>
  typeof value === 'string' ? value : String(JSON.stringify(value)).slice(0, 255)
