import type { Claim, DriverListener, Grant } from '../../core/driver.ts'
import { type HoldfastError, StoreError } from '../../core/errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../../core/limits.ts'
import type { RedisConnection, RedisNode, Subscriber } from './connection.ts'
import { inTime, storeErrorFrom, unlessForbidden } from './errors.ts'
import { readForced, readMessage } from './format.ts'
import { channelOf, FORCED_CHANNEL } from './keys.ts'

export interface SubscriptionParts {
  readonly connection: RedisConnection
  readonly clientId: string
  readonly timeoutMs: number
  /** Cluster only: whether the servers publish by slot. */
  sharded(): Promise<boolean>
  /** Reports grants as hints only. A grant counts after replicas have confirmed it, and that takes a call. */
  readonly confirmsGrants: boolean
}

/** Where the grants of a call that asks for claims in one slot are published. */
export interface WaitingPlace {
  readonly channel: string
  /** This client listens, but not to this slot: a grant right after a refusal is missed. */
  readonly isUnheard: boolean
}

/**
 * One subscription for all claims of this driver that wait. The client that releases a lock publishes the grant on the
 * channel of the next waiter's client. So a hand-off costs one message, however many clients wait.
 *
 * It reads messages and decides nothing else: core knows which claims wait, and checks the proof of a grant.
 *
 * On a Cluster that publishes by slot, a message stays within its slot. There, this client subscribes to each slot in
 * which it waits.
 */
export class Subscription {
  readonly #parts: SubscriptionParts
  readonly #listeners = new Set<DriverListener>()
  /** Open, or being opened. One that has ended is never used again. */
  #session: Session | undefined
  /** Slots in which claims of this client began to wait while no session was open. */
  readonly #slotsToHear = new Set<number>()
  /** How often this client stopped listening on purpose. */
  #ends = 0

  constructor(parts: SubscriptionParts) {
    this.#parts = parts
  }

  /**
   * Call it before a request for claims that wait is sent. On a Cluster the channel depends on the servers, hence the
   * promise there.
   */
  placeIn(slot: number): WaitingPlace | Promise<WaitingPlace> {
    const { connection, sharded } = this.#parts
    if (!connection.cluster) return { channel: this.#channelOf(), isUnheard: false }
    return sharded().then((bySlot) => {
      if (!bySlot) return { channel: this.#channelOf(), isUnheard: false }
      const open = this.#session?.isOpen ? this.#session : undefined
      if (open === undefined) this.#slotsToHear.add(slot)
      return { channel: this.#channelOf(slot), isUnheard: open?.slots.has(slot) === false }
    })
  }

  /**
   * Subscribes to the slot of claims that were refused before this client was subscribed to it. A grant in between was
   * missed, so the claims get a hint to ask again.
   */
  async hearSlot(slot: number, claims: readonly Claim[]): Promise<void> {
    const session = this.#session
    if (!session?.isOpen) return
    await this.#hearSlot(session, slot)
    for (const { claimId } of claims) this.#wake(claimId)
  }

  async listen(listener: DriverListener): Promise<void> {
    const session = this.#session ?? this.#begin()
    await session.opened
    // It may have ended before this caller came to its turn.
    if (session.ended !== undefined) throw session.ended
    this.#listeners.add(listener)
    const slots = [...this.#slotsToHear]
    this.#slotsToHear.clear()
    await Promise.all(slots.map((slot) => this.#hearSlot(session, slot)))
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

  #begin(): Session {
    const session: Session = {
      opened: Promise.resolve(),
      isOpen: false,
      ended: undefined,
      slots: new Set(),
      subscribers: new Map(),
      all: new Set(),
      hearsForced: false,
    }
    this.#session = session
    session.opened = this.#open(session)
    return session
  }

  async #open(session: Session): Promise<void> {
    const { connection, sharded } = this.#parts
    try {
      if (!(connection.cluster && (await sharded()))) {
        const subscriber = await this.#subscriberAt(session, await this.#anyNode())
        await this.#inTime('subscribe', () => subscriber.subscribe(this.#channelOf(), false))
        await this.#hearForced(session, subscriber)
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
    const [node] = await this.#inTime('find a node', () => this.#parts.connection.nodes())
    if (node === undefined) throw new StoreError('redis has no node to subscribe at')
    return node
  }

  /** Forced releases are published to a whole Cluster, so one node is enough. */
  async #hearForced(session: Session, subscriber: Subscriber): Promise<void> {
    if (session.hearsForced) return
    session.hearsForced = true
    await this.#inTime('subscribe', () => subscriber.subscribe(FORCED_CHANNEL, false)).catch(unlessForbidden)
  }

  async #hearSlot(session: Session, slot: number): Promise<void> {
    if (session.slots.has(slot)) return
    const { connection } = this.#parts
    try {
      const node = await this.#inTime('find a node', () => connection.nodeOfSlot(slot))
      const subscriber = await this.#subscriberAt(session, node)
      await this.#inTime('subscribe', () => subscriber.subscribe(this.#channelOf(slot), true))
      session.slots.add(slot)
      await this.#hearForced(session, subscriber)
    } catch (error) {
      // The slot may have just moved. All listeners subscribe again, when the client knows the new node.
      this.#lost(session, storeErrorFrom('subscribe', error, connection))
    }
  }

  #subscriberAt(session: Session, node: RedisNode): Promise<Subscriber> {
    const known = session.subscribers.get(node.id)
    if (known !== undefined) return known
    let hasFailed = false
    const open = async (): Promise<Subscriber> => {
      const subscriber = await node.subscriber({
        message: (channel, text) =>
          channel === FORCED_CHANNEL ? tellForced(text, this.#listeners) : this.#message(text),
        closed: (cause) => this.#lost(session, storeErrorFrom('listen', cause, this.#parts.connection)),
      })
      // The session ended while this connection was opened, or it took too long.
      if (session.ended !== undefined || hasFailed) subscriber.end()
      else session.all.add(subscriber)
      return subscriber
    }
    const opening = this.#inTime('open a subscription', open)
    session.subscribers.set(node.id, opening)
    // The caller has the error. The next one tries again.
    opening.catch(() => {
      hasFailed = true
      session.subscribers.delete(node.id)
    })
    return opening
  }

  #inTime<Answer>(what: string, call: () => Promise<Answer>): Promise<Answer> {
    return inTime(what, this.#parts.timeoutMs, call, this.#parts.connection)
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

  /** Any client can publish on the channel. A hint is worth nothing to a claim that does not wait. */
  #message(text: string): void {
    const message = readMessage(text)
    if (message === undefined) return
    const { claimId, grant, isProvedBy } = message
    if (grant === undefined || isFarAhead(grant) || this.#parts.confirmsGrants) this.#wake(claimId)
    else for (const listener of [...this.#listeners]) listener.granted(claimId, grant, isProvedBy)
  }

  #wake(claimId: string): void {
    for (const listener of [...this.#listeners]) listener.wake({ claimId })
  }
}

/** Only a hint: a client that has such a lease asks the store. */
export function tellForced(text: string, listeners: ReadonlySet<DriverListener>): void {
  const { lost = [], by = '' } = readForced(text) ?? {}
  const cause = new StoreError(`it was force-released by ${by.slice(0, MAX_HOLDER_ID_LENGTH)}`)
  for (const claimId of lost) for (const listener of [...listeners]) listener.lost(claimId, cause)
}

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
  readonly slots: Set<number>
  readonly subscribers: Map<string, Promise<Subscriber>>
  readonly all: Set<Subscriber>
  hearsForced: boolean
}
