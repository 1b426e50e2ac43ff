import type { Clock } from '../../core/clock.ts'
import type { Claim, DriverListener, Grant, LeaseRef } from '../../core/driver.ts'
import { type HoldfastError, StoreError } from '../../core/errors.ts'
import type { RedisConnection, RedisNode, Subscriber } from './redis-connection.ts'
import { inTime, isForbidden, storeErrorFrom } from './redis-errors.ts'
import { readMessage, readTheft } from './redis-format.ts'
import { channelOf, STOLEN_CHANNEL } from './redis-keys.ts'

export interface WakingParts {
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
 * One subscription for all that this driver waits for. Whoever hands a lock over publishes the grant to the waiter's own client, so a
 * hand-off costs one message, however many wait.
 *
 * On Cluster, sharded messages stay within their slot, so there the client listens for each slot in which it waits.
 */
export class Waking {
  readonly #parts: WakingParts
  readonly #listeners = new Set<DriverListener>()
  /** What this client waits for. */
  readonly #waiting = new Map<string, Waiting>()
  /** Claims that are being asked for at this moment, and what was told of them meanwhile. */
  readonly #asking = new Map<string, Grant | undefined>()
  /** Being opened, or open. One that has ended is never taken up again. */
  #session: Session | undefined
  #channel: string | undefined

  constructor(parts: WakingParts) {
    this.#parts = parts
  }

  /** The subscription through which messages come now. */
  get #hearing(): Session | undefined {
    return this.#session?.isOpen ? this.#session : undefined
  }

  /** Where grants in this slot are told, and whether somebody hears them there: only then does "no receivers" mean that he is gone. */
  address(slot: number): Address | Promise<Address> {
    const { connection, clientId } = this.#parts
    if (connection.cluster) return this.#addressOnCluster(slot)
    this.#channel ??= channelOf(clientId)
    return { channel: this.#channel, hears: this.#hearing === undefined ? 0 : 1 }
  }

  async #addressOnCluster(slot: number): Promise<Address> {
    const { clientId, sharded } = this.#parts
    // An unsharded message reaches every node of a Cluster, but is counted only where it was sent.
    if (!(await sharded())) return { channel: channelOf(clientId), hears: 0 }
    return { channel: channelOf(clientId, slot), hears: this.#hearing?.slots.has(slot) ? 1 : 0 }
  }

  asks({ claimId, waitMs }: Claim): void {
    if (waitMs > 0) this.#asking.set(claimId, undefined)
  }

  /**
   * What was told of a claim while it was being asked for. The answer and the message come over different connections: a grant that was
   * made right after a refusal can be heard before it, and whoever waits for the answer pays no heed to it then.
   */
  asked({ claimId, waitMs }: Claim, answeredAtMs: number): Grant | undefined {
    if (waitMs === 0) return undefined
    const told = this.#asking.get(claimId)
    this.#asking.delete(claimId)
    return told !== undefined && told.acquiredAtMs >= answeredAtMs ? told : undefined
  }

  /** A claim has been refused, and stands in the queue. */
  waits({ claimId, lockName, waitMs }: Claim, slot: number, askedMs: number): void {
    this.#waiting.set(claimId, { lockName, slot, askedMs, untilMs: askedMs + waitMs })
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
    await this.hear(session.sharded ? [...this.#waiting.values()].map(({ slot }) => slot) : [])
  }

  stop(listener: DriverListener): void {
    this.#listeners.delete(listener)
    if (this.#listeners.size === 0) this.end()
  }

  end(): void {
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
    const { connection, clientId, timeoutMs, sharded } = this.#parts
    try {
      session.sharded = connection.cluster && (await sharded())
      if (!session.sharded) {
        const [node] = await inTime('find a node', timeoutMs, () => connection.nodes())
        if (node === undefined) throw new StoreError('redis has no node to subscribe at')
        const subscriber = await this.#subscriberAt(session, node)
        await inTime('subscribe', timeoutMs, () => subscriber.subscribe(channelOf(clientId), false))
        await inTime('subscribe', timeoutMs, () => subscriber.subscribe(STOLEN_CHANNEL, false)).catch(unlessForbidden)
      }
      // The connection may have been lost after it was subscribed.
      if (session.ended !== undefined) throw session.ended
      session.isOpen = true
    } catch (error) {
      const cause = storeErrorFrom('subscribe', error)
      this.#lost(session, cause)
      throw cause
    }
  }

  async #hearSlot(session: Session, slot: number): Promise<void> {
    if (session.slots.has(slot)) return
    const { connection, clientId, timeoutMs } = this.#parts
    try {
      const node = await inTime('find a node', timeoutMs, () => connection.nodeOfSlot(slot))
      const subscriber = await this.#subscriberAt(session, node)
      await inTime('subscribe', timeoutMs, () => subscriber.subscribe(channelOf(clientId, slot), true))
      session.slots.add(slot)
    } catch (error) {
      // The slot may just have moved. Everybody listens anew, when the client knows where to.
      this.#lost(session, storeErrorFrom('subscribe', error))
    }
  }

  #subscriberAt(session: Session, node: RedisNode): Promise<Subscriber> {
    const known = session.subscribers.get(node.id)
    if (known !== undefined) return known
    const opening = inTime('open a subscription', this.#parts.timeoutMs, async () => {
      const subscriber = await node.subscriber({
        message: (_channel, text) => this.#told(text),
        closed: (cause) => this.#lost(session, storeErrorFrom('listen', cause)),
      })
      session.all.add(subscriber)
      // The session ended while this connection was being made.
      if (session.ended !== undefined) subscriber.end()
      return subscriber
    })
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
    for (const listener of listeners) listener.deaf(cause)
  }

  #told(text: string): void {
    const told = readMessage(text)
    if (told === undefined) {
      this.#toldOfTheft(text)
      return
    }
    const { claimId, grant } = told
    const waiting = this.#waiting.get(claimId)
    if (grant === undefined) {
      if (waiting !== undefined) for (const listener of [...this.#listeners]) listener.wake(waiting.lockName, claimId)
      return
    }
    if (this.#asking.has(claimId)) this.#asking.set(claimId, grant)
    // A lease is trusted from the moment at which its claim last asked. If that is too long ago, asking again begins it anew.
    const agoMs = waiting === undefined ? 0 : this.#nowMs() - waiting.askedMs
    const asksAgain = waiting !== undefined && (this.#parts.confirmsGrants || agoMs > grant.ttlMs / 2)
    for (const listener of [...this.#listeners]) {
      if (asksAgain) listener.wake(waiting.lockName, claimId)
      else listener.granted(claimId, grant)
    }
  }

  #toldOfTheft(text: string): void {
    const { lost = [], by } = readTheft(text) ?? {}
    for (const claimId of lost) {
      for (const listener of [...this.#listeners]) listener.lost(claimId, new StoreError(`it was stolen by ${by}`))
    }
  }

  #nowMs(): number {
    return this.#parts.clock.now().monotonicMs
  }

  /** Claims that were never withdrawn: their process's own code went wrong, but memory must not grow for it. */
  #forgetTheDead(): void {
    const nowMs = this.#nowMs()
    for (const [claimId, { untilMs }] of this.#waiting) if (untilMs < nowMs) this.#waiting.delete(claimId)
  }
}

export interface Address {
  readonly channel: string
  readonly hears: 0 | 1
}

interface Waiting {
  readonly lockName: string
  readonly slot: number
  readonly askedMs: number
  readonly untilMs: number
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

/** A user that may not hear of thefts learns of one with the next renewal. Whatever else fails is a broken connection. */
function unlessForbidden(error: unknown): void {
  if (!isForbidden(error)) throw error
}

const FORGET_EVERY = 1_000
