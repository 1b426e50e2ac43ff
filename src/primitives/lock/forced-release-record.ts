import { createHash } from 'node:crypto'
import type { ClaimRequest } from '../../core/claim/holder.ts'
import { isWaitMarker } from '../../core/deadlock/wait-marker.ts'
import type { Driver, LeaseRecord, Metadata } from '../../core/driver.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'

/**
 * Who ended leases by force, when and why. The record is a lease that no process holds, beside the lock: so every store
 * that keeps metadata can keep it, and ends it by itself.
 */
export interface ForcedReleaseRecord {
  readonly by: string
  readonly reason: string
  readonly at: Date
  /** The holders whose leases were ended. */
  readonly ended: readonly string[]
}

const PREFIX = 'forced:'
/** How long a record is kept. */
export const KEPT_MS = 30 * 24 * 3_600_000
/** A record is no place for many names: the metadata of a lease has at most 16 KiB. */
const MAX_ENDED = 20

/** All records of a lock have names that begin like this. A name that is too long for that is replaced by its hash. */
export function recordPrefix(lockName: string): string {
  const fits = PREFIX.length + lockName.length + MAX_TOKEN_LENGTH < MAX_NAME_LENGTH
  return `${PREFIX}${fits ? lockName : createHash('sha256').update(lockName).digest('hex')}:`
}

const MAX_TOKEN_LENGTH = 17

/** `token` is the largest one that was ended, so that each forced release has a record of its own. */
export const recordName = (lockName: string, token: number): string => `${recordPrefix(lockName)}${token}`

export const canRecord = ({ capabilities: { metadata, expiry } }: Driver): boolean => metadata && expiry === 'ttl'

export const metadataOf = ({ by, reason, at, ended }: ForcedReleaseRecord): Metadata => ({
  forcedBy: by,
  reason,
  at: at.toISOString(),
  ended: ended.slice(0, MAX_ENDED),
})

/** The records of one lock, the last ones first. What begins like its name may be about another lock. */
export const forcedReleasesOf = (lockName: string, leases: readonly LeaseRecord[]): ForcedReleaseRecord[] =>
  leases
    .filter((lease) => /^\d+$/.test(lease.lockName.slice(recordPrefix(lockName).length)))
    .flatMap((lease) => readForcedRelease(lease) ?? [])
    .sort((a, b) => b.at.getTime() - a.at.getTime())

/** Undefined if the lease is no such record. Any client can write one. */
export function readForcedRelease({ lockName, metadata }: LeaseRecord): ForcedReleaseRecord | undefined {
  const { forcedBy: by, reason, at, ended } = metadata ?? {}
  if (!lockName.startsWith(PREFIX) || typeof by !== 'string' || typeof reason !== 'string') return undefined
  const date = new Date(typeof at === 'string' ? at : Number.NaN)
  if (Number.isNaN(date.getTime()) || !Array.isArray(ended)) return undefined
  return { by, reason, at: date, ended: ended.filter((each) => typeof each === 'string') }
}

export const isForcedReleaseRecord = (lease: LeaseRecord): boolean => readForcedRelease(lease) !== undefined

/** A request for a lease that no process keeps: it is not renewed. */
export const unheld = (lockName: string, ttlMs: number, metadata: Metadata): ClaimRequest => ({
  lockName,
  mode: 'exclusive',
  ttlMs,
  metadata,
  patienceMs: 0,
  heartbeat: false,
  minHoldMs: 0,
  maxHoldMs: ttlMs,
})

/**
 * Whether a lease is no lock that a process holds: the result of a once-only job, a mark of what a holder waits for, or
 * a record of a forced release.
 */
export const isBookkeeping = (lease: LeaseRecord): boolean =>
  isWaitMarker(lease) || isForcedReleaseRecord(lease) || /^once:.*:done$/s.test(lease.lockName)
