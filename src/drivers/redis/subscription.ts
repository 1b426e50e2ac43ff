import type { Claim, DriverListener, Grant, LeaseRef } from '../../core/driver.ts'
import { type HoldfastError, StoreError } from '../../core/errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../../core/limits.ts'
import type { Clock } from '../../core/time/clock.ts'
import { systemRandom } from '../../core/time/random.ts'
import type { RedisConnection, RedisNode, Subscriber } from './connection.ts'
import { inTime, isForbidden, storeErrorFrom } from './errors.ts'
import { readMessage, readTheft } from './format.ts'
import { channelOf, STOLEN_CHANNEL } from './keys.ts'

export interface SubscriptionParts {
  readonly connection: RedisConnection
  readonly clientId: string
  readonly timeoutMs: number
  /** Cluster only: publishes and subscribes by slot. */
  sharded(): Promise<boolean>
  readonly clock: Clock
  /** A grant that was handed over has to be asked for again before it counts. */
  readonly confirmsGrants: boolean
}

/**
 * One subscription for all that this driver waits for. Whoever hands a lock over publishes the grant to the waiter's
 * own client, so a hand-off costs one message, however many wait.
 *
 * On Cluster, sharded messages stay within their slot, so there the client listens for each slot in which it waits.
 */
export class Subscription {
  readonly #parts: SubscriptionParts
  readonly #listeners = new Set<DriverListener>()
  /** What this client waits for. */
  readonly #waiting = new Map<string, Waiting>()
  /** Claims that are being asked for at this moment. */
  readonly #asking = new Map<string, Asking>()
  /** Being opened, or open. One that has ended is never taken up again. */
  #session: Session | undefined
  /** How often listening was ended on purpose. */
  #ends = 0

  constructor(parts: SubscriptionParts) {
    this.#parts = parts
  }

  /**
   * The server learns late that a connection has ended. If what is asked next were told on the same channel, the server
   * would count it as listened to, find later that it is not, and take its place away.
   */
  #channelOf(slot?: number): string {
    return channelOf(`${this.#parts.clientId}.${this.#ends}`, slot)
  }

  /** The subscription through which messages come now. */
  get #hearing(): Session | undefined {
    return this.#session?.isOpen ? this.#session : undefined
  }

  /**
   * A request is about to be sent for these claims, some of which wait. Returns how it is known here, and where its
   * grants are told. On a Cluster that depends on the servers.
   */
  asks(claims: readonly Claim[], slot: number): Request | Promise<Request> {
    if (this.#parts.connection.cluster) {
      return this.#parts.sharded().then((sharded) => this.#asks(claims, slot, sharded))
    }
    return this.#asks(claims, slot, false)
  }

  #asks(claims: readonly Claim[], slot: number, sharded: boolean): Request {
    const channel = this.#channelOf(sharded ? slot : undefined)
    const request: Request = { channel, secret: systemRandom.id(), slot, askedMs: this.#nowMs() }
    for (const claim of claims)
      if (claim.waitMs > 0) this.#asking.set(claim.claimId, { request, claim, told: undefined })
    return request
  }

  /**
   * A request has been answered, or has failed: what was told of this claim meanwhile. The answer and the message come
   * over different connections. A grant that was made right after a refusal can be heard before it.
   */
  asked({ claimId }: Claim, request: Request): Grant | undefined {
    const asking = this.#asking.get(claimId)
    // A request that took too long has been followed by another one.
    if (asking?.request !== request) return undefined
    this.#asking.delete(claimId)
    return asking.told
  }

  /** A claim has been refused, and stands in the queue. */
  waits(claim: Claim, request: Request): void {
    this.#waiting.set(claim.claimId, { claim, request })
    if (this.#waiting.size % FORGET_EVERY === 0) this.#forgetTheDead()
  }

  waitsNoMore({ claimId }: LeaseRef): void {
    this.#waiting.delete(claimId)
  }

  /** Whether a wait in this slot would go unheard although somebody listens. */
  misses(slot: number): boolean {
    return this.#hearing?.sharded === true && !this.#hearing.slots.has(slot)
  }

  async hear(slots: Iterable<number>): Promise<void> {
    const session = this.#hearing
    if (session === undefined) return
    await Promise.all([...new Set(slots)].map((slot) => this.#hearSlot(session, slot)))
  }

  async listen(listener: DriverListener): Promise<void> {
    const session = this.#session ?? this.#begin()
    await session.opened
    // It may have ended while this one waited for it.
    if (session.ended !== undefined) throw session.ended
    this.#listeners.add(listener)
    await this.hear(session.sharded ? [...this.#waiting.values()].map(({ request }) => request.slot) : [])
  }

  stop(listener: DriverListener): void {
    this.#listeners.delete(listener)
    if (this.#listeners.size === 0) this.end()
  }

  /** Ends the subscription, so that the listeners make another one. */
  restart(cause: HoldfastError): void {
    if (this.#session !== undefined) this.#lost(this.#session, cause)
  }

  end(): void {
    this.#ends += 1
    this.#listeners.clear()
    if (this.#session !== undefined) this.#lost(this.#session, new StoreError('the driver stopped listening'))
  }

  #begin(): Session {
    const session: Session = {
      opened: Promise.resolve(),
      isOpen: false,
      ended: undefined,
      sharded: false,
      slots: new Set(),
      subscribers: new Map(),
      all: new Set(),
    }
    this.#session = session
    session.opened = this.#open(session)
    return session
  }

  async #open(session: Session): Promise<void> {
    const { connection, timeoutMs, sharded } = this.#parts
    try {
      session.sharded = connection.cluster && (await sharded())
      if (!session.sharded) {
        const [node] = await inTime('find a node', timeoutMs, () => connection.nodes(), connection)
        if (node === undefined) throw new StoreError('redis has no node to subscribe at')
        const subscriber = await this.#subscriberAt(session, node)
        await inTime('subscribe', timeoutMs, () => subscriber.subscribe(this.#channelOf(), false), connection)
        const hearThefts = (): Promise<void> => subscriber.subscribe(STOLEN_CHANNEL, false)
        await inTime('subscribe', timeoutMs, hearThefts, connection).catch(unlessForbidden)
      }
      // The connection may have been lost after it was subscribed.
      if (session.ended !== undefined) throw session.ended
      session.isOpen = true
    } catch (error) {
      const cause = storeErrorFrom('subscribe', error, connection)
      this.#lost(session, cause)
      throw cause
    }
  }

  async #hearSlot(session: Session, slot: number): Promise<void> {
    if (session.slots.has(slot)) return
    const { connection, timeoutMs } = this.#parts
    try {
      const node = await inTime('find a node', timeoutMs, () => connection.nodeOfSlot(slot), connection)
      const subscriber = await this.#subscriberAt(session, node)
      await inTime('subscribe', timeoutMs, () => subscriber.subscribe(this.#channelOf(slot), true), connection)
      session.slots.add(slot)
    } catch (error) {
      // The slot may just have moved. Everybody listens anew, when the client knows where to.
      this.#lost(session, storeErrorFrom('subscribe', error, connection))
    }
  }

  #subscriberAt(session: Session, node: RedisNode): Promise<Subscriber> {
    const known = session.subscribers.get(node.id)
    if (known !== undefined) return known
    const { connection, timeoutMs } = this.#parts
    const open = async (): Promise<Subscriber> => {
      const subscriber = await node.subscriber({
        message: (channel, text) => (channel === STOLEN_CHANNEL ? this.#toldOfTheft(text) : this.#told(channel, text)),
        closed: (cause) => this.#lost(session, storeErrorFrom('listen', cause, connection)),
      })
      session.all.add(subscriber)
      // The session ended while this connection was being made.
      if (session.ended !== undefined) subscriber.end()
      return subscriber
    }
    const opening = inTime('open a subscription', timeoutMs, open, connection)
    session.subscribers.set(node.id, opening)
    return opening
  }

  /** Ends a session for good, also one that is still being opened. Those who listened are told. */
  #lost(session: Session, cause: HoldfastError): void {
    if (session.ended !== undefined) return
    session.ended = cause
    session.isOpen = false
    for (const subscriber of session.all) subscriber.end()
    if (this.#session !== session) return
    this.#session = undefined
    const listeners = [...this.#listeners]
    this.#listeners.clear()
    for (const listener of listeners) listener.disconnected(cause)
  }

  #told(channel: string, text: string): void {
    const message = readMessage(text)
    if (message === undefined) return
    const { claimId, grant } = message
    const [asking, waiting] = [this.#asking.get(claimId), this.#waiting.get(claimId)]
    if (grant === undefined) this.#wake((asking ?? waiting)?.claim)
    else if (asking !== undefined) {
      // Without proof it is older than the request, or forged: the answer decides.
      if (asking.request.channel !== channel || !message.isProvedBy(asking.request.secret)) return
      if (!isFarAhead(grant)) asking.told = trimmed(grant, asking.claim)
      // For a caller that has given the request up, and waits for the moment to ask again.
      this.#wake(asking.claim)
    } else if (waiting?.request.channel === channel && message.isProvedBy(waiting.request.secret)) {
      this.#granted(waiting, trimmed(grant, waiting.claim))
    }
  }

  #granted({ claim, request }: Waiting, grant: Grant): void {
    // A lease is trusted from the moment at which its claim last asked. Long after that, asking again begins it anew.
    const isLate = this.#nowMs() - request.askedMs > grant.ttlMs / 2
    if (this.#parts.confirmsGrants || isLate || isFarAhead(grant)) this.#wake(claim)
    else for (const listener of [...this.#listeners]) listener.granted(claim.claimId, grant)
  }

  #wake(claim: Claim | undefined): void {
    if (claim === undefined) return
    for (const listener of [...this.#listeners]) listener.wake(claim.lockName, claim.claimId)
  }

  /** Only a hint: whoever has such a lease asks the store. */
  #toldOfTheft(text: string): void {
    const { lost = [], by = '' } = readTheft(text) ?? {}
    for (const claimId of lost) {
      for (const listener of [...this.#listeners])
        listener.lost(claimId, new StoreError(`it was stolen by ${by.slice(0, MAX_HOLDER_ID_LENGTH)}`))
    }
  }

  #nowMs(): number {
    return this.#parts.clock.now().monotonicMs
  }

  /** Claims that were never withdrawn: their process's own code went wrong, but memory must not grow for it. */
  #forgetTheDead(): void {
    const nowMs = this.#nowMs()
    for (const [claimId, { claim, request }] of this.#waiting) {
      if (request.askedMs + claim.waitMs < nowMs) this.#waiting.delete(claimId)
    }
  }
}

/** A call of the script. Its secret is new: a grant that is proved by it was made after the call was done. */
export interface Request {
  /** Where its grants are told. */
  readonly channel: string
  readonly secret: string
  readonly slot: number
  readonly askedMs: number
}

interface Waiting {
  readonly claim: Claim
  /** The last one that was answered. */
  readonly request: Request
}

interface Asking extends Waiting {
  told: Grant | undefined
}

interface Session {
  /** Rejects if it could not be opened. */
  opened: Promise<void>
  isOpen: boolean
  /** Why it has ended. */
  ended: HoldfastError | undefined
  sharded: boolean
  readonly slots: Set<number>
  readonly subscribers: Map<string, Promise<Subscriber>>
  readonly all: Set<Subscriber>
}

/** A lease does not last longer than was asked for. */
const trimmed = (grant: Grant, { ttlMs }: Claim): Grant => (grant.ttlMs <= ttlMs ? grant : { ...grant, ttlMs })

/**
 * A token that is more than an hour ahead of the store's clock may be right: that clock was set back. But a resource
 * that has seen such a token refuses all later ones, so the store is asked for it.
 */
const isFarAhead = ({ fencingToken, acquiredAtMs }: Grant): boolean => fencingToken / 1_000 - acquiredAtMs > 3_600_000

/**
 * A user that may not hear of thefts learns of one with the next renewal. Whatever else fails is a broken connection.
 */
function unlessForbidden(error: unknown): void {
  if (!isForbidden(error)) throw error
}

const FORGET_EVERY = 1_000
