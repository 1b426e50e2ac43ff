import { checkInspectQuery } from '../../core/arguments.ts'
import type {
  AcquireAnswer,
  Claim,
  DriverListener,
  Grant,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  RateAnswer,
  RateRequest,
  RatesPage,
  RatesQuery,
  Refusal,
  RenewAnswer,
  Renewal,
} from '../../core/driver.ts'
import { InvalidArgumentError, StoreError } from '../../core/errors.ts'
import { fitsBeside } from '../../core/lock-share.ts'
import { redactedUrl } from '../../core/secrets.ts'
import { type Clock, systemClock } from '../../core/time/clock.ts'
import { admitted } from '../shared/admission.ts'
import { leftOver } from '../shared/groups.ts'
import { tokenAfter } from '../shared/tokens.ts'
import { decoded, refuseControlCharacters } from '../shared/url.ts'
import { hasEnded, Lock, type StoredLease, type StoredWaiter } from './lock.ts'
import { createRates } from './rates.ts'
import { createSweep, wallClockOf } from './time.ts'

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
  const startSweep = createSweep(clock, sweepRound)
  const nowMs = wallClockOf(clock)
  const rates = createRates(clock)
  const listeners = new Set<DriverListener>()
  /** One counter for all names, never below the clock in microseconds. So nothing is kept for an idle name. */
  let lastToken = 0

  /**
   * The name that became free last. It is deleted with the next one: to delete and add the same name again and again
   * allocates a lock and a new table of the map each time, a third of all that the driver allocates.
   */
  let lastFreed: string | undefined

  /** The names at the first page of a listing, for its other pages: sorting takes longer than all else. */
  let sorted: readonly string[] = []

  /** The time of the step that runs. All of a step happens at one time, so no lease expires in its middle. */
  let now = 0

  function step<Request, Answer>(run: (request: Request) => Answer): (request: Request) => Answer {
    return (request) => {
      readClock()
      return run(request)
    }
  }

  function readClock(): void {
    const before = now
    now = nowMs()
    if (now < before) for (const lock of locks.values()) lock.clockWentBack(now)
  }

  /** The lock without expired leases, or a new lock. */
  function lockNamed(lockName: string): Lock {
    const lock = locks.get(lockName) ?? new Lock()
    lock.removeEndedLeases(now)
    return lock
  }

  /** The waiters ahead of a claim, or `MAX_AHEAD` of them. A claim that is not in the queue is behind all waiters. */
  function waitersAhead(lock: Lock, { claimId }: Claim): readonly StoredWaiter[] {
    const first = lock.firstWaiters(now, MAX_AHEAD)
    if (first.length === 0) return first
    const place = first.findIndex((waiter) => waiter.claim.claimId === claimId)
    return place === -1 ? first : first.slice(0, place)
  }

  /** Whether a claim can be granted now. Behind `MAX_AHEAD` waiters it cannot: they come first. */
  function isAdmitted(lock: Lock, claim: Claim, ahead: readonly StoredWaiter[]): boolean {
    if (ahead.length === 0) return fitsBeside(claim, lock.held)
    const queue = [...ahead.map((waiter) => waiter.claim), claim]
    return ahead.length < MAX_AHEAD && admitted(lock.held, queue, (each) => each).length === queue.length
  }

  /** Deletes a name that has neither leases nor waiters, at the latest in the next sweep. */
  function keep(lockName: string, lock: Lock): void {
    if (lock.isEmpty) {
      if (lastFreed !== undefined && lastFreed !== lockName) locks.delete(lastFreed)
      lastFreed = lockName
    } else {
      if (lastFreed === lockName) lastFreed = undefined
      locks.set(lockName, lock)
      startSweep()
    }
  }

  /** Deletes leases and waiters that have ended on names that are not used again. */
  function* sweepRound(): Generator<undefined, boolean> {
    if (lastFreed !== undefined) locks.delete(lastFreed)
    lastFreed = undefined
    for (const lockName of locks.keys()) {
      readClock()
      const lock = lockNamed(lockName)
      lock.removeEndedWaiters(now)
      keep(lockName, lock)
      yield
    }
    return locks.size > 0
  }

  /**
   * Notifies the first waiter after a change. It is notified even if it must go on waiting: the holder, and so when to
   * ask again, may have changed. Its grant is the change that notifies the next one.
   */
  function changed(lockName: string, lock: Lock): void {
    const first = lock.nextWaiter(now)
    keep(lockName, lock)
    if (first === undefined) return
    for (const listener of [...listeners]) listener.wake({ claimId: first.claim.claimId })
  }

  function notifyLost({ claimId }: Claim, by: Claim): void {
    const cause = new StoreError(`it was force-released by ${by.holderId}`)
    for (const listener of [...listeners]) listener.lost(claimId, cause)
  }

  /** The lease ends `ttlMs` from now. */
  function extend(lock: Lock, lease: StoredLease, ttlMs: number): void {
    const isSooner = now + ttlMs < lease.expiresAtMs
    lease.ttlMs = ttlMs
    lock.setEnd(lease, now + ttlMs)
    if (isSooner) changed(lease.claim.lockName, lock)
  }

  function acquire(claim: Claim): AcquireAnswer {
    const { lockName, claimId, ttlMs } = claim
    const lock = lockNamed(lockName)

    const own = lock.leases.find(claimId)
    if (own !== undefined) {
      extend(lock, own, ttlMs)
      return { ...own.grant, ttlMs }
    }

    const { forceUpTo } = claim
    if (forceUpTo !== undefined) {
      // The last lease has the largest token.
      const newest = lock.leases.last
      if (newest !== undefined && newest.grant.fencingToken > forceUpTo) {
        return { granted: false, holder: recordOf(newest), answeredAtMs: now }
      }
      for (const lease of lock.leases) {
        lock.removeLease(lease)
        notifyLost(lease.claim, claim)
      }
    }
    const ahead = waitersAhead(lock, claim)
    return forceUpTo !== undefined || isAdmitted(lock, claim, ahead) ? grant(lock, claim) : refuse(lock, claim, ahead)
  }

  function grant(lock: Lock, claim: Claim): Grant {
    const { lockName, claimId, ttlMs } = claim
    lastToken = tokenAfter(lastToken, now * 1_000)
    const given: Grant = { granted: true, fencingToken: lastToken, ttlMs, acquiredAtMs: now }
    lock.waiters.remove(lock.waiters.find(claimId))
    lock.addLease(claim, given)
    changed(lockName, lock)
    return given
  }

  function refuse(lock: Lock, claim: Claim, ahead: readonly StoredWaiter[]): Refusal {
    const { lockName, claimId, waiterTtlMs } = claim
    const refusal = refusalOn(lock)
    const waiter = lock.waiters.find(claimId)
    if (waiterTtlMs === 0) {
      lock.waiters.remove(waiter)
      if (waiter !== undefined) changed(lockName, lock)
      return refusal
    }
    if (waiter !== undefined && !hasEnded(waiter, now)) {
      waiter.waiterTtlMs = waiterTtlMs
      waiter.expiresAtMs = now + waiterTtlMs
    } else {
      lock.waiters.remove(waiter)
      const expiresAtMs = now + waiterTtlMs
      lock.waiters.add({ claim, waitingSinceMs: now, waiterTtlMs, expiresAtMs, before: undefined, after: undefined })
      keep(lockName, lock)
    }
    // The first waiter waits for a lease to expire, the others for a waiter ahead of them, which may be dead, to end.
    const nextEndMs = ahead.length === 0 ? lock.noneEndsBeforeMs : Math.min(...ahead.map((each) => each.expiresAtMs))
    return { ...refusal, ahead: ahead.length, askAgainMs: nextEndMs - now }
  }

  function refusalOn({ leases: { first } }: Lock): Refusal {
    return { granted: false, ...(first && { holder: recordOf(first) }), answeredAtMs: now }
  }

  return {
    listeners,
    acquire: step(acquire),

    acquireGroup: step((claims: readonly Claim[]) => {
      const found = claims.map((claim) => {
        const lock = lockNamed(claim.lockName)
        const isHeld = lock.leases.find(claim.claimId) !== undefined
        return { lock, isHeld, isOpen: isHeld || isAdmitted(lock, claim, waitersAhead(lock, claim)) }
      })
      if (found.every(({ isOpen }) => isOpen)) return claims.map(acquire)
      return found.map(({ lock, isHeld, isOpen }, index) => {
        if (isHeld) return leftOver((claims[index] as Claim).lockName)
        return isOpen ? { granted: false, free: true, answeredAtMs: now } : refusalOn(lock)
      })
    }),

    renew: step(({ lockName, claimId, fencingToken, ttlMs }: Renewal) => {
      const lock = lockNamed(lockName)
      const lease = lock.leases.find(claimId)
      if (lease?.grant.fencingToken !== fencingToken) {
        changed(lockName, lock)
        return 'lost'
      }
      extend(lock, lease, ttlMs)
      return 'renewed'
    }),

    release: step(({ lockName, claimId, fencingToken }: LeaseRef) => {
      const lock = lockNamed(lockName)
      const lease = lock.leases.find(claimId)
      const isOurs = lease !== undefined && (fencingToken === undefined || lease.grant.fencingToken === fencingToken)
      if (isOurs) lock.removeLease(lease)
      lock.waiters.remove(lock.waiters.find(claimId))
      changed(lockName, lock)
      return isOurs
    }),

    consume: rates.consume,
    inspectRates: rates.inspect,

    inspect: step((query: InspectQuery) => {
      const { lockName, prefix, after, pageSize } = checkInspectQuery(query)
      if (lockName === undefined && (after === undefined || sorted.length === 0)) sorted = [...locks.keys()].sort()
      const asked = lockName === undefined ? sorted : [lockName]
      const names: string[] = []
      for (let at = after === undefined ? 0 : placeAfter(asked, after); names.length <= pageSize; at += 1) {
        const name = asked[at]
        if (name === undefined) break
        if (name.startsWith(prefix) && locks.get(name)?.isEmpty === false) names.push(name)
      }
      const page = names.slice(0, pageSize)
      const found = page.map(lockNamed)
      const next = names.length > pageSize ? page.at(-1) : undefined
      if (lockName === undefined && next === undefined) sorted = []
      const waiters = found.flatMap((lock) => [...lock.waiters].filter((waiter) => !hasEnded(waiter, now)))
      return {
        leases: found.flatMap((lock) => [...lock.leases].map(recordOf)),
        waiters: waiters.map(({ claim, waitingSinceMs }) => ({ ...claimPart(claim), waitingSinceMs })),
        ...(next !== undefined && { next }),
      }
    }),
  }
}

/** So many waiters are looked at to decide about a claim: the cost of a step does not grow with the queue. */
const MAX_AHEAD = 32

/** Where the names begin that are greater than `name`, by bisection. */
function placeAfter(sorted: readonly string[], name: string): number {
  let [low, high] = [0, sorted.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if ((sorted[middle] as string) > name) high = middle
    else low = middle + 1
  }
  return low
}

function claimPart({ lockName, claimId, holderId, mode, limit, permits }: Claim) {
  return { lockName, claimId, holderId, mode, ...(limit !== undefined && { limit }), permits }
}

function recordOf({ claim, grant, expiresAtMs }: StoredLease): LeaseRecord {
  const { metadata } = claim
  const { fencingToken, acquiredAtMs } = grant
  return { ...claimPart(claim), fencingToken, acquiredAtMs, expiresAtMs, ...(metadata && { metadata }) }
}

/** The store that `memory:` or `memory:<name>` names in this process. */
export function storeAt(url: string): MemoryStore {
  const name = memoryName(url)
  const store = named.get(name) ?? createMemoryStore()
  named.set(name, store)
  return store
}

const named = new Map<string, MemoryStore>()

/** The name in `memory:name`. Percent-encoding is undone once, as in every other URL. */
export function memoryName(url: string): string {
  refuseControlCharacters(url)
  const text = url.slice('memory:'.length)
  if (text.startsWith('//') || /[?#]/.test(text)) {
    throw new InvalidArgumentError('url', redactedUrl(url), 'memory: or memory:name, without // and parameters')
  }
  return decoded('url name', text)
}
