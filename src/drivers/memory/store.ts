import { checkInspectQuery } from '../../core/arguments.ts'
import type {
  AcquireAnswer,
  Claim,
  DriverListener,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  RateAnswer,
  RateRequest,
  RatesPage,
  RatesQuery,
  RenewAnswer,
  Renewal,
} from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { fitsBeside } from '../../core/lock-share.ts'
import { type Clock, systemClock } from '../../core/time/clock.ts'
import { admitted } from '../shared/admission.ts'
import { leftOver } from '../shared/groups.ts'
import { tokenAfter } from '../shared/tokens.ts'
import { createRates } from './rates.ts'

/** The leases, queues and rate limits of one process. Each method is one step of the store. */
export interface MemoryStore {
  acquire(claim: Claim): AcquireAnswer
  /** Claims of one group: all are granted, or none. */
  acquireGroup(claims: readonly Claim[]): (AcquireAnswer | Error)[]
  renew(renewal: Renewal): RenewAnswer
  release(lease: LeaseRef): boolean
  consume(requests: readonly RateRequest[]): RateAnswer[]
  inspectRates(query: RatesQuery): RatesPage
  inspect(query: InspectQuery): InspectPage
  readonly listeners: Set<DriverListener>
}

/**
 * Creates an empty store. Drivers on one store exclude each other.
 *
 * @param clock for tests. By default the clock of the system
 */
export function createMemoryStore(clock: Clock = systemClock): MemoryStore {
  const locks = new Map<string, Lock>()
  /** Where `forgetIdleLocks` continues. An iterator of a map also sees what is added or deleted meanwhile. */
  let idle = locks.entries()
  const rates = createRates(clock)
  const listeners = new Set<DriverListener>()
  /**
   * One counter for all names, strictly rising and never below the clock in microseconds. So nothing has to be kept for
   * an idle name.
   */
  let lastToken = 0

  /** The time of the step that runs. All of a step happens at one time, so no lease expires in its middle. */
  let now = 0

  function step<Request, Answer>(run: (request: Request) => Answer): (request: Request) => Answer {
    return (request) => {
      now = clock.now().wallMs
      return run(request)
    }
  }

  function nextToken(): number {
    lastToken = tokenAfter(lastToken, now * 1_000)
    return lastToken
  }

  const hasEnded = ({ expiresAtMs }: { readonly expiresAtMs: number }): boolean => expiresAtMs <= now

  /** The lock without expired leases and waiters, or an empty lock. */
  function lockNamed(lockName: string): Lock {
    return withoutEnded(locks.get(lockName) ?? { leases: [], waiters: [] })
  }

  function withoutEnded(lock: Lock): Lock {
    // What was written while the clock was ahead ends as if it had been written now, which is later than any client
    // trusts it.
    for (const lease of lock.leases) lease.expiresAtMs = Math.min(lease.expiresAtMs, now + lease.ttlMs)
    for (const waiter of lock.waiters) waiter.expiresAtMs = Math.min(waiter.expiresAtMs, now + waiter.waitMs)
    if (lock.leases.some(hasEnded)) lock.leases = lock.leases.filter((lease) => !hasEnded(lease))
    if (lock.waiters.some(hasEnded)) lock.waiters = lock.waiters.filter((waiter) => !hasEnded(waiter))
    return lock
  }

  /** Deletes a name that has neither leases nor waiters. */
  function keep(lockName: string, lock: Lock): void {
    if (lock.leases.length > 0 || lock.waiters.length > 0) locks.set(lockName, lock)
    else locks.delete(lockName)
  }

  /** Deletes names that expired and were never used again: each grant checks the next two of them, in turn. */
  function forgetIdleLocks(): void {
    for (let looked = 0; looked < 2; looked += 1) {
      const { value, done } = idle.next()
      if (done) {
        idle = locks.entries()
        return
      }
      keep(value[0], withoutEnded(value[1]))
    }
  }

  /** Notifies the waiters whose turn it is after a change. */
  function changed(lockName: string, lock: Lock): void {
    keep(lockName, lock)
    if (lock.waiters.length === 0) return
    // The first waiter is notified even if it must go on waiting: the holder, and so when to ask again, may have
    // changed.
    const [first] = lock.waiters
    for (const waiter of new Set([...admittedFrom(lock), ...(first ? [first] : [])])) {
      for (const listener of [...listeners]) listener.wake(lockName, waiter.claim.claimId)
    }
  }

  function notifyLost({ claimId }: Claim, thief: Claim): void {
    const cause = new StoreError(`it was stolen by ${thief.holderId}`)
    for (const listener of [...listeners]) listener.lost(claimId, cause)
  }

  /** Whether a claim that has no place in the queue could be granted now. */
  function isOpenTo(claim: Claim): boolean {
    const lock = lockNamed(claim.lockName)
    const last = { claim, waitingSinceMs: 0, waitMs: 0, expiresAtMs: 0 }
    return isAdmitted(last, lock.leases, [...lock.waiters, last])
  }

  function acquire(claim: Claim): AcquireAnswer {
    const { lockName, claimId, ttlMs, waitMs } = claim
    const lock = lockNamed(lockName)

    const own = lock.leases.find((lease) => lease.claim.claimId === claimId)
    if (own !== undefined) {
      const sooner = now + ttlMs < own.expiresAtMs
      own.ttlMs = ttlMs
      own.expiresAtMs = now + ttlMs
      if (sooner) changed(lockName, lock)
      return { granted: true, fencingToken: own.fencingToken, ttlMs, acquiredAtMs: own.acquiredAtMs }
    }

    const newer = lock.leases.find(({ fencingToken }) => fencingToken > (claim.stealUpTo ?? Number.POSITIVE_INFINITY))
    if (newer !== undefined) return { granted: false, holder: recordOf(newer), answeredAtMs: now }
    if (claim.steal === true) {
      const stolen = lock.leases
      lock.leases = []
      for (const { claim: ended } of stolen) notifyLost(ended, claim)
    }

    const waiting = lock.waiters.find((waiter) => waiter.claim.claimId === claimId)
    const waiter = waiting ?? { claim, waitingSinceMs: now, waitMs, expiresAtMs: now + waitMs }
    waiter.waitMs = waitMs
    waiter.expiresAtMs = now + waitMs
    const queue = waiting === undefined ? [...lock.waiters, waiter] : lock.waiters

    if (claim.steal === true || isAdmitted(waiter, lock.leases, queue)) {
      const lease = { claim, fencingToken: nextToken(), acquiredAtMs: now, ttlMs, expiresAtMs: now + ttlMs }
      forgetIdleLocks()
      lock.leases.push(lease)
      if (waiting !== undefined) lock.waiters = lock.waiters.filter((each) => each !== waiter)
      changed(lockName, lock)
      return { granted: true, fencingToken: lease.fencingToken, ttlMs, acquiredAtMs: now }
    }

    const [holder] = lock.leases
    const seen = holder && { holder: recordOf(holder) }
    if (waitMs > 0) lock.waiters = queue
    keep(lockName, lock)
    if (waitMs === 0) return { granted: false, ...seen, answeredAtMs: now }
    const ahead = queue.indexOf(waiter)
    // The first waiter waits for a lease to expire, the others for a waiter ahead of them, which may be dead, to end.
    const askAgainMs = firstEndMs(ahead === 0 ? lock.leases : queue.slice(0, ahead)) - now
    return { granted: false, ...seen, ahead, askAgainMs, answeredAtMs: now }
  }

  return {
    listeners,
    acquire: step(acquire),

    acquireGroup: step((claims: readonly Claim[]) => {
      const held = claims.map(({ lockName, claimId }) =>
        lockNamed(lockName).leases.some(({ claim }) => claim.claimId === claimId),
      )
      const open = claims.map((claim, index) => held[index] || isOpenTo(claim))
      if (!open.includes(false)) return claims.map(acquire)
      return claims.map(({ lockName }, index) => {
        if (held[index]) return leftOver(lockName)
        if (open[index]) return { granted: false, free: true, answeredAtMs: now }
        const [holder] = lockNamed(lockName).leases
        return { granted: false, ...(holder && { holder: recordOf(holder) }), answeredAtMs: now }
      })
    }),

    renew: step(({ lockName, claimId, fencingToken, ttlMs }: Renewal) => {
      const lock = lockNamed(lockName)
      const lease = lock.leases.find((each) => each.claim.claimId === claimId && each.fencingToken === fencingToken)
      if (lease === undefined) {
        changed(lockName, lock)
        return 'lost'
      }
      const sooner = now + ttlMs < lease.expiresAtMs
      lease.ttlMs = ttlMs
      lease.expiresAtMs = now + ttlMs
      if (sooner) changed(lockName, lock)
      return 'renewed'
    }),

    release: step(({ lockName, claimId, fencingToken }: LeaseRef) => {
      const lock = lockNamed(lockName)
      const lease = lock.leases.find(
        (each) => each.claim.claimId === claimId && (fencingToken === undefined || each.fencingToken === fencingToken),
      )
      lock.leases = lock.leases.filter((each) => each !== lease)
      lock.waiters = lock.waiters.filter((each) => each.claim.claimId !== claimId)
      changed(lockName, lock)
      return lease !== undefined
    }),

    consume: rates.consume,
    inspectRates: rates.inspect,

    inspect: step((query: InspectQuery) => {
      const { lockName, prefix, after, pageSize } = checkInspectQuery(query)
      const asked = lockName === undefined ? [...locks.keys()] : [lockName].filter((name) => locks.has(name))
      const names = asked.filter((name) => name.startsWith(prefix) && (after === undefined || name > after)).sort()
      const page = names.slice(0, pageSize)
      const found = page.map((name) => lockNamed(name))
      found.forEach((lock, index) => {
        keep(page[index] as string, lock)
      })
      const next = names.length > pageSize ? page.at(-1) : undefined
      return {
        leases: found.flatMap((lock) => lock.leases.map(recordOf)),
        waiters: found.flatMap((lock) =>
          lock.waiters.map(({ claim, waitingSinceMs }) => ({ ...claimPart(claim), waitingSinceMs })),
        ),
        ...(next !== undefined && { next }),
      }
    }),
  }
}

interface Lock {
  leases: StoredLease[]
  /** First come, first served. */
  waiters: StoredWaiter[]
}

interface StoredLease {
  readonly claim: Claim
  readonly fencingToken: number
  readonly acquiredAtMs: number
  /** The time to live of the grant or of the last renewal. */
  ttlMs: number
  expiresAtMs: number
}

interface StoredWaiter {
  readonly claim: Claim
  readonly waitingSinceMs: number
  /** How long its place is kept unless it asks again. */
  waitMs: number
  expiresAtMs: number
}

const firstEndMs = (rows: readonly { readonly expiresAtMs: number }[]): number =>
  rows.reduce((first, { expiresAtMs }) => Math.min(first, expiresAtMs), Number.POSITIVE_INFINITY)

/** The waiters that can be granted the lock now. */
function admittedFrom({ leases, waiters }: Lock): StoredWaiter[] {
  return admitted(
    leases.map((lease) => lease.claim),
    waiters,
    (waiter) => waiter.claim,
  )
}

function isAdmitted(waiter: StoredWaiter, leases: StoredLease[], waiters: StoredWaiter[]): boolean {
  // Most claims find a lock without leases and waiters.
  if (leases.length === 0 && waiters.length === 1) return fitsBeside(waiter.claim, [])
  return admittedFrom({ leases, waiters }).includes(waiter)
}

function claimPart({ lockName, claimId, holderId, mode, limit, permits }: Claim) {
  return { lockName, claimId, holderId, mode, ...(limit !== undefined && { limit }), permits }
}

function recordOf({ claim, fencingToken, acquiredAtMs, expiresAtMs }: StoredLease): LeaseRecord {
  const { metadata } = claim
  return { ...claimPart(claim), fencingToken, acquiredAtMs, expiresAtMs, ...(metadata && { metadata }) }
}
