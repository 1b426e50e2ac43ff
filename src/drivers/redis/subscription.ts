import type { Claim, DriverListener, Grant, LeaseRef } from '../../core/driver.ts'
import { type HoldfastError, StoreError } from '../../core/errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../../core/limits.ts'
import type { Clock } from '../../core/time/clock.ts'
import { systemRandom } from '../../core/time/random.ts'
import { WaitingClaims } from '../shared/waiting-claims.ts'
import type { RedisConnection, RedisNode, Subscriber } from './connection.ts'
import { inTime, isForbidden, storeErrorFrom } from './errors.ts'
import { readMessage, readTheft } from './format.ts'
import { channelOf, STOLEN_CHANNEL } from './keys.ts'

export interface SubscriptionParts {
  readonly connection: RedisConnection
  readonly clientId: string
  readonly timeoutMs: number
  /** Cluster only: whether the servers publish by slot. */
  sharded(): Promise<boolean>
  readonly clock: Clock
  /** Reports grants as hints only. A grant counts after replicas have confirmed it, and that takes a call. */
  readonly confirmsGrants: boolean
}

/** A call that asks for claims which wait. */
export interface WaitingCall {
  /** The channel on which its grants are published. */
  readonly channel: string
  /** New with every call: a grant that it proves was made after the server had run this call. */
  readonly secret: string
  readonly slot: number
  readonly sentMs: number
  /** When it was sent, this client listened, but not to this slot: a grant right after a refusal is missed. */
  readonly isUnheard: boolean
}

/**
 * One subscription for all claims of this driver that wait, and for thefts of its leases. The client that releases a
 * lock publishes the grant on the channel of the next waiter's client. So a hand-off costs one message, however many
 * clients wait.
 *
 * It reports genuine messages and decides nothing else. Races between a message and an answer are decided once, in
 * core/claim/pending-claim.ts.
 *
 * On a Cluster that publishes by slot, a message stays within its slot. There, this client subscribes to each slot in
 * which it waits.
 */
export class Subscription {
  readonly #parts: SubscriptionParts
  readonly #listeners = new Set<DriverListener>()
  readonly #claims: WaitingClaims<WaitingCall>
  /** Open, or being opened. One that has ended is never used again. */
  #session: Session | undefined
  /** How often this client stopped listening on purpose. */
  #ends = 0

  constructor(parts: SubscriptionParts) {
    this.#parts = parts
    this.#claims = new WaitingClaims(parts.clock)
  }

  /**
   * A request for these claims, some of which wait, is about to be sent. Returns its channel and its secret. On a
   * Cluster the channel depends on the servers, hence the promise there.
   */
  sends(claims: readonly Claim[], slot: number): WaitingCall | Promise<WaitingCall> {
    if (!this.#parts.connection.cluster) return this.#sends(claims, slot, false)
    return this.#parts.sharded().then((sharded) => this.#sends(claims, slot, sharded))
  }

  #sends(claims: readonly Claim[], slot: number, sharded: boolean): WaitingCall {
    const channel = this.#channelOf(sharded ? slot : undefined)
    const open = this.#openSession
    const isUnheard = open?.sharded === true && !open.slots.has(slot)
    const sentMs = this.#parts.clock.now().monotonicMs
    const call: WaitingCall = { channel, secret: systemRandom.id(), slot, sentMs, isUnheard }
    this.#claims.sends(claims, call)
    return call
  }

  /** The claim no longer waits. With a call: unless a newer one has asked for it since. */
  forget(lease: LeaseRef, call?: WaitingCall): void {
    this.#claims.forget(lease, call)
  }

  /**
   * Subscribes to the slot of claims that were refused before this client was subscribed to it. A grant in between was
   * missed, so the claims get a hint to ask again.
   */
  async hearSlot(slot: number, claims: readonly Claim[]): Promise<void> {
    const session = this.#openSession
    if (session === undefined) return
    await this.#hearSlot(session, slot)
    for (const claim of claims) this.#wake(claim)
  }

  async listen(listener: DriverListener): Promise<void> {
    const session = this.#session ?? this.#begin()
    await session.opened
    // It may have ended before this caller came to its turn.
    if (session.ended !== undefined) throw session.ended
    this.#listeners.add(listener)
    if (!session.sharded) return
    const slots = new Set([...this.#claims.all()].map(({ call }) => call.slot))
    await Promise.all([...slots].map((slot) => this.#hearSlot(session, slot)))
  }

  /**
   * As `listen`, for a listener that only wants to hear of thefts. They are published to the whole Cluster, so one
   * node is enough there.
   */
  async watch(listener: DriverListener): Promise<void> {
    await this.listen(listener)
    const session = this.#session
    if (!session?.sharded) return
    await this.#hearThefts(session).catch((error: unknown) => {
      this.stop(listener)
      throw error
    })
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

  /**
   * The channel is new after each `end`. The server learns late that a connection was closed. On the old channel it
   * would count the next waiter as subscribed, find out later that it is not, and drop it from the queue.
   */
  #channelOf(slot?: number): string {
    return channelOf(`${this.#parts.clientId}.${this.#ends}`, slot)
  }

  get #openSession(): Session | undefined {
    return this.#session?.isOpen ? this.#session : undefined
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
      thefts: undefined,
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
        const subscriber = await this.#subscriberAt(session, await this.#anyNode())
        await inTime('subscribe', timeoutMs, () => subscriber.subscribe(this.#channelOf(), false), connection)
        await this.#subscribeToThefts(subscriber)
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

  async #anyNode(): Promise<RedisNode> {
    const { connection, timeoutMs } = this.#parts
    const [node] = await inTime('find a node', timeoutMs, () => connection.nodes(), connection)
    if (node === undefined) throw new StoreError('redis has no node to subscribe at')
    return node
  }

  async #subscribeToThefts(subscriber: Subscriber): Promise<void> {
    const { connection, timeoutMs } = this.#parts
    const subscribe = (): Promise<void> => subscriber.subscribe(STOLEN_CHANNEL, false)
    await inTime('subscribe', timeoutMs, subscribe, connection).catch(unlessForbidden)
  }

  /** If no connection can be opened for it, waiters in the slots of the other nodes still hear theirs. */
  #hearThefts(session: Session): Promise<void> {
    const failed = (error: unknown): HoldfastError => storeErrorFrom('subscribe', error, this.#parts.connection)
    session.thefts ??= this.#anyNode()
      .then((node) => this.#subscriberAt(session, node))
      .then((subscriber) =>
        this.#subscribeToThefts(subscriber).catch((error: unknown) => {
          this.#lost(session, failed(error))
          throw error
        }),
      )
      .catch((error: unknown) => {
        session.thefts = undefined
        throw failed(error)
      })
    return session.thefts
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
      // The slot may have just moved. All listeners subscribe again, when the client knows the new node.
      this.#lost(session, storeErrorFrom('subscribe', error, connection))
    }
  }

  #subscriberAt(session: Session, node: RedisNode): Promise<Subscriber> {
    const known = session.subscribers.get(node.id)
    if (known !== undefined) return known
    const { connection, timeoutMs } = this.#parts
    let hasFailed = false
    const open = async (): Promise<Subscriber> => {
      const subscriber = await node.subscriber({
        message: (channel, text) => (channel === STOLEN_CHANNEL ? this.#theft(text) : this.#message(channel, text)),
        closed: (cause) => this.#lost(session, storeErrorFrom('listen', cause, connection)),
      })
      // The session ended while this connection was opened, or it took too long.
      if (session.ended !== undefined || hasFailed) subscriber.end()
      else session.all.add(subscriber)
      return subscriber
    }
    const opening = inTime('open a subscription', timeoutMs, open, connection)
    session.subscribers.set(node.id, opening)
    // The caller has the error. The next one tries again.
    opening.catch(() => {
      hasFailed = true
      session.subscribers.delete(node.id)
    })
    return opening
  }

  /** Ends a session for good, also one that is still being opened. Its listeners are notified. */
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

  /** A message that is about no claim of ours, that is forged, or that answers an older call, is ignored. */
  #message(channel: string, text: string): void {
    const message = readMessage(text)
    const waiting = message && this.#claims.find(message.claimId)
    if (message === undefined || waiting === undefined) return
    const { claim, call } = waiting
    const { grant } = message
    if (grant !== undefined && !(call.channel === channel && message.isProvedBy(call.secret))) return
    if (grant === undefined || isFarAhead(grant) || this.#parts.confirmsGrants) this.#wake(claim)
    else for (const listener of [...this.#listeners]) listener.granted(claim.claimId, trimmed(grant, claim))
  }

  #wake({ lockName, claimId }: Claim): void {
    for (const listener of [...this.#listeners]) listener.wake(lockName, claimId)
  }

  /** Only a hint: a client that has such a lease asks the store. */
  #theft(text: string): void {
    const { lost = [], by = '' } = readTheft(text) ?? {}
    for (const claimId of lost) {
      for (const listener of [...this.#listeners])
        listener.lost(claimId, new StoreError(`it was stolen by ${by.slice(0, MAX_HOLDER_ID_LENGTH)}`))
    }
  }
}

/** The store keeps whole milliseconds, so its lease may last a fraction longer than the claim asked for. */
const trimmed = (grant: Grant, { ttlMs }: Claim): Grant => (grant.ttlMs <= ttlMs ? grant : { ...grant, ttlMs })

/**
 * A token that is more than an hour ahead of the server's clock may be correct, because the clock was set back. But a
 * resource that has seen such a token refuses all later ones. So the claim asks the server for it.
 */
const isFarAhead = ({ fencingToken, acquiredAtMs }: Grant): boolean => fencingToken / 1_000 - acquiredAtMs > 3_600_000

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
  /** With publishing by slot: resolves when it hears of thefts. */
  thefts: Promise<void> | undefined
}

/**
 * A user without the right to this channel learns of a theft with the next renewal. Any other error is a broken
 * connection.
 */
function unlessForbidden(error: unknown): void {
  if (!isForbidden(error)) throw error
}
