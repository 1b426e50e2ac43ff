import type { LeaseRecord } from '../core/driver.ts'
import type { LockView } from './lock-view.ts'
import { DEADLOCKED, ELECTION, EXCLUSIVE, type Kind, type Row, SEMAPHORE, SHARED } from './wire.ts'

export interface RowContext {
  readonly id: number
  readonly baseMs: number
  readonly isDeadlocked: boolean
  isElection(lease: LeaseRecord): boolean
}

/** The row of a lock that has a lease or a waiter. */
export function rowOf({ name, leases, waiters }: LockView, context: RowContext): Row {
  const { id, baseMs } = context
  const [first] = leases
  const [firstWaiter] = waiters
  let permits = 0
  let sinceMs = Number.POSITIVE_INFINITY
  let endMs = Number.POSITIVE_INFINITY
  let limit = firstWaiter?.limit ?? 0
  for (const lease of leases) {
    permits += lease.permits
    if (lease.acquiredAtMs > 0) sinceMs = Math.min(sinceMs, lease.acquiredAtMs)
    if (lease.expiresAtMs !== undefined) endMs = Math.min(endMs, lease.expiresAtMs)
    if (lease.limit !== undefined) limit = Math.max(limit, lease.limit)
  }
  const isElection = first !== undefined && leases.length === 1 && context.isElection(first)
  const relative = (ms: number): number => (Number.isFinite(ms) ? Math.round(ms - baseMs) || 1 : 0)
  const kind: Kind = limit > 0 ? SEMAPHORE : (first ?? firstWaiter)?.mode === 'shared' ? SHARED : EXCLUSIVE
  const row = [
    id,
    name,
    kind,
    first?.holderId ?? '',
    leases.length,
    permits,
    limit,
    relative(sinceMs),
    relative(endMs),
    waiters.length,
    firstWaiter === undefined ? 0 : relative(firstWaiter.waitingSinceMs),
    (context.isDeadlocked ? DEADLOCKED : 0) | (isElection ? ELECTION : 0),
  ] as const
  return isElection ? [...row, first.fencingToken, valueText(first)] : row
}

const END = 8

/** Whether the two differ, and whether in more than the end. */
export function changeOf(before: Row, after: Row): 'none' | 'end' | 'row' {
  let isEndChanged = false
  for (let at = 0; at < Math.max(before.length, after.length); at += 1) {
    if (before[at] === after[at]) continue
    if (at !== END) return 'row'
    isEndChanged = true
  }
  return isEndChanged ? 'end' : 'none'
}

/**
 * A leader's lease is a lock with a published value: its metadata is exactly `{ value }`. An election without a value
 * is known only by its name.
 */
export function electionTest(prefixes: readonly string[]): (lease: LeaseRecord) => boolean {
  return ({ lockName, mode, metadata }) => {
    if (mode !== 'exclusive') return false
    if (prefixes.some((prefix) => lockName.startsWith(prefix))) return true
    const names = Object.keys(metadata ?? {})
    return names.length === 1 && names[0] === 'value'
  }
}

function valueText({ metadata }: LeaseRecord): string {
  const value = metadata?.['value']
  if (value === undefined) return ''
  const text = typeof value === 'string' ? value : JSON.stringify(value)
  return text.length > MAX_VALUE_LENGTH ? `${text.slice(0, MAX_VALUE_LENGTH)}…` : text
}

const MAX_VALUE_LENGTH = 200
