import { setTimeout as sleep } from 'node:timers/promises'
import type { Claim, LeaseRef } from '../../core/driver.ts'
import type { Asking, Session, SessionLease } from './postgres-session.ts'

export interface WaitingParts {
  open(): Promise<Session>
  /** Takes a session out of the server's queue. */
  cancel(session: Session): Promise<void>
  /** How many connections there may be, waiting or carrying what they waited for. */
  readonly most: number
  /** `keptMs`: how long the lease is kept if nobody is heard of. */
  granted(claim: Claim, lease: SessionLease, keptMs: number): void
}

/**
 * Waiting in the server's own queue: a connection stands there for one lock name, on behalf of the one claim of this process that is first in line for it, and
 * then carries the lock that it got.
 */
export class AdvisoryWaiting {
  readonly #parts: WaitingParts
  readonly #places = new Map<string, Place>()
  #idle: Session[] = []
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

  /** The process ids of the connections that stand in line for these claims; within a bound, those that have to be opened first as well. */
  async standing(claims: readonly LeaseRef[], withinMs: number): Promise<readonly string[]> {
    const places = claims.flatMap(({ claimId }) => this.#places.get(claimId) ?? [])
    if (places.length > 0) await Promise.race([Promise.all(places.map(({ sent }) => sent)), sleep(withinMs)])
    return places.flatMap(({ session, over }) => (session === undefined || over ? [] : session.pid))
  }

  /** Has a connection ready, so that the first who waits need not wait for that. */
  async prepare(): Promise<void> {
    if (this.#parts.most === 0 || this.#idle.length > 0 || this.#places.size > 0) return
    this.#standBy(await this.#parts.open())
  }

  /** A claim has its lease and knows it: it dies no more for want of being heard of. */
  settled({ claimId }: LeaseRef): void {
    clearTimeout(this.#places.get(claimId)?.timer)
  }

  /** The claim stands in line no more, and the server knows it. A lease that it has stays. */
  async stop({ claimId }: LeaseRef): Promise<void> {
    const place = this.#places.get(claimId)
    if (place === undefined || place.session?.leases.has(claimId)) return
    await this.#leave(place)
  }

  /** Connections whose lock was given back stand by for the next one who waits. */
  tidy(): void {
    for (const place of this.#places.values()) {
      const { session, claim } = place
      if (place.granted !== true || session === undefined || session.leases.has(claim.claimId)) continue
      this.#forget(place)
      this.#standBy(session)
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    const sessions = [...this.sessions, ...this.#idle]
    const places = [...this.#places.values()]
    await Promise.all(places.filter(({ granted }) => granted !== true).map((place) => this.#leave(place)))
    for (const place of places) this.#forget(place)
    await Promise.all([...sessions, ...this.#idle].map((session) => session.end().catch(() => {})))
    this.#idle = []
  }

  async #stand(place: Place, asking: Asking): Promise<void> {
    let session: Session | undefined
    try {
      session = this.#idle.pop()
      if (session === undefined || session.lost !== undefined) session = await this.#parts.open()
      if (place.over) return
      place.session = session
      const turn = session.wait(asking)
      place.onSent()
      const lease = await turn
      place.granted = true
      if (place.over) await session.unlock([lease])
      else this.#parts.granted(place.claim, lease, Math.max(0, place.endsAtMs - performance.now()))
    } catch {
      // Canceled; or the store is down, which is told to whoever asks next: that one stands in line anew.
    } finally {
      place.onSent()
      if (place.over || place.granted !== true) {
        this.#forget(place)
        if (session !== undefined) this.#standBy(session)
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
        await this.#parts.cancel(session).catch(() => session.end())
        await Promise.race([done, sleep(CANCEL_AGAIN_MS)])
      }
    }
    await place.done
  }

  #forget(place: Place): void {
    clearTimeout(place.timer)
    if (this.#places.get(place.claim.claimId) === place) this.#places.delete(place.claim.claimId)
  }

  #standBy(session: Session): void {
    if (session.lost === undefined && this.#idle.length < MOST_IDLE && !this.#closed) this.#idle.push(session)
    else void session.end().catch(() => {})
  }

  /** Nobody has asked for so long that the claim is dead; so is whatever it got. */
  #keep(place: Place): void {
    clearTimeout(place.timer)
    place.endsAtMs = performance.now() + place.claim.waitMs
    place.timer = setTimeout(() => {
      const lease = place.session?.leases.get(place.claim.claimId)
      if (lease === undefined) void this.#leave(place)
      else {
        this.#forget(place)
        void place.session?.end().catch(() => {})
      }
    }, place.claim.waitMs)
    place.timer.unref()
  }
}

interface Place {
  readonly claim: Claim
  session: Session | undefined
  /** Nobody wants it any more. */
  over: boolean
  granted?: boolean
  timer: NodeJS.Timeout | undefined
  endsAtMs: number
  /** Resolves when its request to stand in line is on its way, or has failed. */
  readonly sent: Promise<void>
  readonly onSent: () => void
  /** Settles when it stands in line no more, in whichever way. */
  done: Promise<void>
}

const MOST_IDLE = 2
const CANCEL_AGAIN_MS = 20
