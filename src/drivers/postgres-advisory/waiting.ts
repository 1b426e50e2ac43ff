import type { Claim, LeaseRef } from '../../core/driver.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { Asking, Session, SessionLease } from './session.ts'

export interface WaitingParts {
  readonly clock: Clock
  open(): Promise<Session>
  /** Takes a session out of the server's queue. */
  cancel(session: Session): Promise<void>
  /** How many connections there may be, waiting or carrying what they waited for. */
  readonly most: number
  /** `keptMs`: how long the lease is kept if nobody is heard of. */
  granted(claim: Claim, lease: SessionLease, keptMs: number): void
}

/**
 * Waiting in the server's own queue: a connection stands there for one lock name, on behalf of the one claim of this
 * process that is first in line for it, and then carries the lock that it got.
 */
export class AdvisoryWaiting {
  readonly #parts: WaitingParts
  readonly #places = new Map<string, Place>()
  #idle: Idle[] = []
  #closed = false

  constructor(parts: WaitingParts) {
    this.#parts = parts
  }

  get sessions(): Session[] {
    return [...this.#places.values()].flatMap(({ session }) => session ?? [])
  }

  /** What a claim was granted while it waited. */
  leaseOf({ claimId }: LeaseRef): SessionLease | undefined {
    const { session } = this.#places.get(claimId) ?? {}
    return session?.lost === undefined ? session?.leases.get(claimId) : undefined
  }

  /**
   * Whether a connection is at hand that has stood in line for this lock before. Then a claim that may wait goes there
   * at once: such a name is seldom found free, and if it is, its queue grants it at once.
   */
  knows({ key }: Asking): boolean {
    return this.#idle.some((idle) => idle.key === key && idle.session.lost === undefined)
  }

  /** Stands in line for a claim, or keeps it there for `waitMs` more. False: there is no connection left to do so. */
  start(claim: Claim, asking: Asking): boolean {
    const before = this.#places.get(claim.claimId)
    if (before !== undefined) {
      this.#keep(before)
      return true
    }
    if (this.#places.size >= this.#parts.most || this.#closed) return false
    let onSent = (): void => {}
    const sent = new Promise<void>((resolve) => {
      onSent = resolve
    })
    const done = Promise.resolve()
    const place: Place = { claim, session: undefined, over: false, timer: undefined, endsAtMs: 0, sent, onSent, done }
    this.#places.set(claim.claimId, place)
    this.#keep(place)
    place.done = this.#stand(place, asking)
    return true
  }

  /**
   * Resolves when all of these claims' connections have been asked to stand in line, those that have to be opened first
   * as well; within a bound.
   */
  async sent(claims: readonly LeaseRef[], withinMs: number): Promise<void> {
    const opening = this.#placesOf(claims).filter(({ session }) => session === undefined)
    await this.#within(
      opening.map(({ sent }) => sent),
      withinMs,
    )
  }

  /** Resolves when none of these claims stands in line any more, granted or not; within a bound. */
  async served(claims: readonly LeaseRef[], withinMs: number): Promise<void> {
    await this.#within(
      this.#placesOf(claims).map(({ done }) => done),
      withinMs,
    )
  }

  /** The process ids of the connections that stand in line for these claims. */
  pidsOf(claims: readonly LeaseRef[]): readonly string[] {
    return this.#placesOf(claims).flatMap(({ session, over, granted }) =>
      session === undefined || over || granted ? [] : session.pid,
    )
  }

  /** Has a connection ready, so that the first who waits need not wait for that. */
  async prepare(): Promise<void> {
    if (this.#parts.most === 0 || this.#idle.length > 0 || this.#places.size > 0) return
    this.#standBy(await this.#parts.open())
  }

  /** A claim has its lease and knows it: it dies no more for want of being heard of. */
  settled({ claimId }: LeaseRef): void {
    this.#places.get(claimId)?.timer?.cancel()
  }

  /** The claim stands in line no more, and the server knows it. A lease that it has stays. */
  async stop({ claimId }: LeaseRef): Promise<void> {
    const place = this.#places.get(claimId)
    if (place === undefined || place.session?.leases.has(claimId)) return
    await this.#leave(place)
  }

  /**
   * The claim has its lease elsewhere: it stands in line no more, and what it got there is given back. Readers exclude
   * nobody, so both can have been granted at the same moment, and nobody would ever release the second.
   */
  async drop(ref: LeaseRef): Promise<void> {
    const place = this.#places.get(ref.claimId)
    const lease = this.leaseOf(ref)
    if (place?.granted !== true || place.session === undefined || lease === undefined) {
      if (place !== undefined) await this.#leave(place)
      return
    }
    this.#forget(place)
    await place.session.unlock([lease])
    this.#standBy(place.session, place.asked)
  }

  /** Connections whose lock was given back stand by for the next one who waits. */
  tidy(): void {
    for (const place of this.#places.values()) {
      const { session, claim, asked } = place
      if (place.granted !== true || session === undefined || session.leases.has(claim.claimId)) continue
      this.#forget(place)
      this.#standBy(session, asked)
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    const sessions = this.sessions
    const places = [...this.#places.values()]
    await Promise.all(places.filter(({ granted }) => granted !== true).map((place) => this.#leave(place)))
    for (const place of places) this.#forget(place)
    // Ended they are, whatever the socket says of it.
    await Promise.allSettled([...sessions, ...this.#idle.map(({ session }) => session)].map((each) => each.end()))
    this.#idle = []
  }

  async #stand(place: Place, asking: Asking): Promise<void> {
    let session: Session | undefined
    try {
      session = this.#takeIdle(asking) ?? (await this.#parts.open())
      if (place.over) return
      place.session = session
      place.asked = asking.key
      const turn = session.wait(asking)
      place.onSent()
      const lease = await turn
      place.granted = true
      if (place.over) await session.unlock([lease])
      else this.#parts.granted(place.claim, lease, Math.max(0, place.endsAtMs - this.#nowMs))
    } catch {
      // Canceled; or the store is down, which is told to whoever asks next: that one stands in line anew.
    } finally {
      place.onSent()
      if (place.over || place.granted !== true) {
        this.#forget(place)
        // One that is being taken out of the queue may be canceled once more, and must not wait for anybody else then.
        if (session !== undefined && !(place.over && place.session === session)) this.#standBy(session)
      }
    }
  }

  async #leave(place: Place): Promise<void> {
    place.over = true
    this.#forget(place)
    if (place.session !== undefined) {
      // Without an answer from the server the connection's end has to do.
      const { session } = place
      let out = false
      const done = place.done.then(() => {
        out = true
      })
      // Again and again, since one that comes before the server has begun to wait is heard by nobody.
      while (!out) {
        await this.#parts.cancel(session).catch(() => endQuietly(session))
        await this.#within([done], CANCEL_AGAIN_MS)
      }
      this.#standBy(session)
    }
    await place.done
  }

  #forget(place: Place): void {
    place.timer?.cancel()
    if (this.#places.get(place.claim.claimId) === place) this.#places.delete(place.claim.claimId)
  }

  #takeIdle({ key }: Asking): Session | undefined {
    this.#idle = this.#idle.filter(({ session }) => session.lost === undefined)
    const known = this.#idle.findIndex((idle) => idle.key === key)
    return this.#idle.splice(known, 1)[0]?.session
  }

  #standBy(session: Session, key?: string): void {
    if (session.lost === undefined && this.#idle.length < MAX_IDLE && !this.#closed) this.#idle.push({ session, key })
    else void endQuietly(session)
  }

  /** Nobody has asked for so long that the claim is dead; so is whatever it got. */
  #keep(place: Place): void {
    const { clock } = this.#parts
    place.timer?.cancel()
    place.endsAtMs = this.#nowMs + place.claim.waitMs
    place.timer = clock.setTimer(() => {
      const lease = place.session?.leases.get(place.claim.claimId)
      if (lease === undefined) void this.#leave(place)
      else {
        this.#forget(place)
        if (place.session !== undefined) void endQuietly(place.session)
      }
    }, place.claim.waitMs)
  }

  #placesOf(claims: readonly LeaseRef[]): Place[] {
    return claims.flatMap(({ claimId }) => this.#places.get(claimId) ?? [])
  }

  get #nowMs(): number {
    return this.#parts.clock.now().monotonicMs
  }

  async #within(work: readonly Promise<void>[], ms: number): Promise<void> {
    if (work.length === 0) return
    let timer: Timer | undefined
    const timeUp = new Promise<void>((resolve) => {
      timer = this.#parts.clock.setTimer(resolve, ms, true)
    })
    await Promise.race([Promise.all(work), timeUp])
    timer?.cancel()
  }
}

/** Ended it is, whatever the socket says of it. */
async function endQuietly(session: Session): Promise<void> {
  await session.end().catch(() => {})
}

interface Place {
  readonly claim: Claim
  session: Session | undefined
  /** The key that the session was asked for. */
  asked?: string
  /** Nobody wants it any more. */
  over: boolean
  granted?: boolean
  timer: Timer | undefined
  endsAtMs: number
  /** Resolves when its request to stand in line is on its way, or has failed. */
  readonly sent: Promise<void>
  readonly onSent: () => void
  /** Settles when it stands in line no more, in whichever way. */
  done: Promise<void>
}

interface Idle {
  readonly session: Session
  /** What it has stood in line for before. */
  readonly key: string | undefined
}

const MAX_IDLE = 2
const CANCEL_AGAIN_MS = 20
