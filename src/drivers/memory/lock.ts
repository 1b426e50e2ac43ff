import type { Claim, Grant } from '../../core/driver.ts'
import type { LockShare } from '../../core/lock-share.ts'

/** The leases and the queue of one name. What a method costs does not grow with the number of waiters. */
export class Lock {
  /** One exclusive lease, or any number of shared ones. */
  readonly leases = new Rows<StoredLease>()
  /** First come, first served. Those that have ended are removed when they are among the first. */
  readonly waiters = new Rows<StoredWaiter>()
  /** Of all leases together. */
  #permits = 0
  /** No lease ends before this. It spares most steps a look at all leases. */
  noneEndsBeforeMs = Number.POSITIVE_INFINITY

  get isEmpty(): boolean {
    return this.leases.first === undefined && this.waiters.first === undefined
  }

  /** All leases, as one. */
  get held(): readonly LockShare[] {
    const { first } = this.leases
    return first === undefined ? NONE : [{ mode: first.claim.mode, permits: this.#permits }]
  }

  /** The first waiter that has not ended. Those before it are removed. */
  nextWaiter(now: number): StoredWaiter | undefined {
    let waiter = this.waiters.first
    for (; waiter !== undefined && hasEnded(waiter, now); waiter = waiter.after) this.waiters.remove(waiter)
    return waiter
  }

  addLease(claim: Claim, grant: Grant): void {
    const { ttlMs, acquiredAtMs } = grant
    // All fields in one literal: copied from another object, a lease takes twice the memory.
    const lease = { claim, grant, ttlMs, expiresAtMs: acquiredAtMs + ttlMs, before: undefined, after: undefined }
    this.leases.add(lease)
    this.#permits += claim.permits
    this.setEnd(lease, lease.expiresAtMs)
  }

  removeLease(lease: StoredLease): void {
    this.leases.remove(lease)
    this.#permits -= lease.claim.permits
  }

  setEnd(lease: StoredLease, expiresAtMs: number): void {
    lease.expiresAtMs = expiresAtMs
    const isAlone = this.leases.first === this.leases.last
    this.noneEndsBeforeMs = isAlone ? expiresAtMs : Math.min(this.noneEndsBeforeMs, expiresAtMs)
  }

  removeEndedLeases(now: number): void {
    if (now < this.noneEndsBeforeMs) return
    this.noneEndsBeforeMs = Number.POSITIVE_INFINITY
    for (const lease of this.leases) {
      if (hasEnded(lease, now)) this.removeLease(lease)
      else this.setEnd(lease, lease.expiresAtMs)
    }
  }

  /** At most so many that have not ended. Those before them that have are removed. */
  firstWaiters(now: number, most: number): readonly StoredWaiter[] {
    if (this.waiters.first === undefined) return NONE
    const found: StoredWaiter[] = []
    for (const waiter of this.waiters) {
      if (hasEnded(waiter, now)) this.waiters.remove(waiter)
      else if (found.push(waiter) === most) break
    }
    return found
  }

  removeEndedWaiters(now: number): void {
    for (const waiter of this.waiters) if (hasEnded(waiter, now)) this.waiters.remove(waiter)
  }

  /** What was written while the clock was ahead ends as if written now: later than any client trusts it. */
  clockWentBack(now: number): void {
    for (const lease of this.leases) this.setEnd(lease, Math.min(lease.expiresAtMs, now + lease.ttlMs))
    for (const waiter of this.waiters) waiter.expiresAtMs = Math.min(waiter.expiresAtMs, now + waiter.waiterTtlMs)
  }
}

export interface StoredLease extends Row<StoredLease> {
  readonly grant: Grant
  /** The TTL of the grant or of the last renewal. */
  ttlMs: number
}

export interface StoredWaiter extends Row<StoredWaiter> {
  readonly waitingSinceMs: number
  /** How long its place is kept unless it asks again. */
  waiterTtlMs: number
}

export const hasEnded = ({ expiresAtMs }: StoredLease | StoredWaiter, now: number): boolean => expiresAtMs <= now

const NONE: readonly never[] = []

/** A member of `Rows`. The last two fields belong to the rows that it is in. */
interface Row<Self> {
  readonly claim: Claim
  expiresAtMs: number
  before: Self | undefined
  after: Self | undefined
}

/**
 * The leases or the waiters of one lock: by claim, and in the order in which they came. Adding, finding and removing
 * one takes the same time however many there are. A `Map` alone does not: it skips what was removed at its front.
 */
class Rows<Member extends Row<Member>> {
  first: Member | undefined
  last: Member | undefined
  /** Made for the second row. Most locks have one lease and no waiter, and a map is larger than everything else. */
  #byClaim: Map<string, Member> | undefined

  find(claimId: string): Member | undefined {
    if (this.#byClaim !== undefined) return this.#byClaim.get(claimId)
    return this.first?.claim.claimId === claimId ? this.first : undefined
  }

  add(row: Member): void {
    if (this.last === undefined) {
      this.first = row
    } else {
      this.#byClaim ??= new Map([[this.last.claim.claimId, this.last]])
      this.last.after = row
      row.before = this.last
    }
    this.last = row
    this.#byClaim?.set(row.claim.claimId, row)
  }

  /** Does nothing without a row. */
  remove(row: Member | undefined): void {
    if (row === undefined) return
    const { before, after } = row
    if (before === undefined) this.first = after
    else before.after = after
    if (after === undefined) this.last = before
    else after.before = before
    this.#byClaim?.delete(row.claim.claimId)
  }

  /** The row that is visited may be removed. */
  *[Symbol.iterator](): Generator<Member, void> {
    for (let row = this.first; row !== undefined; row = row.after) yield row
  }
}
