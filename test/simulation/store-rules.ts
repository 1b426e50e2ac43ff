import type { AcquireAnswer, Claim, Grant, LeaseRef } from '../../src/core/driver.ts'
import type { VirtualClock } from '../../src/testing/virtual-clock.ts'
import { describe, type History } from './history.ts'
import type { DriverObserver } from './observe.ts'
import { excludes } from './plan.ts'

export interface StoreRules extends DriverObserver {
  /** Whether the store, by its own clock, has a lease for this claim. */
  has(lockName: string, claimId: string): boolean
  /** Since when the lock is free. Undefined while it is held. */
  freeSinceMs(lockName: string): number | undefined
  /** How long it may stay free while a claim waits. */
  longestIdleMs(lockName: string): number
  dataLost(): void
  /** The store's clock is about to be set. */
  stepping(): void
}

/**
 * What a store owes, judged by what it did: one exclusive lease at a time, rising tokens, the same lease for a repeated
 * claim, no revival of an ended lease, and first come, first served. At every grant, no other process still believes
 * that it holds the lock.
 */
export function storeRules(history: History, clock: VirtualClock): StoreRules {
  const { plan, time } = history
  const exclusive = excludes(plan)
  const stored = new Map<string, StoredLease>()
  const freeSince = new Map<string, number>()
  /** Locks whose last lease was shortened: waiters still expect the later end. */
  const shortened = new Set<string>()
  const lastTokens = new Map<string, number>()
  const queues = new Map<string, string[]>()

  const storeNowMs = (): number => clock.now().wallMs
  const queueOf = (lockName: string): string[] => {
    const queue = queues.get(lockName) ?? []
    queues.set(lockName, queue)
    return queue
  }
  const leave = (lockName: string, claimId: string): void => {
    const queue = queueOf(lockName)
    const place = queue.indexOf(claimId)
    if (place >= 0) queue.splice(place, 1)
  }

  const longestIdleMs = (lockName: string): number =>
    shortened.has(lockName) ? history.longestUnheardMs : history.longestIdleMs

  function leaseOn(lockName: string): StoredLease | undefined {
    const lease = stored.get(lockName)
    return lease !== undefined && lease.expiresAtMs > storeNowMs() ? lease : undefined
  }

  const ownLease = ({ lockName, claimId, fencingToken }: LeaseRef): StoredLease | undefined => {
    const lease = leaseOn(lockName)
    return lease?.claimId === claimId && (fencingToken ?? lease.fencingToken) === lease.fencingToken ? lease : undefined
  }

  function ended(lease: StoredLease, how: string): void {
    freeSince.set(lease.lockName, time.nowMs)
    const claim = history.claims.get(lease.claimId)
    // A stopped process cannot act on it. It is checked as soon as it runs again.
    if (!exclusive || claim?.lease === undefined || !claim.process.clock.running) return
    if (claim.lease.lease.held)
      history.violate('a lease is not held after the store has ended it', `${describe(claim)} ${how}`)
  }

  const mayHaveEnded = ({ mayEndAtMs }: StoredLease): boolean => time.nowMs >= mayEndAtMs

  function lasts(lease: StoredLease, ttlMs: number): void {
    const expiresAtMs = storeNowMs() + ttlMs
    if (expiresAtMs < lease.expiresAtMs) shortened.add(lease.lockName)
    lease.expiresAtMs = expiresAtMs
    const look = (): void => {
      if (stored.get(lease.lockName) !== lease || lease.expiresAtMs !== expiresAtMs) return
      const leftMs = expiresAtMs - storeNowMs()
      if (leftMs > 0) time.in(Math.max(leftMs, ROUNDING_MS), look)
      else ended(lease, 'ran out')
    }
    lease.mayEndAtMs = time.nowMs + ttlMs
    time.in(ttlMs, look)
  }

  function granted(claim: Claim, grant: Grant): void {
    const { lockName, claimId } = claim
    const current = leaseOn(lockName)
    if (current?.claimId === claimId && (!mayHaveEnded(current) || current.fencingToken === grant.fencingToken)) {
      if (current.fencingToken !== grant.fencingToken) {
        history.violate(
          'asking again gives the same lease',
          `${claimId} got ${grant.fencingToken} after ${current.fencingToken}`,
        )
      }
      lasts(current, grant.ttlMs)
      return
    }
    if (current !== undefined && !mayHaveEnded(current))
      history.violate('the store grants one lease at a time', `${claimId} beside ${current.claimId}`)
    const before = stored.get(lockName)
    if (before !== undefined && !freeSince.has(lockName)) {
      freeSince.set(lockName, current === undefined ? Math.min(before.mayEndAtMs, time.nowMs) : time.nowMs)
    }
    history.granted(claim, grant.fencingToken)
    const last = lastTokens.get(lockName) ?? 0
    if (grant.fencingToken <= last) {
      history.violate('tokens rise strictly', `${grant.fencingToken} after ${last} on "${lockName}"`)
    }
    lastTokens.set(lockName, grant.fencingToken)
    if (exclusive) nobodyElseHolds(claim)
    inOrder(claim)
    notTooLate(lockName)
    const lease = { lockName, claimId, fencingToken: grant.fencingToken, expiresAtMs: 0, mayEndAtMs: 0 }
    stored.set(lockName, lease)
    freeSince.delete(lockName)
    shortened.delete(lockName)
    lasts(lease, grant.ttlMs)
  }

  function nobodyElseHolds({ lockName, claimId }: Claim): void {
    for (const other of history.heldOn(lockName)) {
      if (other.claim.claimId === claimId || !other.claim.process.clock.running) continue
      if (other.lease.held)
        history.violate('mutual exclusion', `granted to ${claimId} while ${describe(other.claim)} is held`)
    }
  }

  function inOrder({ lockName, claimId }: Claim): void {
    const [first] = queueOf(lockName)
    if (plan.kind === 'calm' && first !== undefined && first !== claimId) {
      history.violate('first come, first served', `${claimId} was served before ${first}`)
    }
    leave(lockName, claimId)
  }

  /** A free lock must be granted soon after it became free, or soon after the claim came. */
  function notTooLate(lockName: string): void {
    const waitingSinceMs = Math.min(...history.waitingFor(lockName).values())
    if (waitingSinceMs === Number.POSITIVE_INFINITY) return
    const idleMs = time.nowMs - Math.max(waitingSinceMs, freeSince.get(lockName) ?? 0, history.quietFromMs)
    if (idleMs > longestIdleMs(lockName)) {
      history.violate('a free lock is granted to a waiter', `"${lockName}" stayed free for ${idleMs.toFixed(1)} ms`)
    }
  }

  return {
    clock,

    acquired(claim, answer: AcquireAnswer | Error) {
      if (answer instanceof Error) return
      const record = history.claims.get(claim.claimId)
      if (record !== undefined && (answer.granted || answer.ahead !== undefined)) record.keptMs = time.nowMs
      history.note(
        () => `store: acquire ${claim.claimId} → ${answer.granted ? answer.fencingToken : `no, ${answer.ahead} ahead`}`,
      )
      if (answer.granted) {
        granted(claim, answer)
        return
      }
      const own = ownLease(claim)
      if (own !== undefined && !mayHaveEnded(own)) {
        history.violate('asking again says "already yours"', `${claim.claimId} was refused its own lease`)
      }
      const queue = queueOf(claim.lockName)
      if (claim.waiterTtlMs > 0 && !queue.includes(claim.claimId)) queue.push(claim.claimId)
    },

    renewed({ lockName, claimId, fencingToken, ttlMs }, answer) {
      if (answer instanceof Error) return
      history.note(() => `store: renew ${claimId} for ${ttlMs} → ${answer}`)
      const own = ownLease({ lockName, claimId, fencingToken })
      if (answer === 'lost') {
        if (own !== undefined && !mayHaveEnded(own))
          history.violate('a renewal in time is granted', `${claimId} was called lost`)
      } else if (own === undefined) {
        history.violate('a lease that has ended is not renewed', claimId)
      } else lasts(own, ttlMs)
    },

    released({ lockName, claimId, fencingToken }, answer) {
      if (answer instanceof Error) return
      history.note(() => `store: release ${claimId} → ${answer}`)
      leave(lockName, claimId)
      const claim = history.claims.get(claimId)
      if (claim !== undefined) claim.releasedMs = time.nowMs
      const own = ownLease({ lockName, claimId, ...(fencingToken !== undefined && { fencingToken }) })
      if (answer !== (own !== undefined) && !(own !== undefined && mayHaveEnded(own))) {
        history.violate('a release touches its own lease only', `${claimId} was told ${answer}`)
      }
      if (own === undefined) return
      if (claim !== undefined) claim.endedByStore = true
      stored.delete(lockName)
      ended(own, 'was released')
      const track = claim?.lease
      if (claim?.over !== 'released' || track === undefined) return
      const heldMs = claim.process.clock.now().monotonicMs - track.earliestSent.monotonicMs
      if (heldMs < claim.job.minHoldMs - 1) {
        history.violate(
          'a lock is kept for minHoldSeconds',
          `${describe(claim)} was freed after ${heldMs.toFixed(1)} ms`,
        )
      }
    },

    has: (lockName, claimId) => leaseOn(lockName)?.claimId === claimId,
    freeSinceMs: (lockName) => (leaseOn(lockName) === undefined ? (freeSince.get(lockName) ?? 0) : undefined),
    longestIdleMs,
    stepping() {
      for (const lease of stored.values()) if (lease.expiresAtMs <= storeNowMs()) lease.mayEndAtMs = 0
    },
    dataLost() {
      for (const { lockName } of stored.values()) freeSince.set(lockName, time.nowMs)
      stored.clear()
      queues.clear()
    },
  }
}

interface StoredLease {
  readonly lockName: string
  readonly claimId: string
  readonly fencingToken: number
  expiresAtMs: number
  /** When its TTL has passed since it was last written. If the store's clock was set back, it may last longer. */
  mayEndAtMs: number
}

/** The wall clock is a large number, so adding a fraction of a millisecond is not exact. */
const ROUNDING_MS = 0.001
