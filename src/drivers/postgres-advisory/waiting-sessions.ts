import type { Claim, LeaseRef } from '../../core/driver.ts'
import { settlesWithin } from '../../core/time/abort.ts'
import { systemClock, type Timer } from '../../core/time/clock.ts'
import type { LockRequest, SessionLease } from './held-locks.ts'
import type { Session } from './session.ts'

export interface WaitingSessionsParts {
  open(): Promise<Session>
  /** Removes a session from the server's queue. */
  cancel(session: Session): Promise<void>
  /** The maximum number of sessions that wait, or hold what they waited for. */
  readonly maxSessions: number
  /** `keptMs`: how long the lease is kept if its claim does not ask for it. */
  granted(claim: Claim, lease: SessionLease, keptMs: number): void
}

/**
 * The connections that wait in the server's own queue. Each waits for one lock, on behalf of the one claim of this
 * process that is next for it, and then keeps the lock that it was granted.
 */
export class WaitingSessions {
  readonly #parts: WaitingSessionsParts
  /** By claim id. */
  readonly #waiters = new Map<string, Waiter>()
  #idle: Session[] = []
  #closed = false

  constructor(parts: WaitingSessionsParts) {
    this.#parts = parts
  }

  get sessions(): Session[] {
    return [...this.#waiters.values()].flatMap(({ session }) => session ?? [])
  }

  /** The lease that a claim was granted while it waited. */
  leaseOf({ claimId }: LeaseRef): SessionLease | undefined {
    const { session } = this.#waiters.get(claimId) ?? {}
    return session?.lost === undefined ? session?.leases.get(claimId) : undefined
  }

  /** Such a lock is seldom free. So a claim that may wait goes straight to the queue, which may grant it at once. */
  hasWaitedFor({ key }: LockRequest): boolean {
    return this.#idle.some(({ waitedFor, lost }) => waitedFor === key && lost === undefined)
  }

  /** Queues a claim, or keeps it queued for `waiterTtlMs` more. False: no connection is left to wait with. */
  start(claim: Claim, request: LockRequest): boolean {
    const before = this.#waiters.get(claim.claimId)
    if (before !== undefined) {
      this.#keep(before)
      return true
    }
    if (this.#waiters.size >= this.#parts.maxSessions || this.#closed) return false
    const waiter: Waiter = { claim, over: false, granted: false, endsAtMs: 0 }
    this.#waiters.set(claim.claimId, waiter)
    this.#keep(waiter)
    waiter.sent = new Promise((onSent) => {
      waiter.done = this.#wait(waiter, request, onSent)
    })
    return true
  }

  /** Resolves when the requests of all these claims were sent, after at most `maxMs`. Some connections open first. */
  async sent(claims: readonly LeaseRef[], maxMs: number): Promise<void> {
    const opening = this.#waitersOf(claims).filter(({ session }) => session === undefined)
    await this.#within(maxMs, ...opening.map(({ sent }) => sent))
  }

  /** Resolves when none of these claims waits any more, granted or not, after at most `maxMs`. */
  async served(claims: readonly LeaseRef[], maxMs: number): Promise<void> {
    await this.#within(maxMs, ...this.#waitersOf(claims).map(({ done }) => done))
  }

  /** The process ids of the connections that wait for these claims. */
  pidsOf(claims: readonly LeaseRef[]): readonly string[] {
    return this.#waitersOf(claims).flatMap(({ session, over, granted }) =>
      session === undefined || over || granted ? [] : session.pid,
    )
  }

  /** A connection that was opened in advance, so that the first waiter does not have to wait for that. */
  keep(session: Session): void {
    if (this.isEmpty) this.#keepIdle(session)
    else void endQuietly(session)
  }

  /** It may have connections, and has none. */
  get isEmpty(): boolean {
    return this.#parts.maxSessions > 0 && this.#idle.length === 0 && this.#waiters.size === 0
  }

  /** The claim knows of its lease. So it does not have to ask again to keep it. */
  settled({ claimId }: LeaseRef): void {
    this.#waiters.get(claimId)?.timer?.cancel()
  }

  /** Removes the claim from the server's queue. A lease that it already has stays. */
  async stop({ claimId }: LeaseRef): Promise<void> {
    const waiter = this.#waiters.get(claimId)
    if (waiter === undefined || waiter.session?.leases.has(claimId)) return
    await this.#leave(waiter)
  }

  /**
   * For a claim that was granted its lease on another session: removes it from the queue, and releases the lease that
   * it was granted there. Readers do not exclude each other, so both can be granted at the same moment, and the second
   * lease would never be released.
   */
  async drop(ref: LeaseRef): Promise<void> {
    const waiter = this.#waiters.get(ref.claimId)
    if (waiter === undefined) return
    const { session, granted } = waiter
    const lease = this.leaseOf(ref)
    if (!granted || session === undefined || lease === undefined) return this.#leave(waiter)
    this.#forget(waiter)
    await session.unlock([lease])
    this.#keepIdle(session)
  }

  /** Keeps the connections whose lock was released, for the next waiter. */
  reuseReleased(): void {
    for (const waiter of this.#waiters.values()) {
      const { session, claim } = waiter
      if (!waiter.granted || session === undefined || session.leases.has(claim.claimId)) continue
      this.#forget(waiter)
      this.#keepIdle(session)
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    const sessions = this.sessions
    const waiters = [...this.#waiters.values()]
    await Promise.all(waiters.filter(({ granted }) => !granted).map((waiter) => this.#leave(waiter)))
    for (const waiter of waiters) this.#forget(waiter)
    // They are not used any more, even if closing fails.
    await Promise.allSettled([...sessions, ...this.#idle].map((each) => each.end()))
    this.#idle = []
  }

  async #wait(waiter: Waiter, request: LockRequest, onSent: () => void): Promise<void> {
    let session: Session | undefined
    try {
      session = this.#takeIdle(request) ?? (await this.#parts.open())
      if (waiter.over) return
      waiter.session = session
      const turn = session.wait(request)
      onSent()
      const lease = await turn
      waiter.granted = true
      if (waiter.over) await session.unlock([lease])
      else this.#parts.granted(waiter.claim, lease, Math.max(0, waiter.endsAtMs - systemClock.now().monotonicMs))
    } catch {
      // The wait was canceled, or the store is down. The claim asks again, gets the error then, and is queued again.
    } finally {
      onSent()
      if (waiter.over || !waiter.granted) {
        this.#forget(waiter)
        // While it is being removed from the queue, another cancel may come. It must not hit the wait of another claim.
        if (session !== undefined && !(waiter.over && waiter.session === session)) this.#keepIdle(session)
      }
    }
  }

  async #leave(waiter: Waiter): Promise<void> {
    waiter.over = true
    this.#forget(waiter)
    const { session } = waiter
    if (session !== undefined) {
      // Repeated, because a cancel that comes before the server has begun to wait has no effect. If the server does not
      // answer, ending the connection has to do.
      do await this.#parts.cancel(session).catch(() => endQuietly(session))
      while (!(await this.#within(CANCEL_AGAIN_MS, waiter.done)))
      this.#keepIdle(session)
    }
    await waiter.done
  }

  #forget(waiter: Waiter): void {
    waiter.timer?.cancel()
    if (this.#waiters.get(waiter.claim.claimId) === waiter) this.#waiters.delete(waiter.claim.claimId)
  }

  #takeIdle({ key }: LockRequest): Session | undefined {
    this.#idle = this.#idle.filter(({ lost }) => lost === undefined)
    const known = this.#idle.findIndex(({ waitedFor }) => waitedFor === key)
    return this.#idle.splice(known, 1)[0]
  }

  #keepIdle(session: Session): void {
    if (session.lost === undefined && this.#idle.length < MAX_IDLE && !this.#closed) this.#idle.push(session)
    else void endQuietly(session)
  }

  /** A claim that does not ask again within its `waiterTtlMs` is dead. Then its place or its lease is given up. */
  #keep(waiter: Waiter): void {
    waiter.timer?.cancel()
    waiter.endsAtMs = systemClock.now().monotonicMs + waiter.claim.waiterTtlMs
    waiter.timer = systemClock.setTimer(() => {
      if (!waiter.session?.leases.has(waiter.claim.claimId)) return void this.#leave(waiter)
      this.#forget(waiter)
      void endQuietly(waiter.session)
    }, waiter.claim.waiterTtlMs)
  }

  #waitersOf(claims: readonly LeaseRef[]): Waiter[] {
    return claims.flatMap(({ claimId }) => this.#waiters.get(claimId) ?? [])
  }

  async #within(maxMs: number, ...work: readonly (Promise<void> | undefined)[]): Promise<boolean> {
    return work.length === 0 || settlesWithin(systemClock, maxMs, Promise.all(work))
  }
}

/** The session is not used any more, even if closing fails. */
async function endQuietly(session: Session): Promise<void> {
  await session.end().catch(() => {})
}

interface Waiter {
  readonly claim: Claim
  session?: Session
  /** The claim has been given up. */
  over: boolean
  granted: boolean
  timer?: Timer
  endsAtMs: number
  /** Resolves when its request was sent, or has failed. */
  sent?: Promise<void>
  /** Settles when it does not wait any more, granted or not. */
  done?: Promise<void>
}

const MAX_IDLE = 2
const CANCEL_AGAIN_MS = 20
