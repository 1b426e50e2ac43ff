import type { AcquireAnswer, Claim, LeaseRef } from '../../core/driver.ts'
import type { LockShare } from '../../core/lock-share.ts'
import { admitted } from '../shared/admission.ts'
import { leftOver } from '../shared/groups.ts'
import type { SqliteConnection } from './connection.ts'
import type { LockView, LockViews } from './lock-view.ts'
import { nextEndOf, QUEUE_WINDOWS, type Row, recordOf, shareOf } from './rows.ts'

/** Decides one claim. Call it within a transaction. */
export function acquireOne(connection: SqliteConnection, view: LockView, claim: Claim, nowMs: number): AcquireAnswer {
  const own = ownLease(connection, view, claim, nowMs)
  if (own !== undefined) {
    const { lockName, claimId, ttlMs } = claim
    connection.run('set_end', nowMs + ttlMs, ttlMs, lockName, claimId, nowMs)
    return { granted: true, fencingToken: own.fencing_token, ttlMs, acquiredAtMs: own.acquired_at_ms }
  }
  if (claim.steal === true) {
    view.clamp()
    const { stealUpTo = Number.MAX_SAFE_INTEGER } = claim
    const newer = connection.get('newer_lease', claim.lockName, stealUpTo, nowMs) as Row | undefined
    if (newer !== undefined) return { granted: false, holder: recordOf(newer, nowMs) }
    if (connection.run('note_stolen', claim.holderId, nowMs, claim.lockName, nowMs) > 0) connection.run('trim_stolen')
    connection.run('end_leases', claim.lockName)
    return grant(connection, view, claim, nowMs, true)
  }
  const { isAdmitted, isQueued } = placeOf(view, claim)
  return isAdmitted ? grant(connection, view, claim, nowMs, isQueued) : refuse(connection, view, claim, nowMs)
}

/**
 * Decides the claims of one group. Call it within a transaction. All of them are checked before any is written, so that
 * a refused group writes nothing.
 */
export function acquireGroup(
  connection: SqliteConnection,
  views: LockViews,
  claims: readonly Claim[],
  nowMs: number,
): (AcquireAnswer | Error)[] {
  const looks = claims.map((claim) => {
    const view = views.of(claim.lockName, nowMs)
    const own = ownLease(connection, view, claim, nowMs)
    return { claim, view, own, isOpen: own !== undefined || placeOf(view, claim).isAdmitted }
  })
  if (looks.every(({ isOpen }) => isOpen))
    return looks.map(({ claim, view }) => acquireOne(connection, view, claim, nowMs))
  return looks.map(({ claim, view, own, isOpen }) => {
    if (own !== undefined) return leftOver(claim.lockName)
    return isOpen ? { granted: false, free: true } : refuse(connection, view, claim, nowMs)
  })
}

function grant(
  connection: SqliteConnection,
  view: LockView,
  claim: Claim,
  nowMs: number,
  isQueued: boolean,
): AcquireAnswer {
  const { lockName, claimId, holderId, mode, limit, permits, ttlMs, metadata } = claim
  view.granted()
  if (isQueued) connection.run('delete_waiter', lockName, claimId)
  const fencingToken = nextToken(connection, nowMs)
  const json = metadata === undefined ? null : JSON.stringify(metadata)
  const share = [mode, limit ?? null, permits] as const
  const terms = [fencingToken, nowMs, nowMs + ttlMs, ttlMs, json] as const
  connection.run('insert_lease', lockName, claimId, holderId, ...share, ...terms)
  return { granted: true, fencingToken, ttlMs, acquiredAtMs: nowMs }
}

function refuse(connection: SqliteConnection, view: LockView, claim: Claim, nowMs: number): AcquireAnswer {
  const { lockName, waitMs } = claim
  const seen = view.holder && { holder: recordOf(view.holder, nowMs) }
  if (waitMs === 0) return { granted: false, ...seen }
  const place = joinQueue(connection, view, claim, nowMs)
  const { ahead, firstGoneMs } = aheadOf(connection, view, lockName, place, nowMs)
  // The first waiter waits for a lease to expire. The others wait until a waiter ahead of them, which may be dead,
  // ends.
  const nextMs = ahead === 0 ? nextEndOf(connection, lockName, nowMs) : firstGoneMs
  return { granted: false, ...seen, ahead, askAgainMs: (nextMs ?? nowMs) - nowMs }
}

interface Place {
  readonly isAdmitted: boolean
  /** It has a place in the queue. Known only for a claim that is admitted. */
  readonly isQueued: boolean
}

/**
 * Reads only as much of the queue as the decision needs. A claim behind that part is not admitted yet, because the
 * waiters ahead of it come first.
 */
function placeOf(view: LockView, claim: Claim): Place {
  for (const most of QUEUE_WINDOWS) {
    const queue: readonly (LockShare & LeaseRef)[] = view.waiters(most).map(shareOf)
    const isQueued = queue.some(({ claimId }) => claimId === claim.claimId)
    const candidates = isQueued ? queue : [...queue, claim]
    const through = admitted(view.held(candidates), candidates, (each) => each)
    if (queue.length < most || isQueued || through.length < queue.length) {
      return { isAdmitted: through.some(({ claimId }) => claimId === claim.claimId), isQueued }
    }
  }
  return { isAdmitted: false, isQueued: false }
}

function ownLease(connection: SqliteConnection, view: LockView, claim: Claim, nowMs: number): Row | undefined {
  const { lockName, claimId, mode } = claim
  const [held] = view.held([claim])
  if (held?.mode !== mode) return undefined
  if (mode === 'exclusive') return view.holder?.claim_id === claimId ? view.holder : undefined
  return connection.get('lease', lockName, claimId, nowMs) as Row | undefined
}

function joinQueue(connection: SqliteConnection, view: LockView, claim: Claim, nowMs: number): number {
  const { lockName, claimId, holderId, mode, limit, permits, waitMs } = claim
  const kept = connection.get('keep_place', nowMs + waitMs, waitMs, lockName, claimId, nowMs) as Row | undefined
  if (kept !== undefined) return kept.place
  const terms = [mode, limit ?? null, permits, nowMs, nowMs + waitMs, waitMs] as const
  const joined = connection.get('insert_waiter', lockName, claimId, holderId, ...terms) as Row | undefined
  view.joined()
  return joined?.place ?? 0
}

function aheadOf(
  connection: SqliteConnection,
  view: LockView,
  lockName: string,
  place: number,
  nowMs: number,
): { ahead: number; firstGoneMs: number | null } {
  const { waiters, lastPlace, firstGoneMs } = view.front
  if (place > lastPlace) return { ahead: waiters, firstGoneMs }
  const row = connection.get('ahead_of', lockName, place, nowMs) as { ahead: number; first_gone_ms: number | null }
  return { ahead: row.ahead, firstGoneMs: row.first_gone_ms }
}

function nextToken(connection: SqliteConnection, nowMs: number): number {
  const next = () => (connection.get('next_token', nowMs) as { last_token: number } | undefined)?.last_token
  const token = next()
  if (token !== undefined) return token
  // The table was emptied. The clock in microseconds is above every token that was granted.
  connection.run('restore_counter')
  return next() as number
}
