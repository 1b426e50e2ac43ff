import type { AcquireAnswer, Claim, LeaseRef } from '../../core/driver.ts'
import type { LockShare } from '../../core/lock-share.ts'
import { admitted } from '../shared/admission.ts'
import { leftOver } from '../shared/groups.ts'
import type { SqliteConnection } from './connection.ts'
import {
  heldBeside,
  largestLimit,
  MAX_AHEAD,
  nextEndOf,
  QUEUE_WINDOWS,
  type Row,
  recordOf,
  shareOf,
  waitersOf,
} from './rows.ts'

/** The views of one transaction, by lock name. */
export type ViewOf = (lockName: string) => LockView

export function lockViews(connection: SqliteConnection, nowMs: number): ViewOf {
  const views = new Map<string, LockView>()
  return (lockName) => {
    const view = views.get(lockName) ?? new LockView(connection, lockName, nowMs)
    views.set(lockName, view)
    return view
  }
}

/** Decides one claim. Call it within a transaction. */
export function acquireOne(view: LockView, claim: Claim): AcquireAnswer {
  const { connection, nowMs } = view
  const own = ownLease(view, claim)
  if (own !== undefined) {
    const { lockName, claimId, ttlMs } = claim
    connection.run('set_end', nowMs + ttlMs, ttlMs, lockName, claimId, nowMs)
    return { granted: true, fencingToken: own.fencing_token, ttlMs, acquiredAtMs: own.acquired_at_ms }
  }
  if (claim.forceUpTo !== undefined) {
    view.clamp()
    const newer = connection.get('newer_lease', claim.lockName, claim.forceUpTo, nowMs) as Row | undefined
    if (newer !== undefined) return { granted: false, holder: recordOf(newer, nowMs) }
    if (connection.run('note_forced_releases', claim.holderId, nowMs, claim.lockName, nowMs) > 0)
      connection.run('trim_forced_releases')
    connection.run('end_leases', claim.lockName)
    return grant(view, claim)
  }
  return isAdmitted(view, claim) ? grant(view, claim) : refuse(view, claim)
}

/** Decides a group, within a transaction. All are checked before any is written: a refused group writes nothing. */
export function acquireGroup(viewOf: ViewOf, claims: readonly Claim[]): (AcquireAnswer | Error)[] {
  const looks = claims.map((claim) => {
    const view = viewOf(claim.lockName)
    const own = ownLease(view, claim)
    return { claim, view, own, isOpen: own !== undefined || isAdmitted(view, claim) }
  })
  if (looks.every(({ isOpen }) => isOpen)) return looks.map(({ claim, view }) => acquireOne(view, claim))
  return looks.map(({ claim, view, own, isOpen }) => {
    if (own !== undefined) return leftOver(claim.lockName)
    return isOpen ? { granted: false, free: true } : refuse(view, claim)
  })
}

function grant(view: LockView, claim: Claim): AcquireAnswer {
  const { connection, nowMs } = view
  const { lockName, claimId, holderId, mode, limit, permits, ttlMs, metadata } = claim
  if (view.waiters(1).length > 0) connection.run('delete_waiter', lockName, claimId)
  view.changed()
  const fencingToken = nextToken(connection, nowMs)
  const json = metadata === undefined ? null : JSON.stringify(metadata)
  const share = [mode, limit ?? null, permits] as const
  const terms = [fencingToken, nowMs, nowMs + ttlMs, ttlMs, json] as const
  connection.run('insert_lease', lockName, claimId, holderId, ...share, ...terms)
  return { granted: true, fencingToken, ttlMs, acquiredAtMs: nowMs }
}

function refuse(view: LockView, claim: Claim): AcquireAnswer {
  const { nowMs } = view
  const seen = view.holder && { holder: recordOf(view.holder, nowMs) }
  if (claim.waiterTtlMs === 0) return { granted: false, ...seen }
  const { ahead, first_gone_ms: firstGoneMs } = aheadOf(view, joinQueue(view, claim))
  // The first waiter waits for a lease to expire, the others for a waiter ahead of them, which may be dead.
  const nextMs = ahead === 0 ? nextEndOf(view.connection, claim.lockName, nowMs) : firstGoneMs
  return { granted: false, ...seen, ahead, askAgainMs: (nextMs ?? nowMs) - nowMs }
}

/** Reads only as much of the queue as it needs. A claim behind that part waits for those ahead of it. */
function isAdmitted(view: LockView, claim: Claim): boolean {
  for (const most of QUEUE_WINDOWS) {
    const queue: readonly (LockShare & LeaseRef)[] = view.waiters(most).map(shareOf)
    const isQueued = queue.some(({ claimId }) => claimId === claim.claimId)
    const candidates = isQueued ? queue : [...queue, claim]
    const through = admitted(view.held(candidates), candidates, (each) => each)
    if (queue.length < most || isQueued || through.length < queue.length) {
      return through.some(({ claimId }) => claimId === claim.claimId)
    }
  }
  return false
}

function ownLease(view: LockView, claim: Claim): Row | undefined {
  const { lockName, claimId, mode } = claim
  const [held] = view.held([claim])
  if (held?.mode !== mode) return undefined
  if (mode === 'exclusive') return view.holder?.claim_id === claimId ? view.holder : undefined
  return view.connection.get('lease', lockName, claimId, view.nowMs) as Row | undefined
}

/** Returns its place in the queue. */
function joinQueue(view: LockView, claim: Claim): number {
  const { connection, nowMs } = view
  const { lockName, claimId, holderId, mode, limit, permits, waiterTtlMs } = claim
  const kept = connection.get('keep_place', nowMs + waiterTtlMs, waiterTtlMs, lockName, claimId, nowMs)
  if (kept !== undefined) return (kept as Row).place
  const terms = [mode, limit ?? null, permits, nowMs, nowMs + waiterTtlMs, waiterTtlMs] as const
  const joined = connection.get('insert_waiter', lockName, claimId, holderId, ...terms) as Row | undefined
  view.joined()
  return joined?.place ?? 0
}

/** How many waiters are ahead of a place, and when the first of them ends unless it asks again. */
function aheadOf(view: LockView, place: number): Ahead {
  const { connection, lockName, nowMs, front } = view
  if (place > (front.last_place ?? 0)) return { ahead: front.waiters, first_gone_ms: front.first_gone_ms }
  return connection.get('ahead_of', lockName, place, nowMs) as Ahead
}

interface Ahead {
  readonly ahead: number
  readonly first_gone_ms: number | null
}

function nextToken(connection: SqliteConnection, nowMs: number): number {
  const next = () => (connection.get('next_token', nowMs) as { last_token: number } | undefined)?.last_token
  const token = next()
  if (token !== undefined) return token
  // The table was emptied. The clock in microseconds is above every token that was granted.
  connection.run('restore_counter')
  return next() as number
}

/**
 * What one transaction has read about a lock. All claims of a list on one name, such as those of many waiters that
 * renew their places, share one read. The cost of a read does not grow with the number of leases or waiters.
 */
class LockView {
  readonly connection: SqliteConnection
  readonly lockName: string
  readonly nowMs: number
  #rows: readonly Row[] | undefined
  #most = 0
  #held: readonly LockShare[] | undefined
  #largest = 0
  #holder: Row | undefined
  #front: Front | undefined

  constructor(connection: SqliteConnection, lockName: string, nowMs: number) {
    this.connection = connection
    this.lockName = lockName
    this.nowMs = nowMs
  }

  /** The leases have changed. */
  changed(): void {
    this.#rows = undefined
    this.#held = undefined
    this.#holder = undefined
    this.#front = undefined
  }

  /** A claim was added to the end of the queue. */
  joined(): void {
    if (this.#rows !== undefined && this.#rows.length < this.#most) this.#rows = undefined
    if (this.#front !== undefined && this.#front.waiters < MAX_AHEAD) this.#front = undefined
  }

  /** The first waiters of the queue, at most `most` of them. */
  waiters(most: number): readonly Row[] {
    if (this.#rows !== undefined && (most <= this.#most || this.#rows.length < this.#most))
      return this.#rows.slice(0, most)
    const rows = waitersOf(this.connection, this.lockName, this.nowMs, most)
    if (rows.some((row) => row.expires_at_ms > this.nowMs + row.wait_ms)) this.#clampWaiters()
    this.#rows = rows
    this.#most = most
    return rows
  }

  /** The leases that are held, combined into one, as far as they matter to these claims. */
  held(candidates: readonly LockShare[]): readonly LockShare[] {
    const largest = largestLimit(candidates)
    if (this.#held !== undefined && largest <= this.#largest) return this.#held
    const read = () => heldBeside(this.connection, this.lockName, this.nowMs, largest)
    const { held, isAhead } = read()
    this.#held = isAhead && this.#endLeasesAhead() ? read().held : held
    this.#largest = largest
    return held
  }

  /** One of the leases. */
  get holder(): Row | undefined {
    this.#holder ??= this.connection.get('holder', this.lockName, this.nowMs) as Row | undefined
    return this.#holder
  }

  get front(): Front {
    this.#front ??= this.connection.get('front_of', this.lockName, this.nowMs, MAX_AHEAD) as Front
    return this.#front
  }

  /** Ends what the clock would keep for as long as it was set back. A claim with force does it in any case. */
  clamp(): void {
    this.#clampWaiters()
    this.#endLeasesAhead()
  }

  /** A place ends as if it had been written now. A waiter that lives asks again long before. */
  #clampWaiters(): void {
    this.connection.run('clamp_waiters', this.nowMs, this.lockName, this.nowMs)
  }

  /**
   * A lease that ends too late by SQLite's clock may be one of a clock that was ahead, or this clock may be wrong and
   * set right again. So it keeps its end, and is deleted when its own length has passed. Returns whether one was.
   */
  #endLeasesAhead(): boolean {
    const { connection, lockName, nowMs } = this
    const monotonicMs = connection.monotonicMs()
    connection.run('note_ahead', nowMs, monotonicMs, lockName, nowMs)
    if (connection.run('end_ahead', lockName, nowMs, nowMs, monotonicMs) === 0) return false
    this.changed()
    return true
  }
}

/** What the waiters behind the front of a queue need to know about it. */
interface Front {
  readonly waiters: number
  readonly last_place: number | null
  /** When the first of them ends unless it asks again. */
  readonly first_gone_ms: number | null
}
