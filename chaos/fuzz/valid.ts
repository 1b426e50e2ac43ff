import type { Lease, LockInfo, LockInspection, LockResult, RateLimitResult } from 'holdfast'
import type { Judge } from './judge.ts'

/** What an answer may contain, even if the store sent anything. */

export function checkResult(judge: Judge, result: LockResult | undefined, ttlMs: number): Lease | undefined {
  if (result === undefined) return undefined
  if (result.acquired) {
    checkLease(judge, result.lock, ttlMs)
    return result.lock
  }
  judge.check(typeof result.error === 'string' && result.error !== '', () => `a refusal without a reason`)
  if (result.holder !== undefined) checkInfo(judge, 'the holder', result.holder)
  return undefined
}

export function checkLease(judge: Judge, lease: Lease, ttlMs: number): void {
  checkInfo(judge, 'the lease', lease)
  judge.check(isToken(lease.fencingToken), () => `acquired with the fencing token ${String(lease.fencingToken)}`)
  checkHeld(judge, lease, ttlMs)
}

/** Never longer than its time to live. */
export function checkHeld(judge: Judge, lease: Lease, ttlMs: number): void {
  const { remainingSeconds } = lease
  const isRight = remainingSeconds >= 0 && remainingSeconds <= ttlMs / 1_000
  judge.check(isRight, () => `a lease of ${ttlMs} ms has ${String(remainingSeconds)} s left`)
}

export function checkInfo(judge: Judge, what: string, info: LockInfo): void {
  const { lockName, holderId, acquiredAt, expiresAt, fencingToken, metadata } = info
  judge.check(typeof lockName === 'string', () => `${what} has the lock name ${String(lockName)}`)
  judge.check(typeof holderId === 'string', () => `${what} has the holder id ${String(holderId)}`)
  judge.check(isDate(acquiredAt), () => `${what} was acquired at ${String(acquiredAt)}`)
  judge.check(isDate(expiresAt), () => `${what} expires at ${String(expiresAt)}`)
  judge.check(isTokenOrNone(fencingToken), () => `${what} has the fencing token ${String(fencingToken)}`)
  judge.check(isMetadata(metadata), () => `${what} has the metadata ${JSON.stringify(metadata)}`)
}

export function checkInspection(judge: Judge, found: LockInspection | undefined): void {
  if (found === undefined) return
  for (const lease of found.leases) {
    const { acquiredAt, expiresAt, metadata, holderId, fencingToken } = lease
    judge.check(typeof holderId === 'string', () => `inspect shows the holder id ${String(holderId)}`)
    judge.check(isTokenOrNone(fencingToken), () => `inspect shows the fencing token ${String(fencingToken)}`)
    judge.check(acquiredAt === undefined || isDate(acquiredAt), () => `inspect shows ${String(acquiredAt)}`)
    judge.check(expiresAt === undefined || isDate(expiresAt), () => `inspect shows ${String(expiresAt)}`)
    judge.check(isMetadata(metadata), () => `inspect shows the metadata ${JSON.stringify(metadata)}`)
    checkShare(judge, lease)
  }
  for (const waiter of found.waiters) {
    judge.check(typeof waiter.holderId === 'string', () => `inspect shows the waiter ${String(waiter.holderId)}`)
    judge.check(isDate(waiter.waitingSince), () => `inspect shows a waiter since ${String(waiter.waitingSince)}`)
    checkShare(judge, waiter)
  }
}

function checkShare(judge: Judge, share: { mode: unknown; permits: unknown; limit?: unknown }): void {
  const { mode, permits, limit } = share
  judge.check(mode === 'exclusive' || mode === 'shared', () => `inspect shows the mode ${String(mode)}`)
  judge.check(Number.isFinite(permits), () => `inspect shows ${String(permits)} permits`)
  judge.check(limit === undefined || Number.isFinite(limit), () => `inspect shows the limit ${String(limit)}`)
}

export function checkRate(judge: Judge, result: RateLimitResult | undefined): void {
  if (result === undefined) return
  const { allowed, remaining, retryAfterSeconds, resetAfterSeconds, limits } = result
  judge.check(typeof allowed === 'boolean', () => `allowed is ${String(allowed)}`)
  const numbers = [
    ...[remaining, retryAfterSeconds, resetAfterSeconds],
    ...limits.flatMap((each) => [each.remaining, each.nextAfterSeconds, each.resetAfterSeconds]),
  ]
  const isRight = numbers.every((each) => Number.isFinite(each) && each >= 0)
  judge.check(isRight, () => `a rate limit answered ${JSON.stringify(result)} with ${numbers.map(String).join(', ')}`)
}

const isToken = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) > 0
/** 0: the lock of another client, which has none. */
const isTokenOrNone = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0
const isDate = (value: unknown): boolean => value instanceof Date && Number.isFinite(value.getTime())
const isMetadata = (value: unknown): boolean =>
  value === undefined || (typeof value === 'object' && value !== null && !Array.isArray(value))
