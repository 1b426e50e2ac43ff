import type { Claim, LeaseRef } from '../../core/driver.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import { settlesWithin } from '../../core/time/timeout.ts'
import type { SessionLease } from './held-locks.ts'
import type { Session } from './session.ts'
import type { LockRequest } from './statements.ts'

export interface WaitingSessionsParts {
  readonly clock: Clock
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
  #idle: IdleSession[] = []
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

  /**
   * Whether an idle connection has waited for this lock before. Then a claim that may wait goes straight to the queue:
   * such a lock is seldom free, and if it is, the queue grants it at once.
   */
  hasWaitedFor({ key }: LockRequest): boolean {
    return this.#idle.some((idle) => idle.key === key && idle.session.lost === undefined)
  }

  /** Queues a claim, or keeps it queued for `waitMs` more. False: no connection is left to wait with. */
  start(claim: Claim, request: LockRequest): boolean {
    const before = this.#waiters.get(claim.claimId)
    if (before !== undefined) {
      this.#keep(before)
      return true
    }
    if (this.#waiters.size >= this.#parts.maxSessions || this.#closed) return false
    let onSent = (): void => {}
    const sent = new Promise<void>((resolve) => {
      onSent = resolve
    })
    const done = Promise.resolve()
    const waiter: Waiter = { claim, session: undefined, over: false, timer: undefined, endsAtMs: 0, sent, onSent, done }
    this.#waiters.set(claim.claimId, waiter)
    this.#keep(waiter)
    waiter.done = this.#wait(waiter, request)
    return true
  }

  /** Resolves when the requests of all these claims were sent, after at most `maxMs`. Some connections open first. */
  async sent(claims: readonly LeaseRef[], maxMs: number): Promise<void> {
    const opening = this.#waitersOf(claims).filter(({ session }) => session === undefined)
    await this.#all(
      opening.map(({ sent }) => sent),
      maxMs,
    )
  }

  /** Resolves when none of these claims waits any more, granted or not, after at most `maxMs`. */
  async served(claims: readonly LeaseRef[], maxMs: number): Promise<void> {
    await this.#all(
      this.#waitersOf(claims).map(({ done }) => done),
      maxMs,
    )
  }

  /** The process ids of the connections that wait for these claims. */
  pidsOf(claims: readonly LeaseRef[]): readonly string[] {
    return this.#waitersOf(claims).flatMap(({ session, over, granted }) =>
      session === undefined || over || granted ? [] : session.pid,
    )
  }

  /** Opens a connection in advance, so that the first waiter does not have to wait for that. */
  async prepare(): Promise<void> {
    if (this.#parts.maxSessions === 0 || this.#idle.length > 0 || this.#waiters.size > 0) return
    this.#keepIdle(await this.#parts.open())
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
    const lease = this.leaseOf(ref)
    if (waiter?.granted !== true || waiter.session === undefined || lease === undefined) {
      if (waiter !== undefined) await this.#leave(waiter)
      return
    }
    this.#forget(waiter)
    await waiter.session.unlock([lease])
    this.#keepIdle(waiter.session, waiter.requestedKey)
  }

  /** Keeps the connections whose lock was released, for the next waiter. */
  reuseReleased(): void {
    for (const waiter of this.#waiters.values()) {
      const { session, claim, requestedKey } = waiter
      if (waiter.granted !== true || session === undefined || session.leases.has(claim.claimId)) continue
      this.#forget(waiter)
      this.#keepIdle(session, requestedKey)
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    const sessions = this.sessions
    const waiters = [...this.#waiters.values()]
    await Promise.all(waiters.filter(({ granted }) => granted !== true).map((waiter) => this.#leave(waiter)))
    for (const waiter of waiters) this.#forget(waiter)
    // They are not used any more, even if closing fails.
    await Promise.allSettled([...sessions, ...this.#idle.map(({ session }) => session)].map((each) => each.end()))
    this.#idle = []
  }

  async #wait(waiter: Waiter, request: LockRequest): Promise<void> {
    let session: Session | undefined
    try {
      session = this.#takeIdle(request) ?? (await this.#parts.open())
      if (waiter.over) return
      waiter.session = session
      waiter.requestedKey = request.key
      const turn = session.wait(request)
      waiter.onSent()
      const lease = await turn
      waiter.granted = true
      if (waiter.over) await session.unlock([lease])
      else this.#parts.granted(waiter.claim, lease, Math.max(0, waiter.endsAtMs - this.#nowMs))
    } catch {
      // The wait was canceled, or the store is down. The claim asks again, gets the error then, and is queued again.
    } finally {
      waiter.onSent()
      if (waiter.over || waiter.granted !== true) {
        this.#forget(waiter)
        // While it is being removed from the queue, another cancel may come. It must not hit the wait of another claim.
        if (session !== undefined && !(waiter.over && waiter.session === session)) this.#keepIdle(session)
      }
    }
  }

  async #leave(waiter: Waiter): Promise<void> {
    waiter.over = true
    this.#forget(waiter)
    if (waiter.session !== undefined) {
      const { session } = waiter
      let out = false
      const done = waiter.done.then(() => {
        out = true
      })
      // Repeated, because a cancel that comes before the server has begun to wait has no effect. If the server does not
      // answer, ending the connection has to do.
      while (!out) {
        await this.#parts.cancel(session).catch(() => endQuietly(session))
        await this.#all([done], CANCEL_AGAIN_MS)
      }
      this.#keepIdle(session)
    }
    await waiter.done
  }

  #forget(waiter: Waiter): void {
    waiter.timer?.cancel()
    if (this.#waiters.get(waiter.claim.claimId) === waiter) this.#waiters.delete(waiter.claim.claimId)
  }

  #takeIdle({ key }: LockRequest): Session | undefined {
    this.#idle = this.#idle.filter(({ session }) => session.lost === undefined)
    const known = this.#idle.findIndex((idle) => idle.key === key)
    return this.#idle.splice(known, 1)[0]?.session
  }

  #keepIdle(session: Session, key?: string): void {
    if (session.lost === undefined && this.#idle.length < MAX_IDLE && !this.#closed) this.#idle.push({ session, key })
    else void endQuietly(session)
  }

  /** A claim that does not ask again within its `waitMs` is dead. Then its place or its lease is given up. */
  #keep(waiter: Waiter): void {
    const { clock } = this.#parts
    waiter.timer?.cancel()
    waiter.endsAtMs = this.#nowMs + waiter.claim.waitMs
    waiter.timer = clock.setTimer(() => {
      const lease = waiter.session?.leases.get(waiter.claim.claimId)
      if (lease === undefined) void this.#leave(waiter)
      else {
        this.#forget(waiter)
        if (waiter.session !== undefined) void endQuietly(waiter.session)
      }
    }, waiter.claim.waitMs)
  }

  #waitersOf(claims: readonly LeaseRef[]): Waiter[] {
    return claims.flatMap(({ claimId }) => this.#waiters.get(claimId) ?? [])
  }

  get #nowMs(): number {
    return this.#parts.clock.now().monotonicMs
  }

  async #all(work: readonly Promise<void>[], maxMs: number): Promise<void> {
    if (work.length > 0) await settlesWithin(this.#parts.clock, maxMs, Promise.all(work))
  }
}

/** The session is not used any more, even if closing fails. */
async function endQuietly(session: Session): Promise<void> {
  await session.end().catch(() => {})
}

interface Waiter {
  readonly claim: Claim
  session: Session | undefined
  /** The key that the session waits for. */
  requestedKey?: string
  /** The claim has been given up. */
  over: boolean
  granted?: boolean
  timer: Timer | undefined
  endsAtMs: number
  /** Resolves when its request was sent, or has failed. */
  readonly sent: Promise<void>
  readonly onSent: () => void
  /** Settles when it does not wait any more, granted or not. */
  done: Promise<void>
}

interface IdleSession {
  readonly session: Session
  /** The key that it has waited for before. */
  readonly key: string | undefined
}

const MAX_IDLE = 2
const CANCEL_AGAIN_MS = 20
