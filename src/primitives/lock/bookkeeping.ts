import { isWaitMarker } from '../../core/deadlock/wait-marker.ts'
import type { LeaseRecord } from '../../core/driver.ts'
import { isBreakRecord } from './break-record.ts'

/**
 * Whether a lease is no lock that a process holds: the result of a once-only job, a mark of what a holder waits for, or
 * a record of a break.
 */
export const isBookkeeping = (lease: LeaseRecord): boolean =>
  isWaitMarker(lease) || isBreakRecord(lease) || /^once:.*:done$/s.test(lease.lockName)
